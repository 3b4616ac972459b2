"""Folders and sets on disk to batches on the device: scan, readers, workers, augmentation."""
