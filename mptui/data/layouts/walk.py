"""Lists the files of a set, each once; its folders of halves, classes, images and masks."""

import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from mptui import text as fmt
from mptui.data.dataset import PathTable
from mptui.data.decode import EXTENSIONS, opened
from mptui.data.layouts.split_words import TEST, TRAIN, VAL, is_plain_split, words_with_glued
from mptui.data.types import BadSampleError, LeftOut
from mptui.errors import DataError, TwoReadingsError
from mptui.io.own_files import is_checkpoint, is_run
from mptui.io.written_files import LIST, written_files
from mptui.text import clean_name

# Lists the files of a set, each once: a split or a class has it, or it is left out for a reason
# ----------------------------------------------------------------------------------------------
# Links to folders are followed after all folders that are no links, so that a link never takes a file from
# the place where it lies; a link to a folder above it, or to one that is in the set already, is left out.
# Files that mptui wrote itself, such as a directory of runs among the data, are no data.

NOT_AN_IMAGE = "is not an image by its name"
HIDDEN = "is hidden, or lies in a hidden folder"
WRITTEN = "was written by mptui"
OF_SYSTEM = frozenset({"__MACOSX", "@eaDir"})
"""Folders in which a system keeps its own files."""

LINKED_TWICE = "is a link to what is in the set already"
_UPWARDS = "is a link to a folder above it"


@dataclass(slots=True)
class FolderFiles:
    """The images of a folder, without those behind links to folders.

    Attributes:
        table: Their paths, sorted.
        links: Links to folders, each with the number of images before it.
        direct: Number of images in the folder itself, not in one of its folders.
        inner: Number of images in each of its folders, by name.
    """

    table: PathTable
    links: list[tuple[int, str]] = field(default_factory=list)
    direct: int = 0
    inner: Counter[str] = field(default_factory=Counter)


