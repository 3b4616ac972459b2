"""Lists images with their masks, in folders or beside each other, matched by name, without decoding them."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from mptui.data.address import joined_address, joined_files
from mptui.data.dataset import PathTable
from mptui.data.folder_format import Found
from mptui.data.layouts.split_words import (
    SPLIT_WORDS,
    TEST,
    TRAIN,
    VAL,
    folder_words,
    image_and_mask_folders,
    same_text,
    words_with_glued,
)
from mptui.data.layouts.walk import (
    IMAGES_AND_MASKS,
    FolderWalk,
    check_folder,
    find_splits,
    has_images,
    subfolders,
    walk_images,
)
from mptui.data.masks import CLASS_FILE
from mptui.data.types import Problem
from mptui.errors import DataError, TwoReadingsError
from mptui.text import clean_name, shell_word, some

# Recognizes masks by names: beside their images, as `1.png` and `1_mask.png`, or in a folder of masks
# ----------------------------------------------------------------------------------------------------

BESIDE = "is a mask by its name, beside its image"
IN_FOLDER = "lies in a folder of masks, beside one of images"
MASK_WORDS = (b"mask", b"label", b"annot", b"gt", b"ground", b"seg", b"trimap")
"""What the path of a mask holds that a name tells; in lower case."""

_LOOKED_AT = 4096
_MASK = re.compile(r"(?ai)[-_. ](?:masks?|segmentation|annotation|groundtruth|gt)(?P<number>[-_]?[0-9]+)?\Z")


def has_masks_beside(path: str) -> bool:
    """Whether images in a folder have masks beside them, by the first images of it."""
    return bool(masks_beside(islice(walk_images(path), _LOOKED_AT)))


def masks_by_name(root: str, paths: Sequence[str]) -> dict[str, str]:
    """Return the reason by which each of some images is a mask, of those that are.

    Args:
        root: Folder in which all images are; names above it and its own say nothing.
        paths: The images.
    """
    found = {mask: BESIDE for masks in masks_beside(paths).values() for mask in masks}
    if folders := _pair_folders(root, paths)[1]:
        found |= {path: IN_FOLDER for path in paths if os.path.dirname(path) in folders}
    return found


def without_pairs(root: str, paths: Sequence[str]) -> list[str]:
    """Return the images that are no masks by their names, and in no folder of images beside one of masks."""
    masks, folders = masks_by_name(root, paths), _pair_folders(root, paths)[0]
    return [path for path in paths if path not in masks and os.path.dirname(path) not in folders]


def masks_beside(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return the masks of each image that has some in its own folder, by the path of the image."""
    stems: dict[str, str] = {}
    named: list[tuple[str, str]] = []
    for path in paths:
        stem = os.path.splitext(path)[0]
        if (found := _MASK.search(stem)) is not None:
            named.append((same_text(stem[: found.start()]), path))
        stems[same_text(stem)] = path
    found_masks: dict[str, list[str]] = {}
    for owner, mask in named:
        if (image := stems.get(owner)) is not None:
            found_masks.setdefault(image, []).append(mask)
    return found_masks


