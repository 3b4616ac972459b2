"""A sample of a data set of the person's own: `data[i]` -> (image, target).

An image is a PIL image, or uint8 [H, W, 3] or [H, W]; a target the number of a class, or a mask of integers
[H, W] with -1 for ignored pixels. Where images alone are learnt, the sample may be the image.

Each data worker makes the data set, and reads its samples there; no torch here. The random numbers that a
sample draws from the generators of `random`, NumPy and torch depend on its index only, so that every worker,
and a resumed run, reads the same bits.
"""

import contextlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from mptui.data.core.read_errors import reason_of
from mptui.data.core.types import IGNORE, BadSampleError, Decoded, Mask, Pixels
from mptui.errors import ConfigError, OwnCodeError
from mptui.registry.own_code import allow, call, is_given, load

Part = Literal["train", "val", "all"]
"""A half of a data set that is made with `train`, or all of one that is not."""

_MOST = int(np.iinfo(np.int16).max)


@dataclass(frozen=True, slots=True)
class OwnRequest:
    """Sample `index` of the data set `code`, imported from `folder`."""

    folder: str
    code: str
    part: Part
    index: int
    ignore_index: int | None = None

    @property
    def name(self) -> str:
        """The data set and the index in it."""
        return f"{self.code}[{self.index}]" + ("" if self.part == "all" else f" ({self.part})")

    def read(self, side_hint: int | None = None) -> Decoded:
        """Read the sample; see `SampleRequest.read`.

        Raises:
            OwnCodeError: The sample is not of the form above.
            Exception: Whatever the person's code raises; an OSError makes a bad sample.
        """
        try:
            with _seeded(self.index):
                image, target = parts_of(opened(self.folder, self.code, self.part)[self.index])
                image_HW3 = self._image(image)
        except OSError as error:
            raise BadSampleError(self.name, reason_of(error)) from error
        if target is None:
            return Decoded(image_HW3)
        if not is_class(target):
            return Decoded(image_HW3, mask_HW=self._mask(target, image_HW3))
        if int(target) < 0:
            raise self._wrong(f"its class is {int(target)}", "return the number of a class, from 0")
        return Decoded(image_HW3, label=int(target))

    def _image(self, image: object) -> Pixels:
        if isinstance(image, Image.Image):
            return np.asarray(image.convert("RGB"))
        if isinstance(image, np.ndarray) and image.dtype == np.uint8:
            if image.ndim == 2:
                return np.stack([image] * 3, axis=-1)
            if image.ndim == 3 and image.shape[2] == 3:
                return image
        hint = "return a PIL image or a NumPy array uint8 [H, W, 3]; mptui crops, augments and normalises it"
        raise self._wrong(f"its image is {_described(image)}", hint)

    def _mask(self, target: object, image_HW3: Pixels) -> Mask:
        mask: npt.NDArray[Any] = np.asarray(target)
        if mask.dtype.kind not in "iu" or mask.shape != image_HW3.shape[:2]:
            hint = f"return the number of a class, or a mask of integers {list(image_HW3.shape[:2])}"
            raise self._wrong(f"its target is {_described(target)}", hint)
        if self.ignore_index is not None:
            mask = np.where(mask == self.ignore_index, IGNORE, mask.astype(np.int64))
        low, high = int(mask.min()), int(mask.max())
        if low < IGNORE or high > _MOST:
            value = low if low < IGNORE else high
            raise self._wrong(
                f"its mask has the value {value}", "use the numbers of classes, and -1 to ignore"
            )
        return mask.astype(np.int16)

    def _wrong(self, what: str, hint: str) -> OwnCodeError:
        return OwnCodeError(f"{self.name}: {what}", hint=hint)


def first_of(folder: str, code: str, part: Part) -> tuple[Any, Any]:
    """Return the image and the target of the first sample."""
    dataset = opened(folder, code, part)
    with _seeded(0):
        return parts_of(dataset[0])


@lru_cache(maxsize=8)
def opened(folder: str, code: str, part: Part) -> Any:  # noqa: ANN401 - the person's
    """Make a data set, or a half of it, once in a process.

    Raises:
        ConfigError: There is none of that name, or it is none.
        Exception: Whatever the person's code raises.
    """
    if not is_given(code):
        allow(folder)
    make = load(code)
    if not callable(make):
        raise ConfigError(
            f"{code} can't be called", hint="name a class, or a function that returns the data set"
        )
    dataset = call(code, make) if part == "all" else call(code, make, train=part == "train")
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ConfigError(
            f"{code} makes no data set, but {type(dataset).__name__}",
            hint="define __len__ and __getitem__, as a map-style torch.utils.data.Dataset does",
        )
    return dataset


def parts_of(sample: object) -> tuple[Any, Any]:
    """Return image and target of a sample; None as target where it is the image alone."""
    if not isinstance(sample, tuple | list):
        return sample, None
    image, target = sample
    return image, target


def is_class(target: object) -> bool:
    """Whether a target is the number of a class."""
    array: npt.NDArray[Any] = np.asarray(target)
    return array.ndim == 0 and array.dtype.kind in "biu"


def _described(value: object) -> str:
    shape = getattr(value, "shape", None)
    if shape is None:
        return f"a {type(value).__name__}"
    return f"a {type(value).__name__}, {getattr(value, 'dtype', '')} {list(shape)}"


@contextlib.contextmanager
def _seeded(index: int) -> Iterator[None]:
    """Seed the global generators, and restore them: a trainer that reads itself draws from them, too."""
    python, arrays = random.getstate(), np.random.get_state()
    random.seed(index)
    np.random.seed(index % 2**32)
    torch = sys.modules.get("torch")
    tensors = torch and torch.get_rng_state()
    if torch is not None:
        torch.default_generator.manual_seed(index)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        if torch is not None:
            torch.set_rng_state(tensors)
