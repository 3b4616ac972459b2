"""A data set of the person's own: `data[i]` -> (image, target)."""

import contextlib
import inspect
import pickle
import random
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from mptui.config.schema import DataConfig
from mptui.data.assemble import split_train_val
from mptui.data.dataset import Rows
from mptui.data.decode import check_size, load_upright, reason_for, stored_size, turned_pixels, upright_rgb
from mptui.data.masks import Size
from mptui.data.rng import seed_of_reading, seeded
from mptui.data.transforms import resized_mask
from mptui.data.types import IGNORE, BadSampleError, Dataset, Decoded, Mask, Pixels, reason_of
from mptui.errors import ConfigError, DataError, OwnCodeError
from mptui.registry.names import SampleKind
from mptui.registry.own_code import allow, allowed, call, described, is_given, load
from mptui.text import clean_name

# A sample of a data set of the person's own: `data[i]` -> (image, target)
# ------------------------------------------------------------------------
# An image is a PIL image of any mode, which is converted to RGB as its file would be, or uint8 [H, W, 3] or
# [H, W]; a target the number of a class, or a mask of integers [H, W] with -1 for ignored pixels. Where
# images alone are learnt, the sample may be the image.
#
# Each data worker makes the data set, and reads its samples there; no torch here. The random numbers that a
# sample draws from the generators of `random`, NumPy and torch depend on the seed, the epoch and its index
# only, so that every worker, and a resumed run, reads the same bits.

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
            with seeded(seed_of_reading()):
                dataset = opened(self.folder, self.code, self.part)
            with seeded(seed_of_reading()):  # again: a worker's first one may have imported torch
                sample = dataset[self.index]
        except OSError as error:
            raise BadSampleError(self.name, reason_of(error)) from error
        image, target = parts_of(self.name, sample)
        kind = kind_of_target(self.name, target)
        pixels_HW3, stored, orientation = image_of(self.name, image, side_hint)
        if kind is SampleKind.CLASS:
            return Decoded(pixels_HW3, label=class_of(self.name, target))
        if kind is SampleKind.IMAGE:
            return Decoded(pixels_HW3)
        mask_HW = mask_of(self.name, target, stored, orientation, ignore_index=self.ignore_index)
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
    scales = {"f": "values of 0..1: (image * 255).round()", "u": "16 bits: (image / 257).round()"}
    kind = image.dtype.kind if isinstance(image, np.ndarray) and image.ndim in {2, 3} else ""
    if kind in scales:
        hint += f"; of {scales[kind]}.astype(numpy.uint8)"
    raise OwnCodeError(f"{name}: its image is {described(image)}", hint=hint)


def kind_of_samples(folder: str, code: str, part: Part) -> tuple[SampleKind, bool]:
    """Return the kind of the samples of a data set, and whether they draw random numbers, by the first one.

    Raises:
        OwnCodeError: That is not of the form above.
        Exception: Whatever the person's code raises.
    """
    name = OwnRequest(folder, code, part, 0).name
    dataset = opened(folder, code, part)
    with seeded(seed_of_reading()):
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


# The halves of a data set of the person's own. It is a class, or a function, of the person's code
# ------------------------------------------------------------------------------------------------
# One that takes `train` is made twice, with True and with False; another is split by `data.val_fraction`.


@dataclass(frozen=True, slots=True)
class OwnSplit:
    """Some samples of a data set of the person's own."""

    folder: str
    code: str
    part: Part
    rows: Rows
    ignore_index: int | None

    def __len__(self) -> int:
        return len(self.rows)

    def request(self, index: int) -> OwnRequest:
        """Return the request for sample `index`."""
        return OwnRequest(self.folder, self.code, self.part, int(self.rows[index]), self.ignore_index)


def kind_of_own(code: str) -> SampleKind:
    """Return the kind of the samples of a data set, by the first one; runs the person's code.

    Raises:
        ConfigError: There is no such data set.
        DataError: It has no samples.
        Exception: Whatever the person's code raises.
    """
    return _kind(allowed(), code)[0]


def open_own(code: str, data: DataConfig, kind: SampleKind, seed: int) -> Dataset:
    """Open a data set of the person's own.

    Args:
        code: `package.module:name`.
        data: The share of validation, the ignored mask value.
        kind: Kind of the samples.
        seed: Selects the validation half if the set has none.

    Raises:
        ConfigError: There is no such data set, or it has no classes.
        DataError: It has too few samples.
        Exception: Whatever the person's code raises.
    """
    folder = allowed()
    chosen: dict[Part, Rows]
    if _has_halves(code):
        chosen = {part: np.arange(_count(folder, code, part)) for part in ("train", "val")}
        train, val = (OwnSplit(folder, code, part, rows, data.ignore_index) for part, rows in chosen.items())
    else:
        count = _count(folder, code, "all")
        as_one_class = np.zeros(count, np.int64)
        both = split_train_val(
            code, as_one_class, np.arange(count), count, fraction=data.val_fraction, seed=seed
        )
        train, val = (OwnSplit(folder, code, "all", rows, data.ignore_index) for rows in both)
    return Dataset(
        name=code,
        kind=kind,
        classes=_classes(code, opened(folder, code, train.part), kind),
        train=train,
        val=val,
        has_ignored=kind is SampleKind.MASK,  # nobody has counted them
        draws=_kind(folder, code)[1],
    )


