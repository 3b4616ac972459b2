"""Training by a group of processes (ranks), one for each device."""
