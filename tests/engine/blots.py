"""Generated samples that are fast to learn. No torch here: worker processes import this."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from mptui.data.types import IGNORE, Decoded

SIDE = 8
CLASSES = ("left", "right", "both")


@dataclass(frozen=True)
class Blot:
    """A noisy image with a bright left half, right half, or both."""

    index: int

    @property
    def name(self) -> str:
        return f"blot {self.index}"

    def read(self, side_hint: int | None = None) -> Decoded:
        return Decoded(_drawn(self.index), self.index % len(CLASSES))


@cache
def _drawn(index: int) -> npt.NDArray[np.uint8]:
    """Return the image of a number; nobody may write to it."""
    image = np.random.default_rng(index).integers(0, 90, (SIDE, SIDE, 3), dtype=np.uint8)
    label = index % len(CLASSES)
    if label in (0, 2):
        image[:, : SIDE // 2] += 120
    if label in (1, 2):
        image[:, SIDE // 2 :] += 120
    image.flags.writeable = False
    return image


@dataclass(frozen=True)
class Scene(Blot):
    """A blot and the mask of its bright pixels; a larger index modulo 4 has more ignored pixels."""

    def read(self, side_hint: int | None = None) -> Decoded:
        blot = super().read(side_hint)
        mask = (blot.image_HWC[..., 0] >= 120).astype(np.int16)
        mask[: SIDE * (self.index % 4) // 4] = IGNORE
        return Decoded(blot.image_HWC, mask_HW=mask)


@dataclass(frozen=True)
class Unseen(Blot):
    """A blot whose mask ignores every pixel."""

    def read(self, side_hint: int | None = None) -> Decoded:
        return Decoded(super().read(side_hint).image_HWC, mask_HW=np.full((SIDE, SIDE), IGNORE, np.int16))


@dataclass(frozen=True)
class Samples:
    """A split of `count` samples."""

    count: int
    first: int = 0
    kind: type[Blot] = Blot

    def __len__(self) -> int:
        return self.count

    @property
    def sample_labels(self) -> npt.NDArray[np.int64]:
        return np.arange(self.first, self.first + self.count) % len(CLASSES)

    def request(self, index: int) -> Blot:
        return self.kind(self.first + index)
