"""Small splits for tests of the pipeline; worker processes import this too, so it must not import torch."""

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mptui.data.types import IGNORE, BadSampleError, Decoded, Mask, SampleRequest


@dataclass(frozen=True)
class Drawn:
    """A colourful image that differs by index; its label is the index modulo 10."""

    index: int
    width: int = 40
    height: int = 30

    @property
    def name(self) -> str:
        return f"drawn-{self.index}.png"

    def read(self, side_hint: int | None = None) -> Decoded:
        random = np.random.default_rng(self.index)
        coarse = random.integers(0, 256, (5, 5, 3), dtype=np.uint8)
        rows = np.arange(self.height) * 5 // self.height
        columns = np.arange(self.width) * 5 // self.width
        return Decoded(np.ascontiguousarray(coarse[rows[:, None], columns]), label=self.index % 10)


@dataclass(frozen=True)
class Masked:
    """Asymmetric white shapes on black; the mask is 1 where the image is white."""

    index: int
    ignored_rows: int = 0

    @property
    def name(self) -> str:
        return f"masked-{self.index}.png"

    def read(self, side_hint: int | None = None) -> Decoded:
        mask: Mask = np.zeros((96, 128), np.int16)
        mask[10:50, 20 + self.index % 20 : 60] = 1
        mask[60:90, 90:120] = 1
        image = np.repeat((mask * 255).astype(np.uint8)[:, :, None], 3, axis=2)
        mask[: self.ignored_rows] = IGNORE
        return Decoded(image, mask_HW=mask)


@dataclass(frozen=True)
class Broken:
    """A file that can't be read."""

    index: int

    @property
    def name(self) -> str:
        return f"broken-{self.index}.png"

    def read(self, side_hint: int | None = None) -> Decoded:
        raise BadSampleError(self.name, "truncated")


@dataclass(frozen=True)
class Deadly:
    """Kills the process that reads it, like a fault in a C library; once, if `marker` can be created."""

    index: int
    marker: Path | None = None

    @property
    def name(self) -> str:
        return f"deadly-{self.index}.png"

    def read(self, side_hint: int | None = None) -> Decoded:
        if self.marker is None or not self.marker.exists():
            if self.marker is not None:
                self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Drawn(self.index).read(side_hint)


@dataclass(frozen=True)
class Slow:
    """Takes a while to read, and creates a file in `folder` when read."""

    index: int
    folder: Path

    @property
    def name(self) -> str:
        return f"slow-{self.index}.png"

    def read(self, side_hint: int | None = None) -> Decoded:
        (self.folder / self.name).touch()
        return Drawn(self.index, 2000, 1500).read(side_hint)


@dataclass(frozen=True)
class Hanging:
    """Never returns from a read, as on a lost disk; creates `marker` when it begins."""

    index: int
    marker: Path

    @property
    def name(self) -> str:
        return f"hanging-{self.index}.png"

    def read(self, side_hint: int | None = None) -> Decoded:
        self.marker.touch()
        while True:
            time.sleep(3600)


@dataclass(frozen=True)
class Chatty:
    """Writes to both outputs as C libraries do; its label says whether torch is imported."""

    index: int

    @property
    def name(self) -> str:
        return "chatty"

    def read(self, side_hint: int | None = None) -> Decoded:
        os.write(1, b"chatter")
        os.write(2, b"chatter")
        return Decoded(Drawn(self.index).read().image_HWC, label=int("torch" in sys.modules))


@dataclass(frozen=True)
class Faulty:
    """A reader with a bug."""

    index: int

    @property
    def name(self) -> str:
        return "faulty"

    def read(self, side_hint: int | None = None) -> Decoded:
        raise KeyError("no such thing")


class Samples:
    """A split of `count` samples, made by `make` from their indices."""

    def __init__(self, count: int, make: Callable[[int], SampleRequest] = Drawn) -> None:
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    def request(self, index: int) -> SampleRequest:
        return self._make(index)