class FolderWalk:
    """One pass over the folders of a set.

    Invariant: a folder is entered once, so a file is listed once. `left` has what the entered folders hold
    beside images; what lies in no entered folder is added by `leave_rest`.
    """

    def __init__(self, root: str) -> None:
        self.left: defaultdict[str, list[str]] = defaultdict(list)
        self.notes: list[str] = []
        """Warnings of the reading, beside those of what is left out."""
        self.quiet: set[str] = set()
        """Reasons that notes, or problems of samples, say already."""
        self.named: set[str] = set()
        """Folders that are data although mptui wrote files in them, as masks that it predicted."""
        self._root = root
        self._real_root = os.path.realpath(root)
        self._entered: set[tuple[int, int]] = set()
        self._unseen: list[tuple[str, str]] = []
        """Folders that are never entered, with the reason."""
        self._targets: dict[str, str] = {}
        """Files of the set that links to files lead to, with the link."""

    def images(self, folder: str) -> FolderFiles:
        """List the images of a folder, without those behind links to folders.

        Raises:
            DataError: A folder can't be listed.
        """
        files = FolderFiles(PathTable(()))
        if os.path.islink(folder):
            files.links.append((0, folder))
        else:
            files.table = PathTable(self._walk(folder, files))
        return files

    def all_images(self, folder: str) -> Iterator[str]:
        """Yield the images of a folder one by one, with those behind links."""
        return self._walk(folder, None)

    def joined(self, files: FolderFiles) -> PathTable:
        """Return the images of a folder with those behind links, once all other folders are listed."""
        if not files.links:
            return files.table
        return PathTable(self._with_linked(files))

    def without_second_links(self, table: PathTable) -> PathTable:
        """Return a table without links to files that the set has itself."""
        twice = {link for target, link in self._targets.items() if self._is_entered(os.path.dirname(target))}
        if not twice.intersection(table if twice else ()):
            return table
        self.left[LINKED_TWICE] += sorted(twice.intersection(table))
        return PathTable(path for path in table if path not in twice)

    def leave_rest(self, outside: str, used: Collection[str] = ()) -> None:
        """Leave out all files of the set that are in no entered folder and not `used`.

        Args:
            outside: The reason of images.
            used: Paths of files that a split has.
        """
        folders = [(self._root, "")]
        while folders or self._unseen:
            folder, reason = folders.pop() if folders else self._unseen.pop()
            if not reason and self._is_entered(folder):
                continue
            names = self._listed(folder) if reason else self._visible(folder)
            for entry in names:
                if entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, reason))
                elif entry.path not in used and entry.is_file(follow_symlinks=False):
                    self._leave(entry, reason, outside)

    def take_back(self, file: object) -> None:
        """Count a file that is no image, but tells of the set, as read."""
        self.left[NOT_AN_IMAGE] = [each for each in self.left[NOT_AN_IMAGE] if each != str(file)]

    def left_out(self) -> tuple[LeftOut, ...]:
        """Return the files that were left out, by reason."""
        return tuple(LeftOut(reason, PathTable(files)) for reason, files in self.left.items() if files)

    def warnings(self) -> Iterator[str]:
        """Say what was left out, with the number and some of each kind."""
        yield from self.notes
        for reason, files in self.left.items():
            if reason == NOT_AN_IMAGE and files:
                yield not_images(files)
            elif reason not in {HIDDEN, NOT_AN_IMAGE, *self.quiet} and files:
                yield f"left out, {len(files)} files: {clean_name(files[0])} {reason}" + "…" * (
                    len(files) > 1
                )

    def _leave(self, entry: "os.DirEntry[str]", reason: str, outside: str) -> None:
        if not reason:
            is_image = os.path.splitext(entry.name)[1].lower() in EXTENSIONS
            reason = outside if is_image else NOT_AN_IMAGE
        if os.path.realpath(entry.path) not in self._targets:
            self.left[reason].append(entry.path)

    def _is_entered(self, folder: str) -> bool:
        status = os.stat(folder)
        return (status.st_dev, status.st_ino) in self._entered

    def _walk(self, folder: str, files: FolderFiles | None) -> Iterator[str]:
        """Yield images; links to folders are noted in `files`, or followed without it."""
        levels = [self._enter(folder)]  # no recursion: folders may be a thousand deep
        count, inner = 0, ""
        while levels:
            entry = next(levels[-1], None)
            if entry is None:
                levels.pop()
            elif leads_to(entry.is_dir):
                if files is not None and entry.is_symlink():
                    files.links.append((count, entry.path))
                    continue
                inner = entry.name if len(levels) == 1 else inner
                levels.append(self._enter(entry.path))
            elif not _is_sample(entry):
                if leads_to(entry.is_file):
                    self.left[NOT_AN_IMAGE].append(entry.path)
            elif not entry.is_symlink() or self._is_first_link(entry.path):
                count += 1
                if files is not None and len(levels) == 1:
                    files.direct += 1
                elif files is not None:
                    files.inner[inner] += 1
                yield entry.path

    def _with_linked(self, files: FolderFiles) -> Iterator[str]:
        start = 0
        for place, link in files.links:
            yield from files.table[start:place]
            start = place
            above = os.path.realpath(os.path.dirname(link)) + os.sep
            target = os.path.realpath(link)
            if above.startswith(target + os.sep):
                self.left[_UPWARDS].append(link)
            elif self._is_entered(link):
                self.left[LINKED_TWICE].append(link)
            else:
                yield from self._walk(link, None)
        yield from files.table[start : len(files.table)]

    def _is_first_link(self, path: str) -> bool:
        """Whether a link to a file leads out of the set, or is the first that leads to its file."""
        target = os.path.realpath(path)
        if not target.startswith(self._real_root + os.sep) or not os.path.exists(target):
            return True
        if self._targets.setdefault(target, path) == path:
            return True
        self.left[LINKED_TWICE].append(path)
        return False

    def _enter(self, folder: str) -> Iterator["os.DirEntry[str]"]:
        """Return the entries of a folder, sorted; none if it was entered before."""
        try:
            status = os.stat(folder)
        except OSError as error:  # removed or made unreadable since it was listed
            raise unreadable(folder, error) from error
        if (status.st_dev, status.st_ino) in self._entered:
            return iter(())
        self._entered.add((status.st_dev, status.st_ino))
        return iter(sorted(self._visible(folder), key=lambda entry: entry.name))

    def _visible(self, folder: str) -> list["os.DirEntry[str]"]:
        """Return the entries of a folder that may be data; the others are left out."""
        entries = self._listed(folder)
        signs = {entry.name for entry in entries if entry.name in OUTPUT_SIGNS}
        if signs and is_output_folder(folder):
            self._unseen.append((folder, WRITTEN))
            return []
        written = written_names(folder, signs) if folder not in self.named else frozenset()
        no_data = OF_SYSTEM.union(written)
        seen = [entry for entry in entries if not entry.name.startswith(".") and entry.name not in no_data]
        if len(seen) < len(entries):
            self._leave_unseen(set(entries).difference(seen), written)
        return seen

    def _leave_unseen(self, entries: Iterable["os.DirEntry[str]"], written: Collection[str]) -> None:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                self._unseen.append((entry.path, HIDDEN))
            elif leads_to(entry.is_file):
                self.left[WRITTEN if entry.name in written else HIDDEN].append(entry.path)

    def _listed(self, folder: str) -> list["os.DirEntry[str]"]:
        try:
            with os.scandir(folder) as entries:
                return list(entries)
        except NotADirectoryError:
            return []
        except OSError as error:
            raise unreadable(folder, error) from error


