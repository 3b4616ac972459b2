"""Compares training in FP32 and in 16 bits from the same seeds and sample order.

Each training is a run in a separate process, so that memory peaks, compiled code and caches don't affect
another.
"""
