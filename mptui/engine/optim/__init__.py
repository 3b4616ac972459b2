"""Optimizers, the guarded step, gradient norm, EMA, learning-rate schedule."""
