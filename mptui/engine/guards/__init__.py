"""Guards: detect non-finite numbers, exhausted memory and a falling loss scale, and recover from them.

In a healthy step they cost one comparison of a step count: they act on figures that are read asynchronously.
"""
