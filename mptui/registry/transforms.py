"""What happens to images in training, by the names that `data.augment` lists. Imports no torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from mptui.errors import ConfigError
from mptui.registry.names import SampleKind
from mptui.registry.own_code import call, is_own, load

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

Apply = Callable[["torch.Tensor", "npt.NDArray[np.float64]"], "torch.Tensor"]
Make = Callable[[], Callable[..., Any]]
_TARGETS = frozenset({SampleKind.CLASS, SampleKind.MASK})


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSpec:
    """A random transform of training images.

    Attributes:
        help: What it does, in one line.
        kinds: Kinds of samples that it suits: one that moves pixels would have to move those of masks too.
        apply: Called as `apply(images_BCHW, draws_BD)`: normalised float32 images on the device, which it may
            overwrite, and float64 numbers from [0, 1) on the host, by seed, epoch and sample. Returns images
            of the same shape and memory format, without a sync. None: done on the host.
        draws: D, how many numbers it needs for a sample.
        make: Called once in each process that reads samples. Returns a function of the pixels of a view,
            image_CHW in their own type, which draws from torch's generator; that is seeded by seed, epoch and
            sample. None: `apply`, or part of the view that the loader cuts.
        rgb: Whether it suits 8-bit RGB alone.
    """

    help: str
    kinds: frozenset[SampleKind] = _TARGETS
    apply: Apply | None = None
    draws: int = 0
    make: Make | None = None
    rgb: bool = False


def _by(name: str) -> Apply:
    """Return a function of `mptui.data.batch_transforms`, which is imported when it is called."""

    def apply(images: "torch.Tensor", draws: "npt.NDArray[np.float64]") -> "torch.Tensor":
        from mptui.data import batch_transforms

        transformed: torch.Tensor = getattr(batch_transforms, name)(images, draws)
        return transformed

    return apply


def _of_torchvision(name: str) -> Any:  # noqa: ANN401 - it has no types
    """Return a transform of torchvision with its defaults; imports torchvision."""
    from torchvision.transforms import v2

    return getattr(v2, name)()


TRANSFORMS: dict[str, TransformSpec] = {
    "crop": TransformSpec(help="a random part, resized: data.crop_scale and data.crop_ratio"),
    "flip": TransformSpec(help="left to right, half of the images", kinds=frozenset(SampleKind)),
    "vertical_flip": TransformSpec(help="top to bottom, half of the images"),
    "turn": TransformSpec(help="by a multiple of 90°"),
    "colour": TransformSpec(help="brightness, contrast and saturation of RGB by up to 20 %", rgb=True),
    "pad_crop": TransformSpec(
        help="moved by up to an eighth of the side, mirrored at the edges",
        kinds=frozenset({SampleKind.CLASS}),
        apply=_by("pad_crop"),
        draws=2,
    ),
    "erase": TransformSpec(
        help="in a quarter of the images, a random rectangle of 2 to 33 % becomes the mean",
        apply=_by("erase"),
        draws=5,
    ),
    "cutout": TransformSpec(help="a square of half the side becomes the mean", apply=_by("cutout"), draws=2),
    "trivial": TransformSpec(
        help="torchvision's TrivialAugmentWide: one of 14 operations, of any strength",
        kinds=frozenset({SampleKind.CLASS}),
        make=partial(_of_torchvision, "TrivialAugmentWide"),
        rgb=True,
    ),
    "rand": TransformSpec(
        help="torchvision's RandAugment: two of 14 operations, of strength 9 of 30",
        kinds=frozenset({SampleKind.CLASS}),
        make=partial(_of_torchvision, "RandAugment"),
        rgb=True,
    ),
}
"""Name -> transform."""

_DEFAULTS = {
    SampleKind.CLASS: ("crop", "flip", "colour"),
    SampleKind.MASK: ("crop", "flip", "colour"),
    SampleKind.IMAGE: ("flip",),
}

Augment = Literal["default", "none"] | list[str]


def find_transform(name: str) -> TransformSpec:
    """Return the transform called `name`, as an item of `data.augment` has it.

    One of the person's own (`package.module:name`) is imported when it is made. It is given image_CHW, or
    image_CHW and mask_HW, and draws from the generators of `random` and NumPy, too.
    """
    if is_own(name):
        return TransformSpec(help="your own", kinds=frozenset(SampleKind), make=partial(_own, name))
    return TRANSFORMS[name]


def _own(name: str) -> Callable[..., Any]:
    """Return the person's transform; of a class, one that is made without arguments.

    Raises:
        ConfigError: There is none of that name, or it can't be called.
        Exception: Whatever the person's code raises.
    """
    found = load(name)
    if isinstance(found, type):
        found = call(name, found)
    if not callable(found):
        hint = "name a transform of torchvision.transforms.v2, or a function of an image"
        raise ConfigError(f"{name} can't be called", hint=hint)
    made: Callable[..., Any] = found
    return made


def transforms_of(augment: Augment, kind: SampleKind) -> Sequence[str]:
    """Return the names of the transforms that `data.augment` means for samples of a kind."""
    if isinstance(augment, list):
        return augment
    return _DEFAULTS[kind] if augment == "default" else ()
