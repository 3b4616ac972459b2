"""Parity: FP32 and a 16-bit precision trained from one seed and order, and whether they end alike.

Each training is a run of its own in a process of its own: peaks of memory, compiled code and warm caches of
one are no part of the other.
"""
