"""Experiments built on runs: bench, tune, parity, check-amp, doctor."""
