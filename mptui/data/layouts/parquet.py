"""Parquet files of images, as Hugging Face datasets are on disk: a column of images, one of labels or masks.

Parquet has no random access to a row: to read one image, the row group that holds it is read and
decompressed, a hundred images or a thousand, so an epoch in random order would read each file a hundred times
over. So the bytes of all images are copied once, as they are, to a file of the user's cache, in which they
are read by their offsets like those of a tar shard. This is repeated only when the Parquet file has changed.
Workers need no pyarrow. The copy takes as much disk as the set; `XDG_CACHE_HOME` says where.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mptui import text as fmt
from mptui.data.address import MOST_BYTES, status_of
from mptui.data.layouts.packed import (
    LONGEST_LABEL,
    Listing,
    ListingBuilder,
    cache_of,
    damaged,
    recalled,
    remember,
)
from mptui.data.layouts.walk import IMAGE_NAMES, MASK_NAMES
from mptui.data.scan import ScanCancelledError, ShouldStop
from mptui.errors import ConfigError, DiskError
from mptui.io.cache import write_whole
from mptui.io.files import open_regular
from mptui.io.written_files import disk_hint
from mptui.registry.names import SampleKind
from mptui.text import clean_name

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_LABEL_NAMES = ("label", "labels", "class", "target", "fine_label")
_ROWS = 64
"""Rows that are read at a time."""


@dataclass(frozen=True, slots=True)
class ParquetColumns:
    """The columns of a file that are read."""

    image: str
    label: str | None = None
    mask: str | None = None
    classes: tuple[str, ...] | None = None
    """Names of the classes of the labels 0, 1, …, where the schema declares them."""
    other_labels: tuple[str, ...] = ()
    """Columns that the schema declares to be classes, too."""

    @property
    def is_usual(self) -> bool:
        """Whether the column of labels has one of their usual names."""
        return self.label in _LABEL_NAMES

    @property
    def kind(self) -> SampleKind:
        """Kind of the samples."""
        if self.mask is not None:
            return SampleKind.MASK
        return SampleKind.IMAGE if self.label is None else SampleKind.CLASS

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [name for name in (self.image, self.mask, self.label) if name is not None]


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a file."""

    image: bytes | None
    name: str
    """The path that the image had; empty: unknown."""
    mask: bytes | None
    label: str | None

    def title(self, number: int) -> str:
        return f"{number} ({self.name})" if self.name else str(number)


def columns_of(path: str) -> ParquetColumns | None:
    """Find the columns of images, masks and labels by their names and types; None: the file has no images.

    Raises:
        ConfigError: pyarrow is not installed.
        DataError: The file can't be read.
    """
    with _opened(path) as file:
        return _columns(file.schema_arrow)


def rows_of(path: str) -> int:
    """Return the number of rows of a file.

    Raises:
        ConfigError: pyarrow is not installed.
        DataError: The file can't be read.
    """
    with _opened(path) as file:
        return int(file.metadata.num_rows)


def text_columns(path: str, rows: int | None) -> tuple[list[str], list[list[str]]]:
    """Return the names of a file's plain columns, and their first rows as text; a missing value is "".

    Args:
        path: The file.
        rows: Number of rows; None: all.

    Raises:
        ConfigError: pyarrow is not installed.
        DataError: The file can't be read.
    """
    with _opened(path) as file:
        import pyarrow as pa
        from pyarrow import types

        tests = (_holds_labels, types.is_floating)
        names = [field.name for field in file.schema_arrow if any(test(field.type) for test in tests)]
        lines: list[list[str]] = []
        try:
            for batch in file.iter_batches(1 << 14, columns=names, use_threads=False):
                values = [batch.column(name).to_pylist() for name in names]
                lines += [
                    ["" if cell is None else str(cell) for cell in row] for row in zip(*values, strict=True)
                ]
                if rows is not None and len(lines) >= rows:
                    break
        except (pa.ArrowException, OSError, ValueError) as error:
            raise damaged(path, error) from error
    return names, lines if rows is None else lines[:rows]


def unpack(path: str, on_rows: Callable[[int], None], should_stop: ShouldStop) -> Listing:
    """List the samples of a file, after its images were copied to the cache.

    Args:
        path: The file.
        on_rows: Called with the number of rows copied so far.
        should_stop: Called often.

    Raises:
        ConfigError: pyarrow is not installed.
        DataError: The file can't be read, is damaged, or has no images.
        DiskError: The cache has no room for the images.
        ScanCancelledError: `should_stop` returned True.
    """
    folder = cache_of(path, "parquet")
    with _opened(path) as file:
        columns = _columns(file.schema_arrow)
        if columns is None:
            raise damaged(path, "it has no column of images, as other files of the set have")
        key = {
            "columns": columns.names,
            "classes": None if columns.classes is None else list(columns.classes),
        }
        kept = recalled(folder / "list.npz", path, key)
        if kept is not None and _is_whole(kept):
            return kept
        try:
            listing = _unpacked(path, file, columns, folder, on_rows=on_rows, should_stop=should_stop)
        except OSError as error:
            raise _no_room(folder, (error.strerror or str(error)).lower(), error) from error
    remember(folder / "list.npz", path, key, listing)
    return listing


