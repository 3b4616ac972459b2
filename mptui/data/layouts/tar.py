"""Tar shards in the layout of WebDataset: `KEY.jpg` with `KEY.cls`, `.json`, `.txt` or `.mask.png`.

https://github.com/webdataset/webdataset describes it: the members of a sample have one key, the path up to
the first dot of the name, or up to the ending where the name has more dots. Members are never
extracted: a list of their offsets is made once, and images are read from there. So names of members are only
text, and a link leads nowhere.
"""

import json
import os
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from io import BufferedReader, FileIO
from itertools import islice

from mptui.data.address import MOST_BYTES
from mptui.data.decode import EXTENSIONS
from mptui.data.layouts.packed import (
    LONGEST_LABEL,
    Listing,
    ListingBuilder,
    cache_of,
    damaged,
    recalled,
    remember,
)
from mptui.data.scan import ScanCancelledError, ShouldStop
from mptui.io.files import open_regular
from mptui.registry.names import SampleKind
from mptui.text import clean_name

_LABEL_KEYS = ("label", "cls", "class", "class_id", "category", "category_id", "target", "class_name")
_CLASS, _FACTS, _TEXT = ".cls", ".json", ".txt"
_MASKS = tuple(
    f".{word}{ending}" for word in ("mask", "seg") for ending in (".png", ".tif", ".tiff", ".bmp", ".webp")
)
_ENDINGS = frozenset({*EXTENSIONS, *_MASKS, _CLASS, _FACTS, _TEXT})
_BY_LENGTH = sorted(_ENDINGS, key=len, reverse=True)
_MOST_TEXT = 1 << 20
"""Largest label file in bytes."""
_MOST_HEADER = 1 << 20
"""Largest header in bytes, which `tarfile` reads into memory: the long name of a member."""
_LOOK_AROUND = 4096
"""Members between two looks at whether to stop."""
_PEEKED = 64


@dataclass(frozen=True, slots=True)
class _Member:
    """A file in a shard."""

    key: str
    ending: str
    """From the first dot of its name, in lower case."""
    at: int
    size: int
    fault: str
    """Why it can't be used; empty: it can."""

    @property
    def place(self) -> tuple[int, int]:
        return self.at, self.size


@dataclass(slots=True)
class _Sample:
    """The members of one key, by ending."""

    members: dict[str, _Member] = field(default_factory=dict)
    twice: str = ""


def list_shard(path: str, should_stop: ShouldStop) -> Listing:
    """List the samples of a shard, from the cache if it has not changed.

    Raises:
        DataError: It can't be read, is truncated or damaged.
        ScanCancelledError: `should_stop` returned True.
    """
    place = cache_of(path, "shards").with_suffix(".npz")
    try:
        if (kept := recalled(place, path, {})) is not None:
            return kept
        listing = _listed(path, should_stop)
        remember(place, path, {}, listing)
    except OSError as error:
        raise damaged(path, (error.strerror or str(error)).lower()) from error
    return listing


def kind_of_shard(path: str) -> SampleKind | None:
    """Return the kind of the samples of a shard, by its first ones; None if they have no image.

    Raises:
        DataError: The shard can't be read.
    """
    try:
        with _Shard(path) as shard:
            samples = _by_key(islice(shard.members(), _PEEKED))
            found = [_kind(shard, sample) for sample in samples.values() if _images(sample)]
    except OSError as error:
        raise damaged(path, (error.strerror or str(error)).lower()) from error
    return next((kind for kind in (SampleKind.MASK, SampleKind.CLASS) if kind in found), None) or (
        SampleKind.IMAGE if found else None
    )


class _HeaderFile(BufferedReader):
    """A tar file of which only headers are read; a header that claims gigabytes is an error."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _MOST_HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


class _Shard:
    """An opened shard."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = _HeaderFile(FileIO(open_regular(path), "rb"))
        self._bytes = os.fstat(self._file.fileno()).st_size

    def __enter__(self) -> "_Shard":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def members(self) -> Iterator[_Member]:
        """Yield the files of the shard, without hidden ones.

        Raises:
            DataError: The shard is truncated or damaged.
        """
        try:
            with closing(tarfile.TarFile(fileobj=self._file, mode="r")) as tar:
                before = -1
                while (member := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined] # they would fill the memory
                    if member.size < 0 or member.offset <= before:
                        raise damaged(self._path, "a member of negative size")
                    before = member.offset
                    folder, _, name = member.name.rpartition("/")
                    if member.isdir() or name.startswith("."):
                        continue
                    stem, ending = _split_name(name)
                    key = f"{folder}/{stem}" if folder else stem
                    yield _Member(key, ending, member.offset_data, member.size, self._fault(member))
                self._check_end(tar.offset)
        except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
            raise damaged(self._path, str(error) or "not a tar file") from error

    def text(self, member: _Member) -> str:
        """Return the text of a label file; empty if it has none that can be read."""
        if member.fault or member.size > _MOST_TEXT:
            return ""
        return os.pread(self._file.fileno(), member.size, member.at).decode("utf-8", "replace").strip()

    def _fault(self, member: tarfile.TarInfo) -> str:
        if not member.isreg():
            return "a link or device, not a file" if not member.issym() else "a link, not a file"
        if member.issparse():
            return "a sparse file"
        if member.size > MOST_BYTES:
            return f"{member.size:,} bytes: larger than any image"
        if member.offset_data + member.size > self._bytes:
            raise damaged(self._path, "truncated: the end of the file is missing")
        return ""

    def _check_end(self, at: int) -> None:
        """Refuse a shard that ends without the mark of its end: `tarfile` takes damage for it."""
        mark = os.pread(self._file.fileno(), tarfile.BLOCKSIZE, at)
        if mark.strip(b"\0"):
            raise damaged(self._path, f"no header of a member at byte {at:,}")
        if len(mark) < tarfile.BLOCKSIZE:
            raise damaged(self._path, "truncated: the end of the file is missing")


