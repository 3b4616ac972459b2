"""Reads masks and maps their pixels to classes; `classes.toml`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import tomli
from PIL import Image, ImageFilter

from mptui.data.address import joined_files, title_of
from mptui.data.decode import (
    load_upright,
    opened,
    orientation_of,
    read_stored,
    stored_size,
    turned,
    upright_rgb,
)
from mptui.data.transforms import resized_mask
from mptui.data.types import IGNORE, BadSampleError, Decoded, Mask, PixelFormat, Pixels
from mptui.errors import DataError
from mptui.text import clean_name

# Reads masks and maps their pixels to classes
# --------------------------------------------
# A pixel's *code* is its value in the file: a grey value, a palette index, or a colour as 0xRRGGBB. A
# `MaskCoding` maps codes to classes; `mptui.data.mask_classes` finds the one that fits a set.

MAX_CODES = 256
MAX_CLASSES = 32_767
"""Largest number of classes of an int16 mask."""

AS_SHOWN, AS_STORED, EITHER = "shown", "stored", "either"
"""Values of `MaskSurvey.fit`."""

_HIGHEST_VALUE = 65_535
_SMALL_NUMBERS = 32
"""Values below are class numbers, not grey values."""
_ALIKE = 2
_AROUND = 3
_UNKNOWN = -2
_SOME_OBJECTS = 4
"""Values of a mask from which it may hold numbers of objects."""
_LOSSY_FORMATS = frozenset({"JPEG", "MPO", "WEBP", "AVIF", "JPEG2000"})

Size = tuple[int, int]
"""Width and height in pixels, in Pillow's order."""


@dataclass(frozen=True, slots=True)
class MaskCoding:
    """Maps codes to classes.

    `indices[i]` is the class of `codes[i]`, or `IGNORE`; `codes` ascend. `by_colour` selects colours or
    values as codes; the same file can be read either way.
    """

    classes: tuple[str, ...]
    codes: tuple[int, ...]
    indices: tuple[int, ...]
    by_colour: bool = False
    upright: bool | None = None
    """Whether masks are upright where their photographs are stored turned and no shape says so."""


@dataclass(frozen=True, slots=True)
class MaskSurvey:
    """The codes of one mask with their pixel counts; `colours` are the palette's colours of the codes.

    Where grey values may be those of compression or of smoothing, `even` counts the pixels of each code whose
    neighbours are alike, and `between` those with a darker and a lighter neighbour. `fit` says to which
    orientation of its photograph the mask's shape fits; empty: the photograph is not stored turned. `regions`
    is the result of `compact_regions`; (0, 0): the mask has few values.
    """

    kind: Literal["grey", "palette", "colour"]
    codes: tuple[int, ...]
    counts: tuple[int, ...]
    colours: tuple[int, ...] = ()
    lossy: bool = False
    even: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    fit: str = ""
    regions: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class MaskedFileRequest:
    """An image file, the file of its mask, and the mask's coding."""

    path: str
    mask_path: str
    coding: MaskCoding
    stored: PixelFormat | None = None
    """The format in which the image is read as it is stored; None: as 8-bit RGB."""

    @property
    def name(self) -> str:
        """The path of the image."""
        return title_of(self.path)

    def read(self, side_hint: int | None = None) -> Decoded:
        """Decode both files, the mask at the size of the image; see `SampleRequest.read`."""
        pixels_HWC, size, orientation = self._image(side_hint)
        mask_HW = self._mask(size, orientation)
        return Decoded(pixels_HWC, mask_HW=resized_mask(mask_HW, pixels_HWC.shape[0], pixels_HWC.shape[1]))

    def _image(self, side_hint: int | None) -> tuple[Pixels, Size, int]:
        """Return the upright image, the size of the file's image, and its orientation there."""
        if self.stored is not None:
            read = read_stored(self.path, self.stored)
            return read.pixels_HWC, read.size, read.orientation
        with opened(self.path, whole=True) as image:
            size = stored_size(image)
            return (pixels := upright_rgb(image, side_hint))[0], size, pixels[1]

    def _mask(self, stored: Size, orientation: int) -> Mask:
        with opened_mask(self.mask_path) as file:
            mask = upright_mask(self.mask_path, file, stored, orientation, upright=self.coding.upright)
            return mask_classes(self.mask_path, mask, self.coding)


