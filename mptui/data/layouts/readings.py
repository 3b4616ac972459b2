"""Refuses what can be understood in two ways, and what can't serve a network, with what decides."""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from mptui.data.layouts.split_words import TRAIN, folder_words
from mptui.data.layouts.walk import FolderFiles, has_images, natural_key, split_folders, subfolders
from mptui.errors import DataError, TwoReadingsError
from mptui.io.files import open_regular
from mptui.registry.names import SampleKind
from mptui.text import clean_name, shell_word, some

# Refuses class folders that can be understood in two ways, with both and what decides
# ------------------------------------------------------------------------------------

_PARTS = frozenset({"part", "parts", "batch", "chunk", "fold", "shard", "volume", "disk", "split", "zip"})
_AS_CLASSES = "add --set data.class_folders=outer if each folder is a class"


def refuse_two_readings(path: str, half: str, folders: Mapping[str, FolderFiles]) -> None:
    """Check that each folder of a half is a class, not another part of the set.

    Args:
        path: The set.
        half: The folder with the class folders; `path` itself if the set has no folders of splits.
        folders: The files of each folder, by its name.

    Raises:
        DataError: A folder can be a split, the masks, or a copy of the classes beside it; or its folders can
            be the classes.
    """
    filled = {name: files for name, files in folders.items() if files.direct or files.inner}
    for name, files in filled.items():
        others = [other for other in filled if other != name]
        if reading := _other_part(name, files, others, has_splits=half != path):
            raise TwoReadingsError(
                f"{clean_name(half)}: {clean_name(name)} can be a class, or another part of the set",
                {**reading, "a class": f"{len(filled)} classes: {some(list(filled))}"},
                hint=f"move {clean_name(name)} out of it (splits are DATA/train/CLASS and DATA/val/CLASS), or"
                f" {_AS_CLASSES}",
            )
    _refuse_shared_folders(half, filled)
    _refuse_parts(half, list(filled))


def _other_part(
    name: str, files: FolderFiles, others: Collection[str], *, has_splits: bool
) -> dict[str, str]:
    """Return what else a folder can be; empty: it is a class."""
    if {"image", "mask"} <= {folder_words(inner).content for inner in files.inner}:
        return {"images and masks": f"it has a folder of each: {some(list(files.inner))}"}
    has_folders_alone = files.inner and not files.direct
    if has_folders_alone and {*files.inner} <= {*others}:
        return {"a part": f"it has folders with the names of classes beside it: {some(list(files.inner))}"}
    if any(name.lower() in other.lower() for other in others):  # a pair of classes, as `mask` and `no_mask`
        return {}
    words = folder_words(name)
    if words.exact and words.content == "mask":
        return {"masks": "by its name, it has the masks of the images beside it"}
    is_of_split = words.exact and words.split not in {"", TRAIN}  # a train may be a vehicle
    if is_of_split and not has_splits:
        return {"a split": f"by its name, it is for {words.split}, and the folders beside it for training"}
    return {}


def refuse_links_across(half: str, links: Iterable[str], counts: Mapping[str, int]) -> None:
    """Check that no class consists of links to images in other class folders for the most part.

    Args:
        half: The folder with the class folders.
        links: Links that are left out, as their targets are in the set.
        counts: The number of images of each class.

    Raises:
        DataError: One does.
    """
    real_half = os.path.realpath(half)
    across: dict[str, list[str]] = {}
    for link in filter(os.path.isfile, links):
        own, other = os.path.relpath(link, half), os.path.relpath(os.path.realpath(link), real_half)
        if (name := own.split(os.sep)[0]) in counts and name != other.split(os.sep)[0]:
            across.setdefault(name, []).append(other)
    for name, targets in across.items():
        if len(targets) > counts[name]:
            first, second = clean_name(name), clean_name(targets[0].split(os.sep)[0])
            raise TwoReadingsError(
                f"{clean_name(half)}: {first} has {len(targets)} links to images in {second}",
                {
                    f"of {first}": f"{second} holds the files of other classes, and is none",
                    f"of {second}": f"the links in {first} are none of its samples",
                },
                hint=f"move {second} out of it if links say the classes, or remove the links",
            )


