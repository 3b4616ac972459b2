"""What watches over a run and mends it: numbers that are not finite, memory that runs out, the loss scale.

Nothing in here runs in a healthy step but the comparison of a step count: what there is to see comes with the
figures that are read late anyway.
"""
