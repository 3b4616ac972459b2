"""Counter-based random numbers: seed, epoch and sample determine a sequence, in any process.

There is no state, so the number of workers, the batch size, a resume and a retry change nothing. Each sample
has a SplitMix64 generator, vectorised over samples: seeding a numpy generator takes 20 us.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

STEP = np.uint64(0x9E3779B97F4A7C15)
"""Increment between two numbers of a sample's generator."""


class RandomStream(IntEnum):
    """Purpose of the random numbers; the streams of a sample are independent of each other."""

    ORDER = 1
    GEOMETRY = 2
    COLOUR = 3
    MIX = 4
    REPLACEMENT = 5
    TIMESTEP = 6
    NOISE = 7
    SAMPLING = 8
    LABEL = 9
    PICTURES = 10
    OWN_CODE = 11
    TRANSFORM = 12


_sample_read: ContextVar[tuple[int, int, int]] = ContextVar("_sample_read", default=(0, 0, 0))


@contextmanager
def reading(seed: int, epoch: int, index: int) -> Iterator[None]:
    """Set the position of the sample that is read meanwhile; its requests may be wrapped by others."""
    token = _sample_read.set((seed, epoch, index))
    try:
        yield
    finally:
        _sample_read.reset(token)


def seed_of_reading() -> int:
    """Return a seed, below 2**64, for what is random in the sample that is being read."""
    seed, epoch, index = _sample_read.get()
    return int(keys(RandomStream.OWN_CODE, seed, epoch, np.array([index]))[0])


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Seed torch's generator of the CPU, and restore it after; without torch, nothing."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of `random`, NumPy and torch, and restore them after.

    What the person's code draws in a process that trains is not drawn from those that training draws from.
    """
    python, arrays = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        with torch_seeded(seed):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


def uniforms(
    stream: RandomStream, seed: int, epoch: int, indices_B: npt.NDArray[np.int64], *, count: int
) -> npt.NDArray[np.float64]:
    """Draw `count` numbers from [0, 1) for each sample: shape (B, count), float64."""
    keys_B = keys(stream, seed, epoch, indices_B)
    steps = np.arange(1, count + 1, dtype=np.uint64) * STEP
    bits: npt.NDArray[np.uint64] = _mix(keys_B[:, None] + steps) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def keys(
    stream: RandomStream, seed: int, epoch: int, indices_B: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """Return the start state of each sample's generator: shape (B,), uint64."""
    return _mix(_base(stream, seed, epoch) + indices_B.astype(np.uint64))


def generator(stream: RandomStream, *position: int) -> np.random.Generator:
    """Return a numpy generator seeded by a position such as (seed, epoch)."""
    return np.random.default_rng([stream, *position])


def replacement(seed: int, epoch: int, index: int, attempt: int, *, count: int) -> int:
    """Choose a replacement for the unreadable sample `index` of `count`; `attempt` counts from 0."""
    draw = uniforms(RandomStream.REPLACEMENT, seed, epoch, np.array([index]), count=attempt + 1)[0, attempt]
    return (index + 1 + int(draw * (count - 1))) % count


@lru_cache(maxsize=64)
def _base(stream: RandomStream, seed: int, epoch: int) -> npt.NDArray[np.uint64]:
    key = np.zeros(1, np.uint64)
    for part in (stream, seed, epoch):
        key = _mix(key + np.uint64(part) + STEP)
    return key


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply SplitMix64's finaliser: each input bit affects every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
