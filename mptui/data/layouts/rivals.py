"""Refuses a folder that a second layout explains as well as the one that was taken.

Layouts are tried in an order, and the first that fits is taken. What speaks against it is what it leaves out,
or takes for samples: packed files that hold samples of the same kind; a list in the folder that says other
things of its images, or that some are masks; a second set of masks, or of class folders; images that are
masks of others by their pixels; a split that the names of images say, where one would be drawn.

A folder of samples of another kind than the network needs can have a layout of that kind, too: then both are
named.
"""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mptui.config.schema import DataConfig
from mptui.data.address import joined_files
from mptui.data.folder_format import FolderFormat, Found
from mptui.data.layouts.class_folders import BESIDE_SPLITS
from mptui.data.layouts.image_list import targets_in
from mptui.data.layouts.known import FORMATS, layout_of, recognize, serves
from mptui.data.layouts.masks_by_pixels import mask_among
from mptui.data.layouts.pairs import OUTSIDE, masks_by_name, without_pairs
from mptui.data.layouts.readings import wrong_kind
from mptui.data.layouts.split_words import TEST, TRAIN, VAL, folder_words, split_in_names
from mptui.data.layouts.walk import NOT_AN_IMAGE, natural_key, split_folders, walk_images
from mptui.data.scan import ShouldStop
from mptui.errors import DataError, MptuiError, TwoReadingsError
from mptui.registry.names import SampleKind
from mptui.text import clean_name, shell_word, some

_LIST = "list of images"
_STRAY = 2
"""Images beside those of the splits that are left out without a question."""
_COMPARED = 256
_OTHER_KINDS = re.compile(r"(?i)instance|object|colou?r|rgb|panoptic|visuali[sz]|overlay|depth|edge|boundar")


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
    path: str, kind: SampleKind, found: Found, data: DataConfig, *, should_stop: ShouldStop
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
    is_chosen = by_folders and data.class_folders != "auto"
    if is_chosen or not os.path.isdir(path):
        return
    if kind is not SampleKind.IMAGE and not found.split:
        _refuse_split_in_names(path, found)
    rival = next(_rivals(path, kind, found, should_stop), None)
    if rival is None:
        return
    names = f" in {len(found.classes)} classes: {some(found.classes)}" if len(found.classes) > 1 else ""
    split = f" of {found.split}" if found.split else ""
    which = "the splits alone are meant" if split else "each folder is a class"
    outer = f"add --set data.class_folders=outer if {which}" if by_folders else ""
    hint = ", or ".join(way for way in ("move one of them out of it", rival.way_out, outer) if way)
    raise TwoReadingsError(
        f"{clean_name(path)}: two layouts can be meant",
        {found.layout: f"{len(found.images):,} images{names}{split}", rival.layout: rival.what},
        hint=f"{hint}",
    )


def refused_by_kind(what: str, path: str, kinds: tuple[SampleKind, ...], kind: SampleKind) -> DataError:
    """Return the error for data of another kind than the network needs; it names a layout of that kind.

    Args:
        what: The data, as the person named it.
        path: Its folder; empty: it has none.
        kinds: What its samples are.
        kind: What the network needs.
    """
    rival = next(_of_kind(path, kind), None) if os.path.isdir(path) else None
    if rival is None:
        return wrong_kind(what, path, kinds, kind)
    has = " and ".join(each.value for each in kinds)
    hint = ", or ".join(way for way in ("move one of them out of it", rival.way_out) if way)
    return TwoReadingsError(
        f"{clean_name(what)} has {has}, but the model needs {kind.value}, and two layouts can be meant",
        {layout_of(recognize(path)[0]): f"it has {has}", rival.layout: rival.what},
        hint=f"{hint}",
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
        hint="put the images of each split into a folder of its own (DATA/train, DATA/val), or give --data a"
        " list of them (LIST.csv): a column split says which, and without it a share is held out",
    )


def _rivals(path: str, kind: SampleKind, found: Found, should_stop: ShouldStop) -> Iterator[_Rival]:
    """Yield the second readings of a folder.

    Packed images alone are none: a folder is often unpacked beside them.
    """
    if kind is not SampleKind.IMAGE:
        yield from _packed(path, kind, found)
        yield from _lists(path, kind, found)
    yield from _second_set(path, kind, found)
    if found.masks and not FORMATS[found.layout].ending:
        yield from _other_masks(path, found, should_stop)
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


