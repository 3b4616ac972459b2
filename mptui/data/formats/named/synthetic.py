"""The built-in dataset: coloured shapes on a noisy background, drawn when they are read.

An image with a class has one shape; each class has its own outline and hue, so that a first run shows within
a minute that learning works; shade, background, size, position and rotation are random. An image with a mask
has several shapes, whose classes differ in the outline only.
Every sample is a pure function of its request, in any process.
"""

import colorsys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from mptui.data.core.types import Dataset, Decoded, Mask, Pixels
from mptui.registry.samples import SampleKind

CLASSES = ("circle", "ring", "square", "triangle", "star", "cross", "crescent", "bar")
MASK_CLASSES = ("background", "circle", "square", "triangle")
DEFAULT_SAMPLES = 4096

Half = Literal["train", "val"]
Points = npt.NDArray[np.float64]
"""Corners [N, 2] of an outline in the unit circle; the outline of a hole follows that of its shape."""
Colour = npt.NDArray[np.floating]
Cover = npt.NDArray[np.float32]
Box = tuple[slice, slice]

_HALF_NUMBER: dict[Half, int] = {"train": 0, "val": 1}
_OVERSAMPLED = 2
_LEAST_CONTRAST = 70.0


@dataclass(frozen=True, slots=True)
class ShapesRequest:
    """Sample `index` of one half, `side` pixels square."""

    seed: int
    half: Half
    index: int
    side: int
    kind: SampleKind

    @property
    def name(self) -> str:
        """Name of the sample in messages."""
        return f"shapes/{self.half}/{self.index}"

    def read(self, side_hint: int | None = None) -> Decoded:
        """Draw the sample; see `SampleRequest.read`."""
        rng = np.random.default_rng([self.seed, _HALF_NUMBER[self.half], self.index])
        canvas = _Canvas(rng, self.side, grey=self.kind is SampleKind.CLASS)
        if self.kind is SampleKind.CLASS:
            label = self.index % len(CLASSES)
            canvas.draw(CLASSES[label], radius=rng.uniform(0.2, 0.42), hue=label / len(CLASSES))
            return Decoded(canvas.image(), label=label)
        mask_HW: Mask = np.zeros((self.side, self.side), np.int16)
        for index in rng.integers(1, len(MASK_CLASSES), size=rng.integers(1, 5)):
            box, cover_HW = canvas.draw(MASK_CLASSES[index], radius=rng.uniform(0.1, 0.28))
            mask_HW[box][cover_HW >= 0.5] = index
        return Decoded(canvas.image(), mask_HW=mask_HW)


@dataclass(frozen=True, slots=True)
class ShapesSplit:
    """One half of the set."""

    seed: int
    half: Half
    samples: int
    side: int
    kind: SampleKind

    def __len__(self) -> int:
        return self.samples

    def request(self, index: int) -> ShapesRequest:
        """Return the request for sample `index`."""
        return ShapesRequest(self.seed, self.half, index, self.side, self.kind)

    @property
    def sample_labels(self) -> npt.NDArray[np.int64]:
        """See `LabelledSplit`."""
        return np.arange(self.samples) % len(CLASSES)


