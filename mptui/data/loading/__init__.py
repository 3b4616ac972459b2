"""Loads samples as batches on the device: order, workers, shared memory, caches."""
