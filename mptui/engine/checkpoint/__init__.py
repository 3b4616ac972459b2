"""Checkpoints: file format, asynchronous writing, snapshots of the state."""
