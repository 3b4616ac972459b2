"""Measurements that train for a while and compare: bench, tune, parity, scaling, memory, precision."""
