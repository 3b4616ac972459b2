"""Samples to batches on the device: order, worker processes, shared memory, caches."""