@contextmanager
def opened_mask(address: str) -> Iterator[Image.Image]:
    """Open a mask, or the joined masks of one image: what is not 0 in any of them is 255.

    Raises:
        BadSampleError: A file can't be read, or masks differ in size.
    """
    files = joined_files(address)
    if len(files) == 1:
        with opened(address, whole=True) as mask:
            yield mask
        return
    joined_HW: npt.NDArray[np.bool_] | None = None
    for file in files:
        with opened(file, whole=True) as mask:
            marked_HW = _values(file, load_upright(mask)[0]) > 0
        if joined_HW is not None and joined_HW.shape != marked_HW.shape:
            raise BadSampleError(file, "the masks of one image differ in size")
        joined_HW = marked_HW if joined_HW is None else joined_HW | marked_HW
    assert joined_HW is not None
    yield Image.fromarray(joined_HW.astype(np.uint8) * np.uint8(255))


def upright_mask(
    path: str, mask: Image.Image, stored: Size, orientation: int, *, upright: bool | None = None
) -> Image.Image:
    """Decode an opened mask and turn it upright as its image.

    A mask seldom has EXIF data. If it was drawn over the stored image, it is turned like the image; if it was
    drawn over the upright image, it is not turned. Its shape says which, or else its set.

    Args:
        path: The file of the mask.
        mask: That file, opened.
        stored: Size of the image as stored, before its orientation is applied.
        orientation: The EXIF orientation of the image.
        upright: Whether the masks of the set were drawn over upright images; None: no mask's shape fits both.

    Raises:
        BadSampleError: The mask has neither the size nor the shape of the image.
    """
    loaded, own_orientation = load_upright(mask)
    shown = shown_size(stored, orientation)
    fit = fit_of(loaded.size, stored, orientation)
    is_upright = fit == AS_SHOWN or (fit == EITHER and upright)
    if own_orientation == 1 and not is_upright:
        loaded = turned(loaded, orientation)
    if not _same_shape(loaded.size, shown):
        raise BadSampleError(
            title_of(path),
            f"the mask has {loaded.width}x{loaded.height} pixels, its image {shown[0]}x{shown[1]}",
        )
    return loaded


def shown_size(stored: Size, orientation: int) -> Size:
    """Return the size of an image as it is shown, with its EXIF orientation."""
    return stored if orientation < 5 else (stored[1], stored[0])


def fit_of(mask: Size, stored: Size, orientation: int) -> str:
    """Return to which orientation of its photograph the shape of a mask fits; empty: both are one."""
    if orientation == 1:
        return ""
    as_shown, as_stored = _same_shape(mask, shown_size(stored, orientation)), _same_shape(mask, stored)
    if as_shown and as_stored:
        return EITHER
    return AS_SHOWN if as_shown else AS_STORED


def surveyed(path: str, mask: Image.Image, stored: Size, orientation: int) -> MaskSurvey:
    """Decode an opened mask and list its codes, and how it lies to its photograph.

    Args:
        path: The file of the mask.
        mask: That file, opened.
        stored: Size of the photograph as it is stored.
        orientation: Its EXIF orientation.

    Raises:
        BadSampleError: It is not a mask, or not of the shape of the photograph.
    """
    own = orientation_of(mask)
    loaded = upright_mask(path, mask, stored, orientation)
    fit = fit_of(mask.size, stored, orientation) if own == 1 else ""
    return replace(survey(title_of(path), loaded), fit=fit)


def survey(path: str, mask: Image.Image) -> MaskSurvey:
    """List the codes of a decoded mask.

    Raises:
        BadSampleError: It is not a mask: it holds fractions, or far too many values.
    """
    found = _counted(path, mask)
    if found.kind == "colour" or len(found.codes) < _SOME_OBJECTS:
        return found
    return replace(found, regions=compact_regions(_values(path, mask), found.codes))


