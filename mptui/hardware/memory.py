"""Configures the C library's allocator."""

import ctypes

# of <malloc.h>; see mallopt(3)
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_NEVER = 2**31 - 1
_LARGEST = 1 << 30
_LARGEST_OF_OLD = 32 << 20  # an older glibc refuses more


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for later allocations; does nothing with other C libraries.

    On a CPU, activations of some MiB each are freed and allocated again at every step. By default, glibc
    returns them to the kernel, and each step has thousands of page faults: a sixth of its time for a U-Net
    at 128 px. Call this before threads are started: each has its own heap, which glibc always returns.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_TRIM_THRESHOLD, _NEVER)
    for size in (_LARGEST_OF_OLD, _LARGEST):
        mallopt(_MMAP_THRESHOLD, size)
    mallopt(_ARENA_MAX, 1)
