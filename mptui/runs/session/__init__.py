"""The process that trains a run: worker thread, watchdog, exit status."""