def _refuse_parts(half: str, names: list[str]) -> None:
    """Refuse folders that differ by a number alone, and are called parts: `images_001`, `images_002`."""
    plain = {re.sub(r"[0-9]+", "", name) for name in names}
    words = (
        {*re.findall(r"[a-z]+", next(iter(plain)).lower())} if len(plain) == 1 and len(names) > 1 else set()
    )
    if words & _PARTS or any(folder_words(word).content == "image" for word in words):
        raise TwoReadingsError(
            f"{clean_name(half)}: its folders differ by a number alone, and can be parts or classes",
            {
                "parts of one set": f"{some(names)}: the classes are said elsewhere",
                "classes": f"{len(names)} classes: {some(names)}",
            },
            hint=f"give --data a list of images and labels (LIST.csv), or {_AS_CLASSES}",
        )


def _refuse_shared_folders(half: str, filled: Mapping[str, FolderFiles]) -> None:
    """Refuse folders that all have the same folders in them, two or more."""
    if len(filled) < 2 or any(files.direct for files in filled.values()):
        return
    shared = set.intersection(*({*files.inner} for files in filled.values()))
    if len(shared) > 1:
        raise TwoReadingsError(
            f"{clean_name(half)}: each of its folders has the same folders, and both can be the classes",
            {
                "outer": f"{len(filled)} classes: {some(list(filled))}",
                "inner": f"{len(shared)} classes: {some(sorted(shared))}",
            },
            hint="give --data one of its folders, or a list of images and labels (LIST.csv), if the inner are"
            " the classes; add --set data.class_folders=inner if each of the inner is a class of its own;"
            f" {_AS_CLASSES}",
        )


# Says why the data can't serve a network, and how to convert annotations that are no masks or classes
# ----------------------------------------------------------------------------------------------------

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
        lacks_classes = kinds == (SampleKind.IMAGE,) and kind is SampleKind.CLASS
        if lacks_classes and (splits := _flat_splits(path)):
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
        if '"shapes"' in start and any(key in start for key in ('"imagePath"', '"points"')):
            return "LabelMe"
        if any(key in start for key in ('"images"', '"annotations"', '"categories"')):
            return "COCO"
    if ending == ".xml" and all(tag in start for tag in ("<annotation>", "<object>")):
        return "VOC boxes"
    if ending in {".yaml", ".yml"} and all(key in start for key in ("names:", "train:")):
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
        return f"to train a U-Net, {_MASKS_FROM[name]}; put them into DATA/masks beside DATA/images"
    return (
        "to train on classes, cut the objects out into class folders (DATA/cat/1.jpg), or give --data a list"
        " of images and labels (LIST.csv)"
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
        "sort the images into class folders, give --data a list of images and labels (LIST.csv), or rename"
        " the folders if they are classes"
    )
    lists = sorted((name for name in os.listdir(path) if name.lower().endswith(_LISTS)), key=natural_key)
    if lists:
        file = shell_word(os.path.join(path, lists[0]))
        hint = f"give --data {file}, if it lists the images and their labels; or rename the folders"
    return TwoReadingsError(text, readings, hint=hint)


def _hint(kinds: tuple[SampleKind, ...], kind: SampleKind) -> str:
    if kind is SampleKind.IMAGE:
        return "choose --model unet, or give --data the folder of the images alone"
    if kind is SampleKind.MASK:
        return (
            "a --model unet needs images and their masks: DATA/images/1.jpg and DATA/masks/1.png"
            " (docs/data.md has each layout that is read). Choose another model for classes"
        )
    if kinds == (SampleKind.IMAGE,):
        return (
            "put the images of each class into a folder of its own (DATA/cat/1.jpg), or choose --model "
            "diffusion_unet for images alone, without model.class_conditional"
        )
    return "choose --model unet for masks, diffusion_unet for images alone, and any other for classes"
