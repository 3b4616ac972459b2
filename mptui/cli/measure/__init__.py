"""Commands that measure: bench, tune, parity, check-amp, memory."""