def _second_set(path: str, kind: SampleKind, found: Found) -> Iterator[_Rival]:
    """Yield what the images that are left out, as they lie elsewhere, would be by themselves."""
    left = [file for each in found.left_out if each.reason in {OUTSIDE, BESIDE_SPLITS} for file in each.files]
    if kind is SampleKind.MASK:
        yield from _masks(path, left, "a second set of masks")
        return
    folders = {os.path.dirname(image) for image in found.images} if left else set[str]()
    parts = {name for folder in folders for name in os.path.relpath(folder, path).split(os.sep)}
    rest = [file for file in left if not _is_explained(os.path.relpath(file, path), parts)]
    if kind is SampleKind.CLASS:
        yield from _class_folders(path, without_pairs(path, rest), "class folders beside them")
        return
    masks = masks_by_name(path, rest)
    rest = [file for file in rest if file not in masks]
    if len(rest) > _STRAY:
        what = f"with {len(rest):,} more, as {_named(path, [min(rest)])}; a share is held out by the seed"
        yield _Rival("all images", what, "give --data LIST.csv with a column split")


def _is_explained(file: str, parts: Collection[str]) -> bool:
    """Whether a file lies in a folder of another split, or in a copy of what the splits have."""
    folders = os.path.dirname(file).split(os.sep)
    return bool(folder_words(folders[0]).split) or folders[-1] in parts


def _of_kind(path: str, kind: SampleKind) -> Iterator[_Rival]:
    """Yield the readings of a folder as samples of a kind that its first layout does not have."""
    images = [*walk_images(path)]
    if kind is SampleKind.MASK:
        yield from _masks(path, images, "masks by their names")
    rest = without_pairs(path, images)
    if kind is SampleKind.CLASS:
        yield from _class_folders(path, rest, "class folders")
    if kind is SampleKind.IMAGE and rest:
        yield _Rival("images alone", f"{len(rest):,} images, as {_named(path, [min(rest)])}")
    for name, known in FORMATS.items():
        if known.ending and serves(_kinds(known, path), kind):
            yield _Rival(name, f"they have {kind.value}")
    for file, _ in targets_in(path, kind):
        yield _Rival(_LIST, _named(path, [file]), f"give --data {shell_word(file)} for the second")


def _masks(path: str, images: Sequence[str], layout: str) -> Iterator[_Rival]:
    if masks := [*masks_by_name(path, images)]:
        yield _Rival(layout, f"{len(masks):,} masks, as {_named(path, masks[:1])}")


def _class_folders(path: str, images: Sequence[str], layout: str) -> Iterator[_Rival]:
    """Yield the reading of some images by the folders that they lie in, if there are two."""
    folders = [os.path.dirname(os.path.relpath(image, path)).split(os.sep) for image in images]
    splits = {name for names in split_folders({each[0] for each in folders}).values() for name in names}
    folders = [each[1:] if each[0] in splits else each for each in folders]
    names = sorted({each[0] for each in folders if each and each[0]}, key=natural_key)
    if len(names) > 1:
        what = f"{len(images):,} images in {len(names)} classes: {some([*map(clean_name, names)])}"
        yield _Rival(layout, what)


def _other_masks(path: str, found: Found, should_stop: ShouldStop) -> Iterator[_Rival]:
    """Yield folders beside those of the masks that are left out, and have masks by their pixels.

    Pictures of another kind, as the colours or the objects of masks, are told by the name of their folder.
    """
    assert found.masks is not None
    ends = (joined_files(found.masks[row])[0] for row in {0, len(found.masks) - 1})
    parents = {os.path.dirname(os.path.dirname(file)) for file in ends}
    folders: dict[str, list[str]] = {}
    for file in (file for each in found.left_out if each.reason == OUTSIDE for file in each.files):
        folders.setdefault(os.path.dirname(file), []).append(file)
    for folder, files in folders.items():
        if os.path.dirname(folder) in parents and not _OTHER_KINDS.search(os.path.basename(folder)):
            images = [*islice(found.images, _COMPARED), *sorted(files)[:_COMPARED]]
            if (pair := mask_among(images, should_stop)) is not None and pair.mask in files:
                what = f"{_named(path, [pair.mask])} is a mask by its pixels, and {len(files):,} are left out"
                yield _Rival("other masks", what, "give --data a list of images and masks (LIST.csv)")


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
    """Yield lists of the folder that group its images otherwise, or give them or others other masks."""
    for file, targets in targets_in(path, kind):
        listed = {_within(path, image): target for image, target in targets.items()}
        rows = {row: listed[image] for row, image in enumerate(found.images) if image in listed}
        known = {*found.test, *(problem.path for problem in found.unpaired)}
        others = kind is SampleKind.MASK and len(rows) < len(listed.keys() - known)
        if others or _differ(found, rows):
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
