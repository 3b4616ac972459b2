"""Commands that measure: bench, tune, parity, check-amp, simulate, memory."""
