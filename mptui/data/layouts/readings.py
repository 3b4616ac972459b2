"""Says why the data can't serve a network, and how to convert annotations that are no masks or classes."""

import os
from collections.abc import Iterator
from itertools import islice

from mptui.data.formats.folders.folder_walk import has_images
from mptui.data.formats.layout import natural_key, split_folders, subfolders
from mptui.errors import DataError, TwoReadingsError
from mptui.registry.samples import SampleKind
from mptui.regular import open_regular
from mptui.text import clean_name

_LOOKED_AT = 400
"""Files looked at for annotations."""
_START = 4096
_LISTS = (".csv", ".tsv", ".parquet")

_MASKS_FROM = {
    "COCO": "draw masks from it: COCO(FILE).annToMask(annotation) of pycocotools, times category_id",
    "YOLO": "draw its boxes or polygons as masks (ultralytics' segments, cv2.fillPoly), a PNG an image",
    "LabelMe": "convert it: labelme_export_json, or cv2.fillPoly of each shape's points, a PNG an image",
    "VOC boxes": "draw masks from its boxes; sets with SegmentationClass are read as they are",
}


def wrong_kind(what: str, path: str, kinds: tuple[SampleKind, ...], kind: SampleKind) -> DataError:
    """Return the error for data of another kind than the network needs.

    Args:
        what: The data, as the person named it.
        path: Its folder; empty: it has none.
        kinds: What its samples are.
        kind: What the network needs.
    """
    has = " and ".join(each.value for each in kinds)
    text = f"{clean_name(what)} has {has}, but the model needs {kind.value}"
    if kind is not SampleKind.IMAGE and path:
        if (found := next(annotations(path), None)) is not None:
            name, file = found
            text = f"{text}\n  {clean_name(file)} is an annotation of {name}, which is not read"
            return DataError(text, hint=_annotation_hint(name, kind))
        if kinds == (SampleKind.IMAGE,) and kind is SampleKind.CLASS and (splits := _flat_splits(path)):
            return _no_class_folders(text, path, splits)
    return DataError(text, hint=_hint(kinds, kind))


def annotations(path: str) -> Iterator[tuple[str, str]]:
    """Yield annotation files in a folder that are recognized but not read: their format, and their path."""
    for file in islice(_small_files(path), _LOOKED_AT):
        name = _format_of(file)
        if name is not None:
            yield name, file


def _small_files(path: str) -> Iterator[str]:
    """Yield text files in a folder and in its folders, a few of each."""
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(each for each in folders if not each.startswith("."))[:20]
        texts = (
            file
            for file in sorted(files)
            if file.lower().endswith((".json", ".txt", ".xml", ".yaml", ".yml"))
        )
        yield from (os.path.join(folder, file) for file in islice(texts, 5))


def _format_of(file: str) -> str | None:
    try:
        with open(file, encoding="utf-8", errors="replace", opener=open_regular) as opened:
            start = opened.read(_START)
    except OSError:
        return None
    ending = os.path.splitext(file)[1].lower()
    if ending == ".json":
        if '"shapes"' in start and ('"imagePath"' in start or '"points"' in start):
            return "LabelMe"
        if '"images"' in start or '"annotations"' in start or '"categories"' in start:
            return "COCO"
    if ending == ".xml" and "<annotation>" in start and "<object>" in start:
        return "VOC boxes"
    if ending in {".yaml", ".yml"} and "names:" in start and "train:" in start:
        return "YOLO"
    if ending == ".txt" and _are_boxes(start):
        return "YOLO"
    return None


def _are_boxes(text: str) -> bool:
    """Whether the lines of a text are a class number and coordinates from 0 to 1."""
    lines = [line.split() for line in text.splitlines()[:-1] or text.splitlines()]
    try:
        return bool(lines) and all(
            len(line) >= 5 and line[0].isdecimal() and all(0 <= float(part) <= 1 for part in line[1:])
            for line in lines
        )
    except ValueError:
        return False


def _annotation_hint(name: str, kind: SampleKind) -> str:
    if kind is SampleKind.MASK:
        return f"To train a U-Net, {_MASKS_FROM[name]}; put them into DATA/masks beside DATA/images."
    return (
        "To train on classes, cut the objects out into class folders (DATA/cat/1.jpg), or give --data a list"
        " of images and labels (LIST.csv)."
    )


def _flat_splits(path: str) -> list[str]:
    """Return the folders named as splits whose images have no class folders."""
    inside = subfolders(path)
    names = [name for each in split_folders(inside).values() for name in each]
    filled = [name for name in names if has_images(inside[name])]
    return filled if len(filled) > 1 else []


def _no_class_folders(text: str, path: str, splits: list[str]) -> DataError:
    named = " and ".join(map(clean_name, splits[:2]))
    readings = {
        "splits": f"{named} are splits by name, without class folders as {clean_name(splits[0])}/CLASS",
        "classes": f"{named} are the classes",
    }
    hint = (
        "Sort the images into class folders, give --data a list of images and labels (LIST.csv), or rename"
        " the folders if they are classes."
    )
    lists = sorted((name for name in os.listdir(path) if name.lower().endswith(_LISTS)), key=natural_key)
    if lists:
        file = clean_name(os.path.join(path, lists[0]))
        hint = f"Give --data {file}, if it lists the images and their labels; or rename the folders."
    return TwoReadingsError(text, readings, hint=hint)


def _hint(kinds: tuple[SampleKind, ...], kind: SampleKind) -> str:
    if kind is SampleKind.IMAGE:
        return "Choose --model unet, or give --data the folder of the images alone."
    if kind is SampleKind.MASK:
        return (
            "A --model unet needs images and their masks: DATA/images/1.jpg and DATA/masks/1.png"
            " (docs/data.md has each layout that is read). Choose another model for classes."
        )
    if kinds == (SampleKind.IMAGE,):
        return (
            "Put the images of each class into a folder of its own (DATA/cat/1.jpg), or choose --model "
            "diffusion_unet for images alone, without model.class_conditional."
        )
    return "Choose --model unet for masks, diffusion_unet for images alone, and any other for classes."
