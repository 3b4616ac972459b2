"""A run on disk and in a process: planning, run directory, session, remote control, views."""
