"""The memory of a training step: counted on tensors without storage, before anything is allocated."""
