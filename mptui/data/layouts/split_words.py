"""Words in names of folders and files that say which split they hold, and images or masks."""

import os
import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from mptui.data.folder_format import Found

# Finds splits that the names of images say, where the layout has none: one that is drawn would mix them
# ------------------------------------------------------------------------------------------------------

_LOOKED_AT = 512
_MOST = 0.9
"""Share of the images that must say their split."""


def split_in_names(path: str, found: Found) -> dict[str, int]:
    """Return how many of some images are of each split, by their names or folders; empty: too few say it.

    Words that go with the class of an image, as `test_bench`, are none of a split.

    Args:
        path: The set.
        found: Its images; the names of class folders are not looked at.
    """
    images = found.images
    rows = random.Random(0).sample(range(len(images)), min(_LOOKED_AT, len(images)))
    said = {row: _split_of(os.path.relpath(images[row], path), found) for row in rows}
    counts = Counter(split for split in said.values() if split)
    has_halves = len(counts) > 1 and counts[TRAIN]
    if not has_halves or counts.total() < _MOST * len(rows):
        return {}
    if found.labels is not None and len(found.classes) > 1:
        splits: dict[int, set[str]] = {}
        for row, split in said.items():
            splits.setdefault(int(found.labels[row]), set()).add(split)
        if all(len(each) == 1 for each in splits.values()):
            return {}
    return dict(counts)


def _split_of(name: str, found: Found) -> str:
    folders, stem = os.path.split(os.path.splitext(name)[0])
    parts = folders.split(os.sep)
    if found.labels is not None:
        parts = [part for part in parts if part not in found.classes]
    said = {_plain(folder_words(part).split) for part in parts if folder_words(part).exact}
    said = (said | {_plain(split_of_file(stem))}) - {""}
    return said.pop() if len(said) == 1 else ""


def _plain(split: str) -> str:
    return split if split in {TRAIN, VAL, TEST} else ""


# Words in the names of folders and files that say which split they hold, and images or masks
# -------------------------------------------------------------------------------------------

TRAIN, VAL, TEST, UNLABELLED = "train", "val", "test", "unlabelled"

SPLIT_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("train", "training", "trn"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "validate", "dev", "eval", "evaluation"), VAL),
    **dict.fromkeys(("test", "testing", "tst"), TEST),
    **dict.fromkeys(("pred", "predict", "prediction", "unlabeled", "unlabelled"), UNLABELLED),
}
_IMAGES = frozenset(
    (
        *(
            "image",
            "images",
            "img",
            "imgs",
            "photo",
            "photos",
            "picture",
            "pictures",
            "input",
            "inputs",
            "rgb",
        ),
        *("jpegimages", "leftimg8bit"),
    )
)
_MASKS = frozenset(
    (
        *("mask", "masks", "label", "labels", "annotation", "annotations", "annot", "annots", "gt"),
        *("groundtruth", "seg", "segmentation", "segmentations", "segmask", "segmasks", "trimaps"),
        *("segmentationclass", "segmentationclasspng", "segmentationclassraw", "segmentationclassaug"),
        *("gtfine", "gtcoarse"),
    )
)
_SET_WORDS = frozenset({"set", "data", "dataset", "split", "folder", "dir", "png", "jpg", "tif"})
_TWO_WORDS = {"groundtruth": "gt", "anndir": "annots"}
"""Words that are often written as two."""
_GLUED = re.compile(r"(train|val|test)(annot|images?|masks?|labels?|set|data)\Z")
"""Two words written as one, as in `trainannot` and `trainset`."""
_BEGIN = re.compile(r"(?i)(train|valid|val|test)(\D+)\Z")


@dataclass(frozen=True, slots=True)
class FolderWords:
    """What the name of a folder says of its contents.

    Attributes:
        split: "train", "val", "test" or "unlabelled"; empty: nothing.
        content: "image" or "mask"; empty: nothing.
        exact: Whether the name is nothing but such words.
        rest: The other words of the name.
        subject: The words that say nothing of split or content.
    """

    split: str = ""
    content: str = ""
    exact: bool = False
    rest: tuple[str, ...] = ()
    subject: tuple[str, ...] = ()


def folder_words(name: str) -> FolderWords:
    """Return what the name of a folder says of its contents."""
    words = _words(name)
    splits = {SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS}
    contents = {"image" if word in _IMAGES else "mask" for word in words if word in _IMAGES | _MASKS}
    subject = tuple(word for word in words if word not in {*SPLIT_WORDS, *_IMAGES, *_MASKS, *_SET_WORDS})
    return FolderWords(
        splits.pop() if len(splits) == 1 else "",
        contents.pop() if len(contents) == 1 else "",
        exact=bool(words) and not subject,
        rest=tuple(word for word in words if word not in SPLIT_WORDS),
        subject=subject,
    )


def words_with_glued(name: str) -> FolderWords:
    """Return what the name of a folder says; of one without words of splits, also what it begins with."""
    words = folder_words(name)
    if not words.split and (begin := _BEGIN.match(name)) is not None:
        return FolderWords(SPLIT_WORDS[begin[1].lower()], rest=(begin[2].lower(),))
    return words


def image_and_mask_folders(names: Iterable[str]) -> dict[str, tuple[list[str], list[str]]]:
    """Return the names of folders of images, and of masks, of each split that has both.

    The split is "" for `images` and `masks`; without a word for images, a split has them, as `train` beside
    `trainannot`. If no name is nothing but such words, names of one subject count: `X-Image`, `X-Mask`.
    """
    words = {name: folder_words(name) for name in names}
    if not any(each.exact and each.content for each in words.values()):
        words = _of_one_subject(words)
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for name, each in words.items():
        if each.exact and any((each.content, each.split)):
            found[each.split, each.content].append(name)
    pairs = {}
    for split in ("", TRAIN, VAL, TEST):
        images = found.get((split, "image")) or found.get((split, ""))
        if images and (masks := found.get((split, "mask"))):
            pairs[split] = images, masks
    return pairs


def _of_one_subject(named: Mapping[str, FolderWords]) -> dict[str, FolderWords]:
    """Return names with a subject as exact ones where there is one of images and one of masks for it."""
    contents: defaultdict[tuple[object, str], set[str]] = defaultdict(set)
    for words in named.values():
        contents[words.subject, words.split].add(words.content)
    return {
        name: replace(words, exact=words.exact or {"image", "mask"} <= contents[words.subject, words.split])
        for name, words in named.items()
    }


def split_of_file(name: str) -> str:
    """Return the split that the name of a packed file says: that of the first word that is one; or empty."""
    return next((SPLIT_WORDS[word] for word in _words(name) if word in SPLIT_WORDS), "")


def is_plain_split(name: str) -> bool:
    """Whether a name is one word for a split."""
    return name.lower() in SPLIT_WORDS


def same_text(name: str) -> str:
    """Return a name as Linux types it, composed: systems store an umlaut as one character or as two."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def _words(name: str) -> list[str]:
    """Return the words of a name in lower case; one in two parts, as `ground_truth`, as one."""
    plain = name.lower()
    if plain in _IMAGES or plain in _MASKS:
        return [plain]
    words: list[str] = []
    for word in re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()):
        glued = _GLUED.match(word)
        words += glued.groups() if glued else [word]
    for place, two in enumerate(map("".join, pairwise(words))):
        if two in _TWO_WORDS:
            return [*words[:place], _TWO_WORDS[two], *words[place + 2 :]]
    return words
