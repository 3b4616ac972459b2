"""The process that owns a run: worker thread, watchdog, exit status."""