def walk_images(folder: str) -> Iterator[str]:
    """Yield the image files in a folder and its subfolders, sorted, as paths that begin with `folder`.

    Files are recognized by their extension, in upper or lower case, and files without one by their content.
    Each real folder is visited once, also if several links lead to it.

    Raises:
        DataError: A folder can't be listed.
    """
    return FolderWalk(folder).all_images(folder)


def has_images(path: str) -> bool:
    """Whether there are images in a folder, at any depth."""
    return any(True for _ in walk_images(path))


def leads_to(kind: Callable[[], bool]) -> bool:
    """Whether an entry or the target of its link is of this kind; False for circular links."""
    try:
        return kind()
    except OSError:
        return False


def unreadable(path: str, error: OSError) -> DataError:
    """Return the error for a folder that can't be listed."""
    return DataError(
        f"{clean_name(path)}: {error.strerror}", hint="check that the folder is readable (ls -l)"
    )


def _is_sample(entry: "os.DirEntry[str]") -> bool:
    extension = os.path.splitext(entry.name)[1].lower()
    if extension not in EXTENSIONS and extension:
        return False
    if not leads_to(entry.is_file):  # the scan reports a broken link; a pipe is no sample
        return entry.is_symlink() and bool(extension) and not os.path.exists(entry.path)
    return bool(extension) or _holds_image(entry.path)


def _holds_image(path: str) -> bool:
    try:
        with opened(path):
            return True
    except BadSampleError:
        return False


def not_images(files: Sequence[str]) -> str:
    """Say how many files are left out as they aren't images, and their endings."""
    counted = Counter(os.path.splitext(file)[1].lower() for file in files)
    kinds = ", ".join(clean_name(ending) or "no extension" for ending, _ in counted.most_common(5))
    which = "isn't an image by its name" if len(files) == 1 else "aren't images by their names"
    return f"left out {fmt.counted(len(files), 'file')} that {which}: {kinds}"


# Recognizes what mptui wrote: directories of runs, checkpoints, and results beside other files
# ---------------------------------------------------------------------------------------------

OUTPUT_SIGNS = frozenset(
    {".mptui-run.json", "run.toml", "events.jsonl", "checkpoints", "manifest.json", LIST}
)
"""One of them is in each folder that mptui wrote to: others need no look at their files."""


def is_output_folder(folder: str) -> bool:
    """Whether a folder is the directory of a run, or a checkpoint."""
    return is_run(Path(folder)) or is_checkpoint(Path(folder))


def written_names(folder: str, names: Collection[str]) -> frozenset[str]:
    """Return the names of the results that mptui wrote into a folder with these signs."""
    return frozenset(written_files(Path(folder))) if LIST in names else frozenset()


# Chooses some images of a set to look at: at random, of each folder, and those whose names are rare
# --------------------------------------------------------------------------------------------------

_AT_RANDOM = 256
_FOLDERS, _OF_FOLDER = 64, 4
_ENDINGS, _OF_ENDING = 32, 4
_RARE = 1 / 64
"""Share of the set below which a random choice may miss images whose names end alike."""


def sampled(images: Sequence[str]) -> list[str]:
    """Return some images that are files, in the order of the set; their number does not grow with the set."""
    rows = {*random.Random(0).sample(range(len(images)), min(_AT_RANDOM, len(images)))}
    if len(rows) < len(images):
        rows.update(_first_of_folders(images))
        if isinstance(images, PathTable):
            rows.update(images.rows_of_rare_endings(_RARE, _ENDINGS, _OF_ENDING))
    return [path for row in sorted(rows) if os.path.isfile(path := images[row])]


def _first_of_folders(images: Sequence[str]) -> Iterator[int]:
    """Yield the first rows of folders, whose images follow each other: by a few looks at each folder."""
    row = 0
    for _ in range(_FOLDERS):
        if row >= len(images):
            return
        yield from range(row, min(row + _OF_FOLDER, len(images)))
        row = _next_folder(images, row)


def _next_folder(images: Sequence[str], row: int) -> int:
    """Return the row after the images of a folder: by steps that double, then by halves."""
    folder, step = os.path.dirname(images[row]), 1
    while row + step < len(images) and os.path.dirname(images[row + step]) == folder:
        row, step = row + step, 2 * step
    inside, outside = row, min(row + step, len(images))
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if os.path.dirname(images[middle]) == folder:
            inside = middle
        else:
            outside = middle
    return outside


# Finds the training, validation, class, image and mask folders in a folder, and the images in them
# -------------------------------------------------------------------------------------------------

IMAGE_NAMES = ("images", "imgs", "image", "img")
MASK_NAMES = ("masks", "mask", "labels", "label", "annotations", "annotation")

CLASS_FOLDERS = "DATA/train/cat/1.jpg and DATA/val/cat/2.jpg, or DATA/cat/1.jpg"
IMAGES_AND_MASKS = "DATA/images/1.jpg and DATA/masks/1.png, or both under DATA/train and DATA/val"


