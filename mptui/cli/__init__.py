"""The command line: one file per command, grouped as in `--help`, and console output. No training logic."""