def _split_name(name: str) -> tuple[str, str]:
    """Return the key of a member in its folder, and its ending in lower case.

    A key has no dot by WebDataset's rule; where that leaves an unknown ending, as in `street.001.jpg`, the
    key is all before a known one.
    """
    stem, dot, rest = name.partition(".")
    ending = (dot + rest).lower()
    if ending in _ENDINGS:
        return stem, ending
    known = next((each for each in _BY_LENGTH if ending.endswith(each)), None)
    return (stem, ending) if known is None else (name[: -len(known)], known)


def _listed(path: str, should_stop: ShouldStop) -> Listing:
    builder, ignored = ListingBuilder(path), Counter[str]()
    with _Shard(path) as shard:
        samples = _by_key(_watched(shard.members(), should_stop))
        texts = all(_label(shard, sample) is None for sample in samples.values())
        for key, sample in samples.items():
            _add(builder, shard, key, sample, ignored=ignored, texts=texts)
    warnings: tuple[str, ...] = ()
    if ignored:
        kinds = ", ".join(clean_name(ending) or "no extension" for ending, _ in ignored.most_common(5))
        warnings = (f"{clean_name(path)}: left out {ignored.total()} members of other kinds: {kinds}",)
    return builder.listing(path, warnings=warnings)


def _add(
    builder: ListingBuilder, shard: _Shard, key: str, sample: _Sample, *, ignored: Counter[str], texts: bool
) -> None:
    """Add a sample; with `texts`, no sample of the shard has a label but its text."""
    images = _images(sample)
    known = {*EXTENSIONS, *_MASKS, _CLASS, _FACTS}
    label = _text_label(shard, sample) if texts else _label(shard, sample)
    from_text = texts and label is not None
    if from_text:
        known.add(_TEXT)
    ignored.update(ending for ending in sample.members if ending not in known)
    if not images:
        return
    image = images[0]
    name = key + image.ending
    mask = next((member for ending in _MASKS if (member := sample.members.get(ending))), None)
    if sample.twice:
        builder.refuse(key + sample.twice, "two members have this name")
    elif len(images) > 1:
        builder.refuse(name, f"two images have this key: {images[0].ending} and {images[1].ending}")
    elif fault := image.fault or (mask.fault if mask else ""):
        builder.refuse(name, fault)
    else:
        builder.add(name, image.place, mask.place if mask else None, label)
        builder.from_text += from_text


def _by_key(members: Iterator[_Member]) -> dict[str, _Sample]:
    samples: dict[str, _Sample] = {}
    for member in members:
        sample = samples.setdefault(member.key, _Sample())
        if member.ending in sample.members:
            sample.twice = member.ending
        sample.members[member.ending] = member
    return samples


def _watched(members: Iterator[_Member], should_stop: ShouldStop) -> Iterator[_Member]:
    for number, member in enumerate(members):
        if number % _LOOK_AROUND == 0 and should_stop():
            raise ScanCancelledError
        yield member


def _images(sample: _Sample) -> list[_Member]:
    return [member for ending, member in sample.members.items() if ending in EXTENSIONS]


def _kind(shard: _Shard, sample: _Sample) -> SampleKind:
    if any(ending in sample.members for ending in _MASKS):
        return SampleKind.MASK
    labels = (_label(shard, sample), _text_label(shard, sample))
    return SampleKind.CLASS if any(label is not None for label in labels) else SampleKind.IMAGE


def _text_label(shard: _Shard, sample: _Sample) -> str | None:
    """Return the line of the `.txt` of a sample, a class or a caption; None if it has none or several."""
    member = sample.members.get(_TEXT)
    text = "" if member is None else shard.text(member)
    return text if text and len(text) <= LONGEST_LABEL and len(text.splitlines()) == 1 else None


def _label(shard: _Shard, sample: _Sample) -> str | None:
    """Return the label of a sample, from its `.cls` or `.json`; None if it has none."""
    if (member := sample.members.get(_CLASS)) is not None:
        return shard.text(member)[:LONGEST_LABEL] or None
    if (member := sample.members.get(_FACTS)) is None:
        return None
    try:
        facts = json.loads(shard.text(member))
    except (ValueError, RecursionError):
        return None
    label = (
        next((facts[key] for key in _LABEL_KEYS if key in facts), None) if isinstance(facts, dict) else None
    )
    return str(label)[:LONGEST_LABEL] if isinstance(label, (int, str)) else None