def _pair_folders(root: str, paths: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the folders of images beside one of masks, and those of masks, with the folders in them."""
    above = {folder: [*_down_to(root, folder)] for folder in dict.fromkeys(map(os.path.dirname, paths))}
    inside: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for places in above.values():
        for place in places:
            parent, name = os.path.split(place)
            inside[parent][name] = None
    images, masks, halves = set[str](), set[str](), set[str]()
    for parent, names in inside.items():
        for image_names, mask_names in image_and_mask_folders(names).values():
            masks.update(os.path.join(parent, name) for name in mask_names)
            for name in image_names:
                (images if folder_words(name).content else halves).add(os.path.join(parent, name))
    return (
        {folder for folder, at in above.items() if folder in halves or not images.isdisjoint(at)},
        {folder for folder, at in above.items() if not masks.isdisjoint(at)},
    )


def _down_to(root: str, folder: str) -> Iterable[str]:
    """Yield a folder and those above it, below `root`."""
    while len(folder) > len(root):
        yield folder
        folder = os.path.dirname(folder)


# Finds the folders of images and of their masks, for each split, in the layouts that people use
# ----------------------------------------------------------------------------------------------
# DATA/images, DATA/masks                          and the same under DATA/train and DATA/val
# DATA/images/training, DATA/annotations/training  as ADE20K DATA/leftImg8bit/train, DATA/gtFine/train
# as Cityscapes DATA/train, DATA/trainannot                      as CamVid; DATA/train_images,
# DATA/train_masks DATA/JPEGImages, DATA/SegmentationClass          as VOC, split by the lists in
# DATA/ImageSets/Segmentation DATA/ID/images/ID.png, DATA/ID/masks/*.png       a folder for each image, its
# masks are joined DATA/fold1/images, DATA/fold1/masks, DATA/fold2/…   parts of a set DATA/X-Train-Input,
# DATA/X-Train-GroundTruth     names that differ by such words alone


@dataclass(frozen=True, slots=True)
class PairFolders:
    """The folders of one split.

    Attributes:
        images: Folder of the images.
        masks: Folder of their masks.
        each: For a folder for each image, or for each part of the set: pairs of the two; then `images` and
            `masks` hold them all.
    """

    images: str
    masks: str
    each: tuple[tuple[str, str], ...] = ()


def pair_folders(path: str) -> dict[str, PairFolders]:
    """Return the folders of images and masks of each split; under "" if there are no splits, or none at all.

    Raises:
        DataError: A folder can't be listed, or two folders can hold the masks.
    """
    inside = subfolders(path)
    by_content = _by_content(path, inside)
    by_split = _by_split(inside)
    halves = {split: found[""] for split, at in by_split.items() if "" in (found := pair_folders(at))}
    if (own := by_content.get("")) is not None or TRAIN in by_content:
        first = by_content[TRAIN] if own is None else own
        if TRAIN in halves and all(map(has_images, (halves[TRAIN].images, first.masks))):
            raise _two_sets(path, first, halves[TRAIN])
        if own is None:
            return by_content
        if VAL in halves and TRAIN not in halves:
            return {TRAIN: own, **halves}
        return _split_inside(own) or {"": own}
    if TRAIN in halves:
        return halves
    each = _folder_an_image(path, inside)
    return {} if each is None else {"": each}


def has_pairs(path: str) -> bool:
    """Whether a folder has images and masks in folders of their own."""
    found = pair_folders(path)
    first = found.get(TRAIN) or found.get("")
    return first is not None and has_images(first.masks) and has_images(first.images)


def _by_content(path: str, inside: Mapping[str, str]) -> dict[str, PairFolders]:
    """Return the folders by the words in their names: `images` and `masks`, `train` and `trainannot`."""
    return {
        split: PairFolders(
            inside[_only(path, "images", images, inside)], inside[_only(path, "masks", masks, inside)]
        )
        for split, (images, masks) in image_and_mask_folders(inside).items()
    }


def _two_sets(path: str, first: PairFolders, second: PairFolders) -> TwoReadingsError:
    folders = [
        " and ".join(clean_name(os.path.relpath(at, path)) for at in (each.images, each.masks))
        for each in (first, second)
    ]
    return TwoReadingsError(
        f"{clean_name(path)}: two sets of images and masks can be meant",
        {"one": folders[0], "the other, with splits": folders[1]},
        hint="move one of them out of it",
    )


def _only(path: str, what: str, names: list[str], inside: Mapping[str, str]) -> str:
    """Return the only one of several folders that has images.

    Raises:
        DataError: Several have.
    """
    filled = [name for name in names if len(names) == 1 or has_images(inside[name])] or names[:1]
    if len(filled) > 1:
        first, second = map(clean_name, filled[:2])
        raise TwoReadingsError(
            f"{clean_name(path)}: two folders can be those of the {what}",
            {
                first: f"has the {what}, and {second} is left out",
                second: f"has them, and {first} is left out",
            },
            hint="move one of them out of it",
        )
    return filled[0]


def _by_split(inside: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, at in inside.items():
        words = folder_words(name)
        is_split_alone = words.exact and not words.content
        if is_split_alone and words.split in (TRAIN, VAL, TEST):
            found.setdefault(words.split, at)
    return found


def _split_inside(own: PairFolders) -> dict[str, PairFolders] | None:
    """Return the splits that folders of images and masks have inside, as `images/training`."""
    images, masks = _by_split(subfolders(own.images)), _by_split(subfolders(own.masks))
    if TRAIN not in images or TRAIN not in masks:
        return None
    return {
        split: PairFolders(images[split], masks[split])
        for split in (TRAIN, VAL, TEST)
        if split in images and split in masks
    }


def _folder_an_image(path: str, inside: Mapping[str, str]) -> PairFolders | None:
    """Return the folders of a set with a folder for each image, or each part: its images, and its masks."""
    each = []
    for at in inside.values():
        own = _by_content(at, subfolders(at)).get("")
        if own is None:
            return None
        each.append((own.images, own.masks))
    return PairFolders(path, path, tuple(each)) if each else None


def listed_splits(path: str) -> dict[str, frozenset[str]]:
    """Return the names of each split in VOC's lists (`ImageSets/Segmentation/train.txt`); empty without them.

    Raises:
        DataError: A list can't be read.
    """
    folder = os.path.join(path, "ImageSets", "Segmentation")
    found = {split: _names(os.path.join(folder, f"{split}.txt")) for split in (TRAIN, VAL, TEST)}
    return {split: frozenset(names) for split, names in found.items() if names} if found[TRAIN] else {}


def _names(file: str) -> Iterable[str]:
    if not os.path.isfile(file):
        return ()
    try:
        with open(file, encoding="utf-8-sig") as lines:
            return [line.split()[0] for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(
            f"{clean_name(file)}: {clean_name(str(error))}", hint="write the name of an image a line"
        ) from error


# Lists images with their masks, matched by name, without decoding them
# ---------------------------------------------------------------------

_WITHOUT_IMAGE = "is a mask without an image"
_NO_MASK = "has no mask"
_UNLISTED = "is in no list of ImageSets/Segmentation"
OUTSIDE = "lies in no folder of images or masks"
_OTHER_KIND = "is a picture of the same mask of another kind"

_SUFFIX = re.compile(r"(?ai)[-_.](masks?|labels?|gt|seg(mentation)?|annotation)\Z")
_NUMBERED = re.compile(r"(?ai)([-_.](?:masks?|labels?|gt|seg(?:mentation)?|annotation))[-_]?[0-9]+\Z")
_CONTENT = r"(?:leftimg8bit|gtfine|gtcoarse|images?|imgs?|masks?|labels?|annotations?|gt|seg(?:mentation)?|L)"
_KIND = r"(?:_(?:labeltrainids|labelids))?"
_AFFIX = re.compile(rf"(?ai)(?:(?<=/)|\A){_CONTENT}[-_.]|[-_.]{_CONTENT}{_KIND}\Z|_label(?:train)?ids\Z")
_OTHER_PICTURES = re.compile(r"(?i)_(color|instanceids|instancetrainids)\Z")
_TRAIN_IDS = re.compile(r"(?i)_labeltrainids\Z")
_ANY_IDS = re.compile(r"(?i)_labelids\Z")


@dataclass(slots=True)
class _Pairs:
    images: list[str] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    unpaired: list[str] = field(default_factory=list)
    joined: int = 0
    """Number of images whose masks are joined."""


def find_pairs(path: str) -> Found:
    """List images and masks in folders of their own, for each split.

    A mask has the name of its image, optionally with a suffix such as `_mask` or `_label`; if no mask has,
    words such as `img` and `mask` and zeros before numbers are left out of the comparison.

    Raises:
        DataError: A folder is missing, an image has two masks, or no image has one.
    """
    check_folder(path)
    folders = pair_folders(path)
    if TRAIN not in folders and "" not in folders:
        raise DataError(
            f"{clean_name(path)}: needs a folder of images and one of masks\n  layout: {IMAGES_AND_MASKS}",
            hint="give it both, side by side",
        )
    walk = FolderWalk(path)
    pairs = {split: _pairs_of(walk, each) for split, each in folders.items()}
    lists = listed_splits(path) if "" in pairs else {}
    if lists:
        pairs = _by_lists(walk, pairs[""], lists)
    return _found(path, walk, pairs, _origin(folders, lists))


def count_pairs(path: str, most: int) -> tuple[int, bool]:
    """Count up to `most` training images, and say whether validation has a folder of its own.

    A folder for each image is counted as none: its images and parts of masks are told apart by a scan.
    """
    folders = pair_folders(path)
    train = folders.get(TRAIN) or folders.get("")
    if train is None or train.each:
        return 0, False
    return sum(1 for _ in islice(walk_images(train.images), most)), VAL in folders


def find_masks_beside(path: str) -> Found:
    """List images with masks that lie beside them, as `1.png` and `1_mask.png`, in any folders.

    Raises:
        DataError: There are none, or a folder can't be listed.
    """
    check_folder(path)
    halves = find_splits(path, has_masks_beside)
    walk = FolderWalk(path)
    pairs = {}
    for split, at in ((TRAIN, halves.train), (VAL, halves.val), (TEST, halves.test)):
        if at is not None:
            pairs[split] = _beside_in(walk.joined(walk.images(at)))
    return _found(path, walk, pairs, halves.origin)


def _beside_in(table: PathTable) -> _Pairs:
    masks, pairs = masks_beside(table), _Pairs()
    of_images = {mask for each in masks.values() for mask in each}
    for image in table:
        if image in masks:
            _add(pairs, image, masks[image])
        elif image not in of_images:
            pairs.unpaired.append(image)
    return pairs


def _found(path: str, walk: FolderWalk, pairs: Mapping[str, _Pairs], origin: str) -> Found:
    train = pairs.get(TRAIN) or pairs[""]
    val, test = pairs.get(VAL), pairs.get(TEST)
    has_test = test is not None and test.images
    if val is None and has_test:
        val, test, origin = test, None, origin or "folders train and test"
    walk.leave_rest(OUTSIDE)
    walk.take_back(class_file := _class_file(path, train))
    halves = [train, *([val] if val is not None else [])]
    if joined := sum(each.joined for each in halves):
        walk.notes.append(f"the masks of {joined} images, several each, are joined to one of two classes")
    if unmatched := len(walk.left.get(_WITHOUT_IMAGE, ())):
        walk.notes.append(f"{unmatched} masks have no image")
        walk.quiet.add(_WITHOUT_IMAGE)
    return Found(
        images=PathTable(file for half in halves for file in half.images),
        masks=PathTable(file for half in halves for file in half.masks),
        train_rows=len(train.images),
        class_file=class_file,
        void=_void(train),
        unpaired=tuple(Problem(file, _NO_MASK) for half in halves for file in half.unpaired),
        warnings=tuple(walk.warnings()),
        split=origin if val is not None else "",
        test=() if test is None else PathTable([*test.images, *test.masks, *test.unpaired]),
        left_out=walk.left_out(),
    )


def _origin(folders: Mapping[str, PairFolders], lists: Mapping[str, object]) -> str:
    if lists:
        return "lists train and val of ImageSets/Segmentation"
    names = [os.path.basename(each.images) for split, each in folders.items() if split in (TRAIN, VAL)]
    if len(names) == 2 and names[0] == names[1]:
        names = [os.path.basename(os.path.dirname(folders[split].images)) for split in (TRAIN, VAL)]
    return f"folders {' and '.join(map(clean_name, names))}" if len(names) == 2 else ""


def _by_lists(walk: FolderWalk, pairs: _Pairs, lists: Mapping[str, frozenset[str]]) -> dict[str, _Pairs]:
    """Split pairs by lists of their names; images in no list are left out."""
    found = {split: _Pairs() for split in lists}
    split_of = {same_text(name): split for split, names in lists.items() for name in names}
    for image, mask in zip(pairs.images, pairs.masks, strict=True):
        split = split_of.get(same_text(os.path.splitext(os.path.basename(image))[0]))
        if split is None:
            walk.left[_UNLISTED] += [image, mask]
        else:
            found[split].images.append(image)
            found[split].masks.append(mask)
    for image in pairs.unpaired:
        split = split_of.get(same_text(os.path.splitext(os.path.basename(image))[0]))
        if split is None:
            walk.left[_UNLISTED].append(image)
        else:
            found[split].unpaired.append(image)
    return found


def _pairs_of(walk: FolderWalk, folders: PairFolders) -> _Pairs:
    if folders.each:
        return _by_folder(walk, folders)
    walk.named.add(folders.masks)
    images, masks = (list(walk.joined(walk.images(at))) for at in (folders.images, folders.masks))
    if not images or not masks:
        raise _without_images(folders.masks if images else folders.images, walk)
    return _paired(walk, folders, images, masks)


def _paired(walk: FolderWalk, folders: PairFolders, images: list[str], masks: list[str]) -> _Pairs:
    """Match images and masks by their paths in the two folders, or in the innermost that have them all."""
    for bases in ((folders.images, folders.masks), (_innermost(images), _innermost(masks))):
        by_stem, masks_by_stem = (_by_stem(*each) for each in zip((images, masks), bases, strict=True))
        masks_by_stem = _of_one_kind(walk, masks_by_stem)
        for matching in (_same_name, _without_affixes, _without_zeros):
            if (found := _matched(by_stem, masks_by_stem, matching)) is not None:
                pairs, without_image = found
                walk.left[_WITHOUT_IMAGE] += without_image
                return pairs
    raise DataError(
        f"{clean_name(folders.masks)}: no mask has the name of an image in {clean_name(folders.images)}",
        hint="use the same names: 1.jpg and 1.png, or 1_mask.png",
    )


def _innermost(files: Sequence[str]) -> str:
    return os.path.commonpath([os.path.dirname(file) for file in files])


def _without_images(folder: str, walk: FolderWalk) -> DataError:
    others = [file for files in walk.left.values() for file in files if file.startswith(folder)]
    endings = Counter(os.path.splitext(file)[1].lower() for file in others)
    kinds = ", ".join(clean_name(ending) or "no extension" for ending, _ in endings.most_common(5))
    named = f" (but {len(others)} other files: {kinds})" if others else ""
    return DataError(
        f"{clean_name(folder)}: holds no images{named}",
        hint="a mask is an image file whose pixels are the classes; polygons and boxes are not read",
    )


def _by_folder(walk: FolderWalk, folders: PairFolders) -> _Pairs:
    """List a set with a folder for each image, whose masks are joined, or for each part of the set."""
    walk.named.update(masks for _, masks in folders.each)
    listed = [tuple(list(walk.joined(walk.images(at))) for at in each) for each in folders.each]
    if any(len(images) > 1 for images, _ in listed):
        return _parts(walk, folders, [(images, masks) for images, masks in listed])
    pairs = _Pairs()
    for images, masks in listed:
        for image in images:
            if masks:
                _add(pairs, image, masks)
            else:
                pairs.unpaired.append(image)
    return pairs


def _parts(walk: FolderWalk, folders: PairFolders, listed: Sequence[tuple[list[str], list[str]]]) -> _Pairs:
    """Join the parts of a set, each with images and masks.

    Raises:
        DataError: It is a single folder, or parts can be splits.
    """
    names = [os.path.basename(os.path.dirname(images)) for images, _ in folders.each]
    at = clean_name(folders.images)
    if len(names) == 1:
        inner = os.path.dirname(folders.each[0][0])
        raise DataError(
            f"{at}: its only folder {clean_name(names[0])} has the images and masks",
            hint=f"give --data {shell_word(inner)}",
        )
    if odd := [name for name in names if _may_be_split(name)]:
        raise TwoReadingsError(
            f"{at}: its folders have images and masks each, and can be splits or parts",
            {"splits": f"{clean_name(odd[0])} is one by its name", "parts of one set": some(names)},
            hint="name the folders of splits train, val and test, or give --data one of the folders",
        )
    whole = _Pairs()
    for (images, masks), (image_folder, mask_folder) in zip(listed, folders.each, strict=True):
        if not images or not masks:
            raise _without_images(mask_folder if images else image_folder, walk)
        part = _paired(walk, PairFolders(image_folder, mask_folder), images, masks)
        whole.images += part.images
        whole.masks += part.masks
        whole.unpaired += part.unpaired
        whole.joined += part.joined
    walk.notes.append(f"{len(names)} folders of images and masks are joined to one set: {some(names)}")
    return whole


def _may_be_split(name: str) -> bool:
    words = {*re.findall(r"[a-z]+", name.lower())}
    return bool(words & {*SPLIT_WORDS, "tr", "te"}) or bool(words_with_glued(name).split)


def _add(pairs: _Pairs, image: str, masks: Sequence[str]) -> None:
    pairs.images.append(image)
    pairs.masks.append(joined_address(masks))
    pairs.joined += len(masks) > 1


def _of_one_kind(walk: FolderWalk, masks: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the masks without Cityscapes' pictures of the same mask: colours, instances, other numbers."""
    unused = [stem for stem in masks if _OTHER_PICTURES.search(stem)]
    if any(map(_TRAIN_IDS.search, masks)):
        unused += [stem for stem in masks if _ANY_IDS.search(stem)]
    left = set(unused)
    walk.left[_OTHER_KIND] += [file for stem in unused for file in masks[stem]]
    return {stem: files for stem, files in masks.items() if stem not in left} if left else masks


def _matched(
    images: dict[str, list[str]], masks: dict[str, list[str]], matching: Callable[[str, bool], Iterable[str]]
) -> tuple[_Pairs, list[str]] | None:
    """Match images and masks by the key of their stems; return them and the other masks, None if none fit."""
    by_key: dict[str, list[str]] = defaultdict(list)
    for stem, files in images.items():
        for key in matching(stem, False):
            by_key[key] += files
    claims: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    left: list[str] = []
    for stem, files in masks.items():
        owner = next((key for key in matching(stem, True) if key in by_key), None)
        if owner is None:
            left += files
        else:
            claims[owner] += [(file, _NUMBERED.search(stem) is not None) for file in files]
    if not claims:
        return None
    pairs = _Pairs()
    for key, files in by_key.items():
        if key in claims:
            _refuse_two("images have one name", files)
            _add(pairs, files[0], _one_or_several(claims[key]))
        else:
            pairs.unpaired += files
    return pairs, left


def _one_or_several(claims: list[tuple[str, bool]]) -> list[str]:
    """Return the masks of an image: one, or one with others of it that are numbered."""
    plain = [file for file, numbered in claims if not numbered]
    _refuse_two("masks fit one image", plain)
    files = plain + [file for file, numbered in claims if numbered]
    if not plain:
        _refuse_two("masks fit one image", files)
    return files


def _refuse_two(what: str, files: list[str]) -> None:
    if len(files) > 1:
        first, second = map(clean_name, files[:2])
        raise TwoReadingsError(
            f"two {what}",
            {first: f"is read, without {second}", second: f"is read, without {first}"},
            hint="remove one of them, or give --data a list of the images and their masks (LIST.csv)",
        )


def _by_stem(files: Sequence[str], folder: str) -> dict[str, list[str]]:
    """Return image files by their path in a folder, without extension."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in files:
        found[same_text(os.path.splitext(os.path.relpath(file, folder))[0])].append(file)
    return dict(found)


def _same_name(stem: str, is_mask: bool) -> Iterable[str]:
    yield stem
    if is_mask:
        yield _SUFFIX.sub("", stem)
        yield _NUMBERED.sub("", stem)


def _without_affixes(stem: str, _is_mask: bool) -> Iterable[str]:
    yield _AFFIX.sub("", stem)


def _without_zeros(stem: str, _is_mask: bool) -> Iterable[str]:
    yield re.sub(r"(?a)[0-9]+", lambda found: str(int(found[0])), _AFFIX.sub("", stem))


def _class_file(path: str, train: _Pairs) -> Path | None:
    """Return `classes.toml` in the set, or beside or in the folder of its first image or mask."""
    firsts = [joined_files(each[0])[0] for each in (train.images, train.masks) if each]
    places = [Path(path), *(place for file in firsts for place in Path(file).parents[1::-1])]
    return next((file for place in places if (file := place / CLASS_FILE).is_file()), None)


def _void(train: _Pairs) -> int | None:
    """Return the value that is no class in masks of VOC, and in Cityscapes' numbers for training."""
    first = Path(joined_files(train.masks[0])[0]) if train.masks else Path()
    return 255 if first.parent.name.startswith("SegmentationClass") or _TRAIN_IDS.search(first.stem) else None
