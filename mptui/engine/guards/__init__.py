"""Guards: they watch a run for numbers that are not finite, memory that runs out and a sinking loss scale.

Nothing of them runs in a healthy step but the comparison of a step count: they act on figures that are read
late anyway.
"""
