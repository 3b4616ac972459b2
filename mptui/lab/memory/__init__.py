"""The memory of a training on any card: `mptui memory`."""
