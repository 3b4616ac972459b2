"""Checkpoints: their files, the thread that writes them, the state they hold."""
