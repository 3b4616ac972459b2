"""Refuses a folder that a second layout explains as well as the one that was taken.

Layouts are tried in an order, and the first that fits is taken. What speaks against it is what it leaves out,
or takes for samples: packed files that hold samples of the same kind; a list in the folder that says other
things of its images, or that some are masks; images that are masks of others by their pixels; a split that
the names of images say, where one would be drawn.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mptui.config.schema import DataConfig
from mptui.data.core.parts import joined_files
from mptui.data.formats.folder_format import FolderFormat, Found
from mptui.data.formats.folders.folder_walk import NOT_AN_IMAGE
from mptui.data.formats.folders.masks_by_pixels import mask_among
from mptui.data.formats.folders.split_in_names import split_in_names
from mptui.data.formats.folders.split_words import TEST, TRAIN, VAL
from mptui.data.formats.known_formats import FORMATS
from mptui.data.formats.lists.image_list import targets_in
from mptui.data.scan.scan import ShouldStop
from mptui.errors import DataError, MptuiError, TwoReadingsError
from mptui.registry.samples import SampleKind
from mptui.text import clean_name, shell_word, some

_LIST = "list of images"


@dataclass(frozen=True, slots=True)
class _Rival:
    """A second reading.

    Attributes:
        layout: Name of its format.
        what: What it would read.
        way_out: How to choose it, or to say that it isn't meant; empty: by moving files alone.
    """

    layout: str
    what: str
    way_out: str = ""


def refuse_rivals(
    path: str, kind: SampleKind, found: Found, data: DataConfig, should_stop: ShouldStop
) -> None:
    """Check that no other layout explains a folder as well.

    Args:
        path: The folder.
        kind: Kind of the samples.
        found: What the layout that was taken has found.
        data: The settings: `data.class_folders` says that folders are the classes.
        should_stop: Called several times per second.

    Raises:
        DataError: Another layout does.
        ScanCancelledError: `should_stop` returned True.
    """
    by_folders = kind is SampleKind.CLASS and not FORMATS[found.layout].ending
    if not os.path.isdir(path) or (by_folders and data.class_folders != "auto"):
        return
    if kind is not SampleKind.IMAGE and not found.split:
        _refuse_split_in_names(path, found)
    rival = next(_rivals(path, kind, found, should_stop), None)
    if rival is None:
        return
    names = f" in {len(found.classes)} classes: {some(found.classes)}" if len(found.classes) > 1 else ""
    outer = "add --set data.class_folders=outer if each folder is a class" if by_folders else ""
    hint = ", or ".join(way for way in ("Move one of them out of it", rival.way_out, outer) if way)
    raise DataError(
        f"{clean_name(path)}: two layouts can be meant:\n"
        f"  {found.layout}: {len(found.images):,} images{names}\n  {rival.layout}: {rival.what}",
        hint=f"{hint}.",
    )


def _refuse_split_in_names(path: str, found: Found) -> None:
    if FORMATS[found.layout].ending or not (counts := split_in_names(path, found)):
        return
    named = ", ".join(f"{counts[split]:,} {split}" for split in (TRAIN, VAL, TEST) if split in counts)
    raise TwoReadingsError(
        f"{clean_name(path)}: the names of its images have words of splits",
        {
            "the split is that of the names": f"{named}, as {_named(path, [found.images[0]])}",
            "they say nothing": "a share of all images is held out by the seed",
        },
        hint="Put the images of each split into a folder of its own (DATA/train, DATA/val), or give --data a"
        " list of them (LIST.csv): a column split says which, and without it a share is held out.",
    )


def _rivals(path: str, kind: SampleKind, found: Found, should_stop: ShouldStop) -> Iterator[_Rival]:
    """Yield the second readings of a folder.

    Packed images alone are none: a folder is often unpacked beside them.
    """
    if kind is not SampleKind.IMAGE:
        yield from _packed(path, kind, found)
        yield from _lists(path, kind, found)
    if found.masks is not None or FORMATS[found.layout].ending:
        return
    yield from _lists_of_masks(path, found)
    labelled = kind is SampleKind.CLASS
    if (pair := mask_among(found.images, should_stop, labelled=labelled)) is not None:
        mask, photograph = (_named(path, [file]) for file in (pair.mask, pair.photograph))
        way_out = "rename each mask as its image with _mask at the end, beside it"
        if kind is SampleKind.IMAGE:
            way_out += ", or give --data a list of the images (LIST.csv)"
        whose = "" if pair.by_name else " or of another"
        yield _Rival("images and masks", f"by its pixels, {mask} is the mask of {photograph}{whose}", way_out)


def _packed(path: str, kind: SampleKind, found: Found) -> Iterator[_Rival]:
    """Yield packed files that are left out, and hold samples of the same kind."""
    formats = {name: known for name, known in FORMATS.items() if known.ending}
    endings = tuple(known.ending for known in formats.values())
    packed = [
        file
        for each in found.left_out
        if each.reason == NOT_AN_IMAGE
        for file in each.files
        if file.lower().endswith(endings)
    ]
    for name, known in formats.items():
        files = [file for file in packed if file.lower().endswith(known.ending)]
        if files and kind in _kinds(known, path):
            yield _Rival(name, _named(path, files), _by_path(path, found, os.path.commonpath(files)))


def _kinds(known: FolderFormat, path: str) -> tuple[SampleKind, ...]:
    try:
        kinds = known.recognize(path)
    except MptuiError:  # it can't be read as this
        return ()
    return kinds if isinstance(kinds, tuple) else () if kinds is None else (kinds,)


def _lists(path: str, kind: SampleKind, found: Found) -> Iterator[_Rival]:
    """Yield lists of the folder that group its images otherwise, or give them other masks."""
    for file, targets in targets_in(path, kind):
        listed = {_within(path, image): target for image, target in targets.items()}
        rows = {row: listed[image] for row, image in enumerate(found.images) if image in listed}
        if _differ(found, rows):
            yield _Rival(_LIST, _named(path, [file]), _by_path(path, found, file))


def _lists_of_masks(path: str, found: Found) -> Iterator[_Rival]:
    """Yield lists of the folder by which some of its images are masks of others."""
    for file, targets in targets_in(path, SampleKind.MASK):
        masks = {_within(path, target) for target in targets.values()}
        if (mask := next((image for image in found.images if image in masks), None)) is not None:
            what = f"{_named(path, [file])}: {_named(path, [mask])} is a mask"
            yield _Rival(_LIST, what, _by_path(path, found, file))


def _within(path: str, file: str) -> str:
    """Return a file as a path that begins with that of the set."""
    return os.path.join(path, os.path.relpath(file, path))


def _named(path: str, files: list[str]) -> str:
    return some([os.path.relpath(file, path) for file in files])


def _by_path(path: str, found: Found, rival: str) -> str:
    """Say how to choose the file or folder of a second reading; empty: the first has its files in it, too."""
    if rival == path or FORMATS[found.layout].ending:
        return ""
    return f"give --data {shell_word(rival)} for the second"


def _differ(found: Found, targets: dict[int, str]) -> bool:
    """Whether a list groups the images of some rows otherwise, or gives one of them another mask."""
    if found.masks is not None:
        return any(
            not any(Path(target).samefile(mask) for mask in joined_files(found.masks[row]))
            for row, target in targets.items()
        )
    assert found.labels is not None
    pairs = {(int(found.labels[row]), target) for row, target in targets.items()}
    return not len(pairs) == len({ours for ours, _ in pairs}) == len({theirs for _, theirs in pairs})
