"""A sample of a data set of the person's own: `data[i]` -> (image, target).

An image is a PIL image of any mode, which is converted to RGB as its file would be, or uint8 [H, W, 3] or
[H, W]; a target the number of a class, or a mask of integers [H, W] with -1 for ignored pixels. Where images
alone are learnt, the sample may be the image.

Each data worker makes the data set, and reads its samples there; no torch here. The random numbers that a
sample draws from the generators of `random`, NumPy and torch depend on the seed, the epoch and its index
only, so that every worker, and a resumed run, reads the same bits.
"""

import contextlib
import pickle
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from PIL import Image

from mptui.data.core.read_errors import reason_of
from mptui.data.core.rng import seed_of_reading
from mptui.data.core.types import BadSampleError, Decoded, Pixels
from mptui.data.decode.image import check_size, reason_for, stored_size, upright_rgb
from mptui.data.decode.mask import Size
from mptui.data.formats.own.target import class_of, described, kind_of_target, mask_of
from mptui.data.transforms.resample import resized_mask
from mptui.errors import ConfigError, OwnCodeError
from mptui.registry.own_code import allow, call, is_given, load
from mptui.registry.samples import SampleKind

Part = Literal["train", "val", "all"]
"""A half of a data set that is made with `train`, or all of one that is not."""


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
            with _seeded():
                sample = opened(self.folder, self.code, self.part)[self.index]
        except OSError as error:
            raise BadSampleError(self.name, reason_of(error)) from error
        image, target = parts_of(self.name, sample)
        kind = kind_of_target(self.name, target)
        pixels_HW3, stored, orientation = image_of(self.name, image, side_hint)
        if kind is SampleKind.CLASS:
            return Decoded(pixels_HW3, label=class_of(self.name, target))
        if kind is SampleKind.IMAGE:
            return Decoded(pixels_HW3)
        mask_HW = mask_of(self.name, target, stored, orientation, self.ignore_index)
        return Decoded(pixels_HW3, mask_HW=resized_mask(mask_HW, *pixels_HW3.shape[:2]))


def image_of(name: str, image: object, side_hint: int | None = None) -> tuple[Pixels, Size, int]:
    """Convert the image of a sample to upright RGB, a PIL image exactly as its file would be.

    Returns:
        uint8 [H, W, 3], width and height as stored, and the EXIF orientation there.

    Raises:
        BadSampleError: Its file is damaged or too large.
        OwnCodeError: It is no image of the form above.
    """
    if isinstance(image, Image.Image):
        size = stored_size(image)
        check_size(name, *size)
        try:
            return (read := upright_rgb(image, side_hint))[0], size, read[1]
        except Exception as error:  # a damaged file, read only now, makes Pillow's parsers raise anything
            raise BadSampleError(name, reason_for(error)) from error
    if isinstance(image, np.ndarray) and image.dtype == np.uint8:
        size = image.shape[1::-1]
        if image.ndim == 2:
            return np.stack([image] * 3, axis=-1), size, 1
        if image.ndim == 3 and image.shape[2] == 3:
            return image, size, 1
    hint = "return a PIL image or a NumPy array uint8 [H, W, 3]; mptui crops, augments and normalises it"
    if isinstance(image, np.ndarray) and image.ndim in {2, 3} and image.dtype.kind in "fu":
        scale = (
            "values of 0..1: (image * 255).round()"
            if image.dtype.kind == "f"
            else "16 bits: (image / 257).round()"
        )
        hint += f"; of {scale}.astype(numpy.uint8)"
    raise OwnCodeError(f"{name}: its image is {described(image)}", hint=hint)


def kind_of_samples(folder: str, code: str, part: Part) -> tuple[SampleKind, bool]:
    """Return the kind of the samples of a data set, and whether they draw random numbers, by the first one.

    Raises:
        OwnCodeError: That is not of the form above.
        Exception: Whatever the person's code raises.
    """
    name = OwnRequest(folder, code, part, 0).name
    dataset = opened(folder, code, part)
    with _seeded():
        before = _generators()
        image, target = parts_of(name, dataset[0])
        draws = _generators() != before
    with contextlib.suppress(BadSampleError):  # which counts among the others
        image_of(name, image)
    return kind_of_target(name, target), draws


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


def parts_of(name: str, sample: object) -> tuple[Any, Any]:
    """Return image and target of a sample; None as target where it is the image alone.

    Raises:
        OwnCodeError: It has another number of values.
    """
    if not isinstance(sample, tuple | list):
        return sample, None
    if len(sample) != 2:
        raise OwnCodeError(
            f"{name}: it has {len(sample)} value{'s' * (len(sample) != 1)}",
            hint="return image, target: a tuple of two",
        )
    return sample[0], sample[1]


def _generators() -> tuple[bytes, ...]:
    """Return the states of the global generators."""
    torch = sys.modules.get("torch")
    tensors = [] if torch is None else [torch.get_rng_state().numpy().tobytes()]
    return (pickle.dumps(random.getstate()), pickle.dumps(np.random.get_state()), *tensors)


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Seed the global generators, and restore them: a trainer that reads itself draws from them, too."""
    python, arrays, seed = random.getstate(), np.random.get_state(), seed_of_reading()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    tensors = torch and torch.get_rng_state()
    if torch is not None:
        torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        if torch is not None:
            torch.set_rng_state(tensors)