def _counted(path: str, mask: Image.Image) -> MaskSurvey:
    lossy = mask.format in _LOSSY_FORMATS
    if mask.mode == "F" or mask.mode.startswith("I"):
        values, counts = np.unique(_values(path, mask), return_counts=True)
        _check_count(path, len(values))
        return MaskSurvey("grey", tuple(values.tolist()), tuple(counts.tolist()), lossy=lossy)
    if mask.mode in {"1", "L", "P", "LA"}:
        return _survey_of_bytes(mask, lossy)
    found = mask.convert("RGB").getcolors(MAX_CODES)
    _check_count(path, MAX_CODES + 1 if found is None else len(found))
    counted = sorted((_packed(colour), count) for count, colour in found or [] if isinstance(colour, tuple))
    if all(code % 0x010101 == 0 for code, _ in counted):
        counted = [(code // 0x010101, count) for code, count in counted]
        even, between = _surroundings(_one_channel(mask), [value for value, _ in counted])
        return MaskSurvey("grey", *_columns(counted), lossy=lossy, even=even, between=between)
    return MaskSurvey("colour", *_columns(counted), lossy=lossy)


def _survey_of_bytes(mask: Image.Image, lossy: bool) -> MaskSurvey:
    counted = [(value, count) for value, count in enumerate(_one_channel(mask).histogram()) if count]
    if mask.mode != "P":
        even, between = _surroundings(_one_channel(mask), [value for value, _ in counted])
        return MaskSurvey("grey", *_columns(counted), lossy=lossy, even=even, between=between)
    palette = mask.getpalette("RGB") or []
    colours = tuple(_packed(palette[3 * value : 3 * value + 3]) for value, _ in counted)
    return MaskSurvey("palette", *_columns(counted), colours=colours)


def _surroundings(mask: Image.Image, values: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Count the pixels of each value that are even, and those between their neighbours; see `MaskSurvey`."""
    if len(values) < 3 or values[-1] < _SMALL_NUMBERS:
        return (), ()
    grey_HW = np.asarray(mask).astype(np.int16)
    low_HW, high_HW = (
        np.asarray(mask.filter(each(_AROUND))).astype(np.int16)
        for each in (ImageFilter.MinFilter, ImageFilter.MaxFilter)
    )
    even = np.bincount(grey_HW[high_HW - low_HW <= _ALIKE], minlength=MAX_CODES)
    between = np.bincount(grey_HW[(low_HW < grey_HW) & (grey_HW < high_HW)], minlength=MAX_CODES)
    return tuple(even[values].tolist()), tuple(between[values].tolist())


def mask_classes(path: str, mask: Image.Image, coding: MaskCoding) -> Mask:
    """Return the class of each pixel of a decoded mask.

    Raises:
        BadSampleError: The coding has no class for a pixel.
    """
    codes_HW = _colours(mask) if coding.by_colour else _values(path, mask)
    mask_HW = _lookup(coding, codes_HW)
    if (mask_HW == _UNKNOWN).any():
        code = int(codes_HW[mask_HW == _UNKNOWN][0])
        shown = f"colour #{code:06x}" if coding.by_colour else f"value {code}"
        raise BadSampleError(path, f"{shown} in the mask is none of the {len(coding.classes)} classes")
    return mask_HW


def _lookup(coding: MaskCoding, codes_HW: npt.NDArray[np.int32]) -> Mask:
    if not coding.by_colour:
        table: Mask = _value_table(coding)[codes_HW]
        return table
    codes, indices = np.array(coding.codes), np.array(coding.indices, np.int16)
    places_HW = np.searchsorted(codes, codes_HW).clip(max=len(codes) - 1)
    mask_HW: Mask = np.where(codes[places_HW] == codes_HW, indices[places_HW], np.int16(_UNKNOWN))
    return mask_HW


@lru_cache(maxsize=8)
def _value_table(coding: MaskCoding) -> Mask:
    """Return the class of each value from 0 to 65535."""
    table = np.full(_HIGHEST_VALUE + 1, _UNKNOWN, np.int16)
    table[list(coding.codes)] = coding.indices
    return table


def _values(path: str, mask: Image.Image) -> npt.NDArray[np.int32]:
    if mask.mode == "F" and not np.array_equal(np.asarray(mask), np.rint(np.asarray(mask))):
        raise BadSampleError(path, "the mask holds fractions, where whole numbers are expected")
    values_HW = np.asarray(mask if mask.mode.startswith("I") else _one_channel(mask)).astype(np.int32)
    if values_HW.min() < 0 or values_HW.max() > _HIGHEST_VALUE:
        raise BadSampleError(path, f"the mask holds values outside 0 to {_HIGHEST_VALUE}")
    return values_HW


def _one_channel(mask: Image.Image) -> Image.Image:
    """Return the channel with the values: 1-bit as 0 and 255, palette indices, or grey of grey RGB."""
    if mask.mode in {"L", "P"}:
        return mask
    return mask.convert("L") if mask.mode in {"1", "LA"} else mask.convert("RGB").getchannel(0)


def _colours(mask: Image.Image) -> npt.NDArray[np.int32]:
    rgb_HW3 = np.asarray(mask.convert("RGB")).astype(np.int32)
    codes_HW: npt.NDArray[np.int32] = rgb_HW3 @ np.array([0x010000, 0x000100, 1], np.int32)
    return codes_HW


def _same_shape(a: Size, b: Size) -> bool:
    """Whether two sizes have the same aspect ratio, within a pixel of rounding."""
    return abs(a[0] * b[1] - a[1] * b[0]) <= max(*a, *b)


def _check_count(path: str, count: int) -> None:
    if count > MAX_CODES:
        raise BadSampleError(
            path, f"the mask holds more than {MAX_CODES} values: a photo, or instance numbers?"
        )


def _packed(colour: Sequence[int]) -> int:
    red, green, blue = colour
    return (red << 16) | (green << 8) | blue


def _columns(counted: list[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(code for code, _ in counted), tuple(count for _, count in counted)


# Counts the values of a mask that are one compact region each, as the numbers of objects are
# -------------------------------------------------------------------------------------------

_LARGER_SIDE = 256
"""Side in pixels to which masks are thinned out."""
_FEWEST_PIXELS = 4
_FILLED = 0.4
"""Share of its bounding box that a compact region fills, at least: a disc fills 0.79."""


def compact_regions(values_HW: npt.NDArray[np.int32], codes: Sequence[int]) -> tuple[int, int]:
    """Return the number of values above 0 with some pixels, and how many of them are one compact region.

    Args:
        values_HW: The value of each pixel.
        codes: All values that occur, ascending.
    """
    step = max(1, max(values_HW.shape) // _LARGER_SIDE)
    thin_HW = values_HW[::step, ::step]
    place_N = np.searchsorted(np.array(codes), thin_HW.ravel())
    area = np.bincount(place_N, minlength=len(codes))
    box = np.ones(len(codes), np.int64)
    for axis, size in enumerate(thin_HW.shape):
        at_N = np.indices(thin_HW.shape, np.int32)[axis].ravel()
        first, last = np.full(len(codes), size), np.full(len(codes), -1)
        np.minimum.at(first, place_N, at_N)
        np.maximum.at(last, place_N, at_N)
        box *= np.maximum(last - first + 1, 1)
    looked_at = (np.array(codes) > 0) & (area >= _FEWEST_PIXELS)
    return int(looked_at.sum()), int((looked_at & (area >= _FILLED * box)).sum())


# Reads `classes.toml`: the classes of a set's masks, by value or by colour
# -------------------------------------------------------------------------
#     road = 1                              one value
#     car = "2, 5-7"                        several values, and ranges of them
#     tree = [128, 64, 128]                 one colour
#     sky = [[0, 0, 255], [0, 0, 200]]      several colours
#     ignore = 255                          what loss and metrics leave out, in the same forms
#
# Without a class, the file says only what to ignore.

CLASS_FILE = "classes.toml"
EXAMPLE = 'a line for each class: `road = 1`, `road = "1, 5-7"`, or `road = [128, 64, 128]`'

_IGNORE = "ignore"
_HIGHEST = 65_535
_PARTS = 3


@dataclass(frozen=True, slots=True)
class ClassFile:
    """The contents of a class file: the codes of each class, in its order, and the ignored ones."""

    path: Path
    codes: dict[str, tuple[int, ...]]
    ignored: tuple[int, ...]
    by_colour: bool

    def coding(self) -> MaskCoding:
        """Return the coding of the classes; they must be there.

        Raises:
            DataError: There is only one class, or too many; or two have one value.
        """
        if len(self.codes) < 2:
            raise DataError(
                f"{self.path}: two or more classes are expected, all by value or all by colour",
                hint=f"write {EXAMPLE}",
            )
        if len(self.codes) > MAX_CLASSES:
            raise DataError(
                f"{self.path}: {len(self.codes):,} classes, but masks can hold {MAX_CLASSES:,}",
                hint="list fewer classes",
            )
        names = tuple(self.codes if self.by_colour else sorted(self.codes, key=self.codes.__getitem__))
        pairs = [(code, names.index(name)) for name in names for code in self.codes[name]]
        return self.with_ignored(
            MaskCoding(tuple(map(clean_name, names)), *_code_columns(self.path, pairs), self.by_colour)
        )

    def with_ignored(self, coding: MaskCoding) -> MaskCoding:
        """Return a coding that ignores the ignored values, too.

        Raises:
            DataError: One of them is a class.
        """
        if not self.ignored:
            return coding
        pairs = [*zip(coding.codes, coding.indices, strict=True), *((code, IGNORE) for code in self.ignored)]
        codes, indices = _code_columns(self.path, pairs)
        return MaskCoding(coding.classes, codes, indices, coding.by_colour)


def read_class_file(path: Path) -> ClassFile:
    """Read a class file.

    Raises:
        DataError: It can't be read, or an entry is neither values nor colours.
    """
    try:
        table = tomli.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}", hint=f"write {EXAMPLE}") from error
    found = {name: _codes(path, name, value) for name, value in table.items()}
    if not found or len({by_colour for _, by_colour in found.values()}) > 1:
        raise DataError(
            f"{path}: two or more classes are expected, all by value or all by colour",
            hint=f"write {EXAMPLE}",
        )
    codes = {name: each for name, (each, _) in found.items()}
    ignored = codes.pop(_IGNORE, ())
    return ClassFile(path, codes, ignored, next(by_colour for _, by_colour in found.values()))


def _code_columns(path: Path, pairs: list[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    pairs = sorted(pairs)
    codes = tuple(code for code, _ in pairs)
    if len(set(codes)) < len(codes):
        raise DataError(
            f"{path}: two classes have the same value or colour", hint="give each a different one"
        )
    return codes, tuple(index for _, index in pairs)


def _codes(path: Path, name: str, value: object) -> tuple[tuple[int, ...], bool]:
    """Return the codes of an entry, and whether they are colours.

    Raises:
        DataError: It is neither values nor colours.
    """
    colour = _colour(value)
    if colour is not None:
        return (colour,), True
    colours = [_colour(each) for each in value] if isinstance(value, list) else []
    if colours and None not in colours:
        return tuple(colour for colour in colours if colour is not None), True
    values = _written_values(value)
    if values is None:
        raise DataError(
            f"{path}: {name} = {value!r} is neither a value nor a colour", hint=f"write {EXAMPLE}"
        )
    return values, False


def _colour(value: object) -> int | None:
    match value:
        case [int(red), int(green), int(blue)] if all(0 <= part <= 255 for part in (red, green, blue)):
            return (red << 16) | (green << 8) | blue
    return None


def _written_values(value: object) -> tuple[int, ...] | None:
    """Return values: a number, a text of numbers and ranges, or a list of such, but not of three numbers."""
    parts = value if isinstance(value, list) else [value]
    if len(parts) == _PARTS and all(isinstance(part, int) for part in parts):
        return None  # three numbers outside 0 to 255 are a mistaken colour
    found: list[int] = []
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, int | str):
            return None
        for text in str(part).split(","):
            ends = [end.strip() for end in text.split("-", 1)]
            if not all(map(str.isdecimal, ends)):
                return None
            found += range(int(ends[0]), min(int(ends[-1]), _HIGHEST + 1) + 1)
    return tuple(found) if found and max(found) <= _HIGHEST else None
