"""NVIDIA GPUs: the builds of torch that they and their drivers can run."""
