"""Refuses a folder that a second layout explains as well as the one that was taken.

Layouts are tried in an order, and the first that fits is taken. What speaks against it is what it leaves out:
packed files that hold samples of the same kind; or a list in the folder that says other things of its images.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mptui.config.schema import DataConfig
from mptui.data.core.parts import joined_files
from mptui.data.formats.folder_format import FolderFormat, Found
from mptui.data.formats.folders.folder_walk import NOT_AN_IMAGE
from mptui.data.formats.known_formats import FORMATS
from mptui.data.formats.lists.image_list import targets_in
from mptui.errors import DataError, MptuiError
from mptui.registry.samples import SampleKind
from mptui.text import clean_name, shell_word, some


@dataclass(frozen=True, slots=True)
class _Rival:
    """A second reading.

    Attributes:
        layout: Name of its format.
        files: What it would read.
        path: The file or folder that has them all.
    """

    layout: str
    files: list[str]
    path: str


def refuse_rivals(path: str, kind: SampleKind, found: Found, data: DataConfig) -> None:
    """Check that no other layout explains a folder as well.

    Args:
        path: The folder.
        kind: Kind of the samples. Packed images alone are no rivals: a folder is often unpacked beside them.
        found: What the layout that was taken has found.
        data: The settings: `data.class_folders` says that folders are the classes.

    Raises:
        DataError: Another layout does.
    """
    is_packed = bool(FORMATS[found.layout].ending)
    by_folders = kind is SampleKind.CLASS and not is_packed
    if kind is SampleKind.IMAGE or not os.path.isdir(path) or (by_folders and data.class_folders != "auto"):  # noqa: PTH112
        return
    rival = next(_packed(path, kind, found), None) or next(_lists(path, kind, found), None)
    if rival is None:
        return
    names = f" in {len(found.classes)} classes: {some(found.classes)}" if found.classes else ""
    hint = "Move one of them out of it"
    if rival.path != path and not is_packed:
        hint += f", or give --data {shell_word(rival.path)} for the second"
    if by_folders:
        hint += ", or add --set data.class_folders=outer if each folder is a class"
    raise DataError(
        f"{clean_name(path)}: two layouts can be meant:\n"
        f"  {found.layout}: {len(found.images):,} images{names}\n"
        f"  {rival.layout}: {some([os.path.relpath(file, path) for file in rival.files])}",
        hint=f"{hint}.",
    )


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
            yield _Rival(name, files, os.path.commonpath(files))


def _kinds(known: FolderFormat, path: str) -> tuple[SampleKind, ...]:
    try:
        kinds = known.recognize(path)
    except MptuiError:  # it can't be read as this
        return ()
    return kinds if isinstance(kinds, tuple) else () if kinds is None else (kinds,)


def _lists(path: str, kind: SampleKind, found: Found) -> Iterator[_Rival]:
    """Yield lists of the folder that group its images otherwise, or give them other masks."""
    for file, targets in targets_in(path, kind):
        listed = {
            os.path.join(path, os.path.relpath(image, path)): target  # noqa: PTH118
            for image, target in targets.items()
        }
        rows = {row: listed[image] for row, image in enumerate(found.images) if image in listed}
        if _differ(found, rows):
            yield _Rival("list of images", [file], file)


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
