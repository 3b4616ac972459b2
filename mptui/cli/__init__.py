"""The command line: one file per command, and console output. No training logic."""