def shapes(kind: SampleKind, samples: int, side: int, seed: int) -> Dataset:
    """Return the built-in dataset.

    Args:
        kind: Kind of the samples: with classes or with masks.
        samples: Number of training images; the validation set is half as large.
        side: Side of the images in pixels.
        seed: Seed of the images.
    """
    train = ShapesSplit(seed, "train", samples, side, kind)
    val = ShapesSplit(seed, "val", max(1, samples // 2), side, kind)
    if kind is SampleKind.MASK:
        return Dataset("shapes", kind, MASK_CLASSES, train, val, sides=(side, side, side))
    counts = [len(range(label, samples, len(CLASSES))) for label in range(len(CLASSES))]
    return Dataset("shapes", kind, CLASSES, train, val, class_counts=counts, sides=(side, side, side))


class _Canvas:
    """An image being drawn, as float32 RGB from 0 to 255."""

    def __init__(self, rng: np.random.Generator, side: int, *, grey: bool) -> None:
        self._rng, self._side = rng, side
        ground = rng.uniform(20, 235, 1 if grey else 3)
        self._pixels_HW3 = self._texture(ground, side, strength=30.0)

    def draw(self, name: str, radius: float, hue: float | None = None) -> tuple[Box, Cover]:
        """Draw a shape at a random position.

        Args:
            name: Name of the shape.
            radius: Radius of its circumscribed circle, as a fraction of the side.
            hue: Approximate hue from 0 to 1; None: any colour with enough contrast.

        Returns:
            The square around the shape, and the shape's coverage of each of its pixels, 0 to 1.
        """
        angle = self._rng.uniform(0, 2 * np.pi)
        size = max(2, round(2 * radius * self._side))
        top, left = self._rng.integers(0, self._side - size, size=2, endpoint=True)
        box = (slice(top, top + size), slice(left, left + size))
        cover_HW = _cover(_OUTLINES[name](), angle, size)
        if hue is None:
            colour = self._colour_unlike(self._pixels_HW3[box].mean(axis=(0, 1)))
        else:
            colour = self._colour_of(hue)
        paint_HW3 = self._texture(colour, size, strength=15.0)
        self._pixels_HW3[box] += (paint_HW3 - self._pixels_HW3[box]) * cover_HW[..., None]
        return box, cover_HW

    def image(self) -> Pixels:
        """Return the image [H, W, 3] with sensor noise."""
        noise_HW3 = self._rng.integers(-14, 15, self._pixels_HW3.shape, np.int8)
        image_HW3: Pixels = np.clip(self._pixels_HW3 + noise_HW3, 0, 255).astype(np.uint8)
        return image_HW3

    def _texture(self, colour: Colour, size: int, strength: float) -> npt.NDArray[np.float32]:
        """Return a square texture of about one colour, with soft blotches."""
        blotches = self._rng.integers(0, 256, (6, 6, 3), np.uint8)
        soft = Image.fromarray(blotches).resize((size, size), Image.Resampling.BICUBIC)
        base = (colour - strength).astype(np.float32)
        texture_HW3: npt.NDArray[np.float32] = np.asarray(soft) * np.float32(strength / 127.5) + base
        return texture_HW3

    def _colour_of(self, hue: float) -> Colour:
        """Return a saturated colour, at most a third of the way to the hue of a neighbouring class."""
        turn = (hue + self._rng.uniform(-1, 1) / (3 * len(CLASSES))) % 1.0
        rgb = colorsys.hsv_to_rgb(turn, self._rng.uniform(0.7, 1.0), self._rng.uniform(0.7, 1.0))
        return np.array(rgb) * 255

    def _colour_unlike(self, other: Colour) -> Colour:
        """Return a random colour far from `other`; the colour cube always has one."""
        while True:
            colour = self._rng.uniform(0, 255, 3)
            if np.linalg.norm(colour - other) >= _LEAST_CONTRAST:
                return colour


def _cover(outlines: list[Points], angle: float, size: int) -> Cover:
    """Rasterise outlines, rotated by `angle`, to `size` x `size` pixels; the second one is a hole."""
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    fine = size * _OVERSAMPLED
    stencil = Image.new("L", (fine, fine))
    pen = ImageDraw.Draw(stencil)
    for outline, ink in zip(outlines, (255, 0), strict=False):
        pen.polygon([(float(x), float(y)) for x, y in (outline @ turn + 1) * (fine / 2)], fill=ink)
    cover = np.asarray(stencil.resize((size, size), Image.Resampling.BOX), np.float32)
    return cover / np.float32(255)


def _polygon(corners: int, radius: float = 1.0, inner: float | None = None) -> Points:
    """Return a regular polygon; with `inner`, a star whose every second corner has that radius."""
    count = corners if inner is None else 2 * corners
    angles = np.arange(count) * (2 * np.pi / count)
    radii = np.full(count, radius)
    if inner is not None:
        radii[1::2] = inner
    return np.stack([np.cos(angles) * radii, np.sin(angles) * radii], axis=1)


def _box(width: float, height: float) -> Points:
    return np.array([[-width, -height], [width, -height], [width, height], [-width, height]])


def _cross() -> Points:
    a, b = 0.95, 0.3
    quarter = np.array([[b, b], [b, a], [-b, a]])
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    return np.concatenate([quarter @ np.linalg.matrix_power(turn, k) for k in range(4)])


_OUTLINES: dict[str, Callable[[], list[Points]]] = {
    "circle": lambda: [_polygon(48, 0.9)],
    "ring": lambda: [_polygon(48), _polygon(48, 0.55)],
    "square": lambda: [_polygon(4)],
    "triangle": lambda: [_polygon(3)],
    "star": lambda: [_polygon(5, 1.0, 0.42)],
    "cross": lambda: [_cross()],
    "crescent": lambda: [_polygon(48), _polygon(48, 0.85) + np.array([0.5, 0.0])],
    "bar": lambda: [_box(0.97, 0.25)],
}
