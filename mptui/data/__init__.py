"""Datasets: from files on disk to batches on the device."""
