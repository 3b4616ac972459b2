"""The target of a sample of the person's own: the number of a class, or a mask, in the person's types."""

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from mptui.data.core.types import IGNORE, Mask
from mptui.data.decode.image import load_upright
from mptui.data.decode.jpeg import turned
from mptui.data.decode.mask import Size
from mptui.errors import OwnCodeError
from mptui.registry.samples import SampleKind

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


def mask_of(name: str, target: object, stored: Size, orientation: int, ignore_index: int | None) -> Mask:
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
        mask = turned(mask[..., None], orientation)[..., 0]
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


def described(value: object) -> str:
    """Describe a value for a message: its type, with type and shape of its items, keys or content."""
    kind = type(value).__name__
    if isinstance(value, dict):
        return f"a {kind} with the keys {', '.join(map(str, list(value)[:6])) or 'none'}"
    if isinstance(value, str | float):
        return f"a {kind}: {str(value)[:40]!r}" if isinstance(value, str) else f"a {kind}: {value!r}"
    if isinstance(value, list | tuple):
        return f"a {kind} of {len(value)}"
    shape = getattr(value, "shape", None)
    return f"a {kind}" if shape is None else f"a {kind}, {getattr(value, 'dtype', '')} {list(shape)}"


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