@lru_cache(maxsize=8)
def _kind(folder: str, code: str) -> tuple[SampleKind, bool]:
    part: Part = "train" if _has_halves(code) else "all"
    _count(folder, code, part)
    return kind_of_samples(folder, code, part)


def _count(folder: str, code: str, part: Part) -> int:
    count = len(opened(folder, code, part))
    if not count:
        made = "" if part == "all" else f" with train={part == 'train'}"
        raise DataError(f"{code}{made} has no samples", hint="check its __len__")
    return count


def _has_halves(code: str) -> bool:
    make = load(code)
    return callable(make) and "train" in inspect.signature(make).parameters


def _classes(code: str, dataset: Any, kind: SampleKind) -> tuple[str, ...]:  # noqa: ANN401 - the person's
    names = tuple(clean_name(str(name)) for name in getattr(dataset, "classes", ()))
    if not names and kind is not SampleKind.IMAGE:
        hint = "set `classes` to the names of the classes, in the order of their numbers"
        raise ConfigError(f"{code} has no classes", hint=hint)
    return names


# The target of a sample of the person's own: the number of a class, or a mask, in the person's types
# ---------------------------------------------------------------------------------------------------

_MOST = int(np.iinfo(np.int16).max)
_HINTS = {
    "text": "return the number of its class, from 0: self.classes.index(target)",
    "fraction": "return the number of its class as an integer: int(target)",
    "one value": "return the number alone: int(target[0])",
    "one-hot": "return the number of its class, not one value a class: int(target.argmax())",
    "dict": "return image, target: a tuple of two, the target the number of a class or a mask",
    "mask of fractions": "return a mask of integers [H, W]: target.astype(int), after its values are classes",
    "mask with channels": "return a mask of integers [H, W], the number of each pixel's class, no channels",
    "other": "return the number of a class, or a mask of integers [H, W]",
}


def kind_of_target(name: str, target: object) -> SampleKind:
    """Return the kind of the samples with such a target; None as target: images alone.

    Args:
        name: Name of the sample, for the message.
        target: What the person's code returned beside the image.

    Raises:
        OwnCodeError: It is neither a class nor a mask.
    """
    if target is None:
        return SampleKind.IMAGE
    array = _array(target)
    if array is not None and array.dtype.kind in "biu":
        if array.ndim == 0:
            return SampleKind.CLASS
        if array.ndim == 2:
            return SampleKind.MASK
    hint = _HINTS[_fault(target, array)]
    raise OwnCodeError(f"{name}: its target is {described(target)}", hint=hint)


def class_of(name: str, target: object) -> int:
    """Return the class of a target that is one.

    Raises:
        OwnCodeError: It is negative.
    """
    number = int(np.asarray(target))
    if number < 0:
        raise OwnCodeError(f"{name}: its class is {number}", hint="return the number of a class, from 0")
    return number


def mask_of(name: str, target: object, stored: Size, orientation: int, *, ignore_index: int | None) -> Mask:
    """Return the mask of a target that is one, upright as its image.

    Args:
        name: Name of the sample, for messages.
        target: An array or a PIL image, drawn over the image as it is stored or as it is seen.
        stored: Width and height of the image before its orientation is applied.
        orientation: The EXIF orientation of the image.
        ignore_index: The value of ignored pixels besides -1.

    Raises:
        OwnCodeError: It has another shape than the image, or values that are no classes.
    """
    image, own = load_upright(target) if isinstance(target, Image.Image) else (target, 1)
    mask: npt.NDArray[Any] = np.asarray(image)
    seen = (stored[1], stored[0]) if orientation < 5 else stored
    if own == 1 and mask.shape == (stored[1], stored[0]):
        mask = turned_pixels(mask[..., None], orientation)[..., 0]
    if mask.shape != seen:
        hint = f"return the number of a class, or a mask of integers {list(seen)}"
        raise OwnCodeError(f"{name}: its target is {described(target)}", hint=hint)
    if ignore_index is not None:
        mask = np.where(mask == ignore_index, IGNORE, mask.astype(np.int64))
    low, high = int(mask.min()), int(mask.max())
    if low < IGNORE or high > _MOST:
        value = low if low < IGNORE else high
        hint = "use the numbers of classes, and -1 to ignore"
        raise OwnCodeError(f"{name}: its mask has the value {value}", hint=hint)
    return mask.astype(np.int16)


def _array(target: object) -> npt.NDArray[Any] | None:
    try:
        return np.asarray(target)
    except (ValueError, TypeError, RuntimeError):  # ragged lists; tensors of another device
        return None


def _fault(target: object, array: npt.NDArray[Any] | None) -> str:
    """Return the key of the hint for a target of another form."""
    if isinstance(target, dict):
        return "dict"
    if array is None or array.dtype.kind not in "biufU":
        return "other"
    if array.dtype.kind == "U":
        return "text"
    if array.ndim < 2:
        return "fraction" if array.ndim == 0 else "one value" if array.size == 1 else "one-hot"
    return "mask of fractions" if array.ndim == 2 else "mask with channels"
