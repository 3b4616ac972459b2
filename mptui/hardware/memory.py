"""How the C library keeps this process's memory."""

import ctypes

# of <malloc.h>; see mallopt(3)
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_NEVER = 2**31 - 1
_LARGEST = 1 << 30
_LARGEST_OF_OLD = 32 << 20  # an older glibc refuses more


def keep_freed_memory() -> None:
    """Let glibc keep what is freed for what is asked for next; does nothing with another C library.

    On a CPU each activation of a training step is some MiB, freed and asked for again at every step. As glibc
    comes, it gives them back to the kernel, and each step pays thousands of page faults for them anew: a
    sixth of its time for a U-Net at 128 px. Call it before there are threads: they would have heaps of
    their own, which glibc gives back whatever it is told.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_TRIM_THRESHOLD, _NEVER)
    for size in (_LARGEST_OF_OLD, _LARGEST):
        mallopt(_MMAP_THRESHOLD, size)
    mallopt(_ARENA_MAX, 1)