@dataclass(frozen=True, slots=True)
class SplitFolders:
    """The folders of the splits; a folder without any serves for training itself."""

    train: str
    val: str | None = None
    test: str | None = None
    """Folder of the test half, which a run does not read."""

    @property
    def origin(self) -> str:
        """Where the split comes from, as a phrase; empty: one half is to be held out."""
        if self.val is None:
            return ""
        train, val = (clean_name(os.path.basename(at)) for at in (self.train, self.val))
        return f"folders {train} and {val}"


def check_folder(path: str) -> None:
    """Check that a path is a folder.

    Raises:
        DataError: The path does not exist, or is not a folder.
    """
    if not os.path.lexists(path):
        raise DataError(
            f"no such folder: {clean_name(path)}",
            hint="check --data; relative paths start at the current folder",
        )
    if not os.path.isdir(path):
        raise DataError(
            f"not a folder: {clean_name(path)}",
            hint="unpack it if it is an archive, and give the folder to --data",
        )


def find_splits(path: str, is_half: Callable[[str], bool]) -> SplitFolders:
    """Find the folders of the splits by the words in their names; without any, the folder is for training.

    A `train` folder that `is_half` rejects is not a half, but e.g. a class of that name. A rejected `test`
    folder isn't either: e.g. the unlabelled images of a competition.

    Raises:
        DataError: The folder can't be listed, or two folders are of one split.
    """
    inside = subfolders(path)
    of_split = {split: _of_split(path, inside, split, is_half) for split in (TRAIN, VAL, TEST)}
    train, val, test = (None if at is None else _unwrapped(at) for at in of_split.values())
    if train is None or not is_half(train):
        return SplitFolders(path)
    is_test_to_validate = val is None and test is not None and is_half(test)
    if is_test_to_validate:
        val, test = test, None
    return SplitFolders(train, val, test)


def split_folders(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of folders that are a split, by split.

    A name counts that is nothing but words of a split (`train2017`, `training_set`), or that differs from
    another by its split alone: `seg_train` beside `seg_test`, or `traincrop` beside `valcrop`, but not the
    classes `bullet_train` and `car`.
    """
    words = {name: words_with_glued(name) for name in names}
    found: dict[str, list[str]] = {}
    for name, said in words.items():
        others = [each.rest for each in words.values() if each.split and each.split != said.split]
        is_certain = said.exact or said.rest in others
        if said.split and is_certain:
            found.setdefault(said.split, []).append(name)
    return found


def _of_split(path: str, inside: dict[str, str], split: str, is_half: Callable[[str], bool]) -> str | None:
    """Return the folder of a split: one that is nothing but its word before others."""
    names = split_folders(inside).get(split, [])
    plain = [name for name in names if is_plain_split(name)]
    chosen = [name for name in plain or names if is_half(inside[name])] or (plain or names)[:1]
    if len(chosen) > 1:
        first, second = map(clean_name, chosen[:2])
        raise TwoReadingsError(
            f"{clean_name(path)}: two folders of one split",
            {first: f"is {split}, without {second}", second: f"is {split}, without {first}"},
            hint="move one of them out of it, or give --data LIST.csv with a column split",
        )
    return inside[chosen[0]] if chosen else None


def _unwrapped(path: str) -> str:
    """Return the only folder in a folder of a split if it has the same name, as `seg_train/seg_train`."""
    inside = subfolders(path)
    return next(iter(inside.values())) if list(inside) == [os.path.basename(path)] else path


def has_subfolders(path: str) -> bool:
    """Whether a folder could be half of a set of class folders."""
    return bool(subfolders(path))


def subfolders(path: str) -> dict[str, str]:
    """Return the subfolders by name, in natural order ("2" before "10"), without hidden ones.

    Raises:
        DataError: The folder can't be listed.
    """
    names = (entry.name for entry in _entries(path) if leads_to(entry.is_dir))
    return {name: os.path.join(path, name) for name in sorted(names, key=natural_key)}


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that compares numbers in names by value, and differs for different names."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return (
        *((0, int(p), "") if p.isascii() and p.isdecimal() else (1, 0, p.casefold()) for p in parts),
        (-1, 0, name),
    )


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [e for e in entries if not e.name.startswith(".") and e.name not in OF_SYSTEM]
    except NotADirectoryError:
        return []
    except OSError as error:
        raise unreadable(path, error) from error


def contents(path: str) -> str:
    """List the first entries of a folder for a message."""
    names = sorted((clean_name(e.name) + "/" * leads_to(e.is_dir) for e in _entries(path)), key=natural_key)
    shown = ", ".join(islice(names, 8))
    return f"{shown}, … ({len(names)} in all)" if len(names) > 8 else shown or "nothing"
