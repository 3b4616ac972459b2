"""Numerics monitor: overflow, underflow and lost bits in 16-bit formats, layer by layer."""
