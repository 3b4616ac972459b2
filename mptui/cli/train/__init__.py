"""Commands that train: run, resume, attach, stop, runs."""