def _unpacked(
    path: str,
    file: "pq.ParquetFile",
    columns: ParquetColumns,
    folder: Path,
    *,
    on_rows: Callable[[int], None],
    should_stop: ShouldStop,
) -> Listing:
    folder.mkdir(parents=True, exist_ok=True)
    size, changed_ns = status_of(path)
    out = folder / f"{size}-{changed_ns}.images"
    for old in folder.glob("*.images"):  # of an earlier version of the file
        if old != out:  # another process may just have written that, and read it
            old.unlink(missing_ok=True)
    needed, free = _size(file, columns), shutil.disk_usage(folder).free
    if needed > free:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise _no_room(
            folder, f"{fmt.size(needed)} are needed for the images, {fmt.size(free)} are free", full
        )
    builder = ListingBuilder(path)

    def write(to: IO[bytes]) -> None:
        for number, row in enumerate(_rows(path, file, columns)):
            if number % _ROWS == 0:
                on_rows(number)
                if should_stop():
                    raise ScanCancelledError
            _copy(builder, to, number, row)

    write_whole(out, write)
    return builder.listing(str(out), classes=columns.classes)


def _copy(builder: ListingBuilder, to: IO[bytes], number: int, row: _Row) -> None:
    for content in (row.image, row.mask):
        if content is not None and len(content) > MOST_BYTES:
            builder.refuse(row.title(number), f"{len(content):,} bytes: larger than any image")
            return
    if row.image is None:
        why = "only the path of an image, not its bytes" if row.name else "no image"
        builder.refuse(row.title(number), why)
        return
    image = to.tell(), to.write(row.image)
    mask = None if row.mask is None else (to.tell(), to.write(row.mask))
    builder.add(row.name, image, mask, row.label)


def _rows(path: str, file: "pq.ParquetFile", columns: ParquetColumns) -> Iterator[_Row]:
    import pyarrow as pa

    try:
        for batch in file.iter_batches(_ROWS, columns=columns.names, use_threads=False):
            images = batch.column(columns.image).to_pylist()
            empty = [None] * len(images)
            masks = empty if columns.mask is None else batch.column(columns.mask).to_pylist()
            labels = empty if columns.label is None else batch.column(columns.label).to_pylist()
            for image, mask, label in zip(images, masks, labels, strict=True):
                content, name = _content(image)
                yield _Row(
                    content, name, _content(mask)[0], None if label is None else str(label)[:LONGEST_LABEL]
                )
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged(path, error) from error


def _content(value: Any) -> tuple[bytes | None, str]:  # noqa: ANN401 - a value of a column
    """Return the bytes of an image, and its path; both may be missing."""
    if isinstance(value, dict):
        return value.get("bytes"), str(value.get("path") or "").replace("\0", "")
    return value, ""


def _opened(path: str) -> "pq.ParquetFile":
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError(
            f"{clean_name(path)}: pyarrow, which reads it, is not installed",
            hint="install it: pip install 'mptui[parquet]'",
        ) from error
    try:
        os.close(open_regular(path))
        file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
        if not file.schema_arrow.names:  # reads the types, which may be damaged too
            raise ValueError("no columns")
        return file
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged(path, error) from error


def _columns(schema: "pa.Schema") -> ParquetColumns | None:
    features = _features(schema)
    images = [field.name for field in schema if _holds_images(field.type)]
    image = next((name for name in IMAGE_NAMES if name in images), None)
    image = image or next((name for name in images if name not in MASK_NAMES), None)
    if image is None:
        return None
    mask = next((name for name in MASK_NAMES if name in images), None)
    labels = [field.name for field in schema if _holds_labels(field.type)]
    declared = [name for name in labels if isinstance(features.get(name), dict) and "names" in features[name]]
    label = next((name for name in _LABEL_NAMES if name in labels), None) or next(iter(declared), None)
    if mask is not None or label is None:
        return ParquetColumns(image, mask=mask)
    names = features[label]["names"] if label in declared else None
    are_names = isinstance(names, list) and all(isinstance(name, str) for name in names)
    classes = tuple(map(str, names or ())) if are_names else None
    others = tuple(name for name in declared if name != label)
    return ParquetColumns(image, label, classes=classes, other_labels=others)


def _features(schema: "pa.Schema") -> dict[str, Any]:
    """Return what the `datasets` library says of the columns; empty if another program wrote the file."""
    with suppress(KeyError, TypeError, ValueError, RecursionError):
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return features if isinstance(features, dict) else {}
    return {}


def _holds_images(kind: "pa.DataType") -> bool:
    from pyarrow import types

    if types.is_struct(kind):
        place = kind.get_field_index("bytes")
        return place >= 0 and _holds_images(kind.field(place).type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _holds_labels(kind: "pa.DataType") -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _holds_labels(kind.value_type)
    tests = (types.is_integer, types.is_string, types.is_large_string, types.is_boolean)
    return any(test(kind) for test in tests)


def _size(file: "pq.ParquetFile", columns: ParquetColumns) -> int:
    """Return the bytes of the columns that are read."""
    total = 0
    for group in range(file.metadata.num_row_groups):
        facts = file.metadata.row_group(group)
        for number in range(facts.num_columns):
            column = facts.column(number)
            if column.path_in_schema.partition(".")[0] in columns.names:
                total += column.total_uncompressed_size
    return total


def _is_whole(listing: Listing) -> bool:
    """Whether the copied images are still in the cache."""
    places = listing.places
    ends = (places["at"] + places["size"], places["mask_at"] + places["mask_size"])
    needed = max((int(end.max()) for end in ends if len(end)), default=0)
    with suppress(OSError):
        return status_of(listing.file)[0] == needed
    return False


def _no_room(folder: Path, why: str, error: OSError) -> DiskError:
    return DiskError(
        f"{clean_name(str(folder))}: cannot copy the images of the Parquet files: {why}",
        hint=disk_hint(error, folder, "set XDG_CACHE_HOME to a folder on another disk"),
    )
