"""Opens the data of a configuration: a path, a torchvision set, the person's own, or the built-in shapes."""

import os
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from mptui.config.schema import DataConfig
from mptui.data.core.types import Dataset
from mptui.data.formats.assemble import assemble, assemble_prepared
from mptui.data.formats.folder_format import Found
from mptui.data.formats.kept_reading import KeptReading
from mptui.data.formats.known_formats import layout_of, recognize_kinds, serves
from mptui.data.formats.lists.image_list import offering
from mptui.data.formats.named.synthetic import DEFAULT_SAMPLES, shapes
from mptui.data.formats.named.torchvision_sets import NAMED, fetched, open_arrays, open_files
from mptui.data.formats.own.dataset import kind_of_own, open_own
from mptui.data.formats.rival_readings import refuse_rivals, refused_by_kind
from mptui.data.formats.sharded import ShardIndex
from mptui.data.formats.split_lists import split_by_lists
from mptui.data.scan.scan import OnProgress, ShouldStop
from mptui.errors import ConfigError
from mptui.io.places import expanded
from mptui.io.user_cache import cache_folder
from mptui.registry.own_code import is_own
from mptui.registry.samples import BUILT_IN, SampleKind
from mptui.text import clean_name


def kind_of(data: DataConfig) -> SampleKind | None:
    """Return the kind of a set's samples; None if it has several.

    Raises:
        ConfigError: There is no set of that name.
        DataError: The path is missing, or has no known format.
    """
    kinds = _kinds(data)[1]
    return kinds[0] if len(kinds) == 1 else None


def check_data(data: DataConfig, kind: SampleKind) -> None:
    """Check that a set can serve samples of a kind, without reading its files.

    Raises:
        ConfigError: There is no set of that name.
        DataError: The path is missing, has no known format, or has samples of another kind.
    """
    what, kinds = _kinds(data)
    with offering(str(expanded(what))):
        if not serves(kinds, kind):
            raise refused_by_kind(what, "" if data.path is None else str(expanded(data.path)), kinds, kind)


def open_dataset(
    data: DataConfig,
    *,
    kind: SampleKind,
    side: int,
    seed: int,
    on_progress: OnProgress,
    should_stop: ShouldStop,
    on_warning: Callable[[str], None],
    kept: KeptReading | None = None,
) -> Dataset:
    """Find, scan and split the data of a run.

    Args:
        data: The data settings.
        kind: Required kind of samples; images with classes can also be opened as images alone.
        side: Side of built-in images in pixels.
        seed: Selects the validation half if the data has none, and seeds built-in images.
        on_progress: Called with (checked files, all files).
        should_stop: Called several times per second while files are checked or downloaded.
        on_warning: Called with each of the dataset's warnings.
        kept: How a run that goes on has read the data of a folder; None: as they are.

    Raises:
        ConfigError: There is no set of that name.
        DataError: The data is missing, empty, unreadable, or of another kind.
        DiskError: A set does not fit in the cache folder.
        ScanCancelledError: `should_stop` returned True.
    """
    if data.name is None and data.path is not None:
        folder = str(expanded(data.path))
        found = _find(data, data.path, folder, kind, on_progress, should_stop)[1]
        if isinstance(found, ShardIndex) and data.bands == "all":
            raise ConfigError(
                f'data.bands = "all": {clean_name(data.path)} was prepared as 8-bit RGB',
                hint="Give --data the folder of the original images.",
            )
        if isinstance(found, ShardIndex):
            dataset = assemble_prepared(found, data, side, seed)
        elif kept is not None:
            listed = found if kept.held_out else split_by_lists(folder, found)
            files, settings = kept.applied(listed), kept.settings(data)
            dataset = assemble(_title(folder), files, settings, seed, on_progress, should_stop)
        else:
            found = split_by_lists(folder, found)
            refuse_rivals(folder, kind, found, data, should_stop)
            dataset = assemble(_title(folder), found, data, seed, on_progress, should_stop)
    else:
        check_data(data, kind)
        dataset = _open_named(data, data.name or BUILT_IN, kind, side, seed, on_progress, should_stop)
    for warning in dataset.warnings:
        on_warning(warning)
    return replace(dataset, kind=kind)


def files_of(
    data: DataConfig, kind: SampleKind | None, on_progress: OnProgress, should_stop: ShouldStop
) -> tuple[str, SampleKind, Found]:
    """Return name, kind of the samples and files of a set with a file per sample.

    Args:
        data: The set.
        kind: Kind of the samples if the set has several; None: the first of them.
        on_progress: Called with (done, total) while packed files are listed.
        should_stop: Called several times per second meanwhile, and while files are downloaded.

    Raises:
        ConfigError: The set does not consist of files.
        DataError: It is missing or incomplete.
    """
    if data.name is None and data.path is not None:
        folder = os.path.abspath(expanded(data.path))
        chosen, found = _find(data, data.path, folder, kind, on_progress, should_stop)
        if isinstance(found, ShardIndex):
            raise ConfigError(f"{data.path} is a prepared set already", hint=f"mptui run --data {data.path}")
        found = split_by_lists(folder, found)
        refuse_rivals(folder, chosen, found, data, should_stop)
        return _title(folder), chosen, found
    if is_own(data.name):
        raise ConfigError(f"{data.name} can't be prepared", hint=f"mptui run --data {data.name} --trust-code")
    name, kinds = _kinds(data)
    if kind is not None and not serves(kinds, kind):
        raise refused_by_kind(name, "", kinds, kind)
    chosen = _as_labelled(kind or kinds[0])
    if name == BUILT_IN or NAMED[name].files is None:
        raise ConfigError(f"{name} has no image files to prepare", hint=f"mptui run --data {name}")
    root = cache_folder() / "data" if data.path is None else expanded(data.path)
    if data.download:
        fetched(name, root, should_stop)
    return name, chosen, open_files(name, root, chosen)


def _find(
    data: DataConfig,
    what: str,
    folder: str,
    kind: SampleKind | None,
    on_progress: OnProgress,
    should_stop: ShouldStop,
) -> tuple[SampleKind, Found | ShardIndex]:
    """List the samples of a folder as `kind`; None: as the kind that is recognized."""
    known, kinds = recognize_kinds(folder)
    kind = kind or kinds[0]
    with offering(folder):
        if not serves(kinds, kind):
            raise refused_by_kind(what, folder, kinds, kind)
        found = known.find(folder, kind, on_progress, should_stop, data)
    if isinstance(found, Found) and not found.layout:
        found = replace(found, layout=layout_of(known))
    return kind, found


def _title(path: str) -> str:
    """Return the name of a dataset at a path: its folder or file."""
    return clean_name(Path(path).resolve().name)


def _open_named(
    data: DataConfig,
    name: str,
    kind: SampleKind,
    side: int,
    seed: int,
    on_progress: OnProgress,
    should_stop: ShouldStop,
) -> Dataset:
    if is_own(name):
        return open_own(name, data, kind, seed)
    kind = _as_labelled(kind)
    if name == BUILT_IN:
        return shapes(kind, data.samples or DEFAULT_SAMPLES, side, seed)
    root = cache_folder() / "data" if data.path is None else expanded(data.path)
    if data.download:
        fetched(name, root, should_stop)
    if NAMED[name].files is None:
        return open_arrays(name, root)
    return assemble(name, open_files(name, root, kind), data, seed, on_progress, should_stop)


def _kinds(data: DataConfig) -> tuple[str, tuple[SampleKind, ...]]:
    """Return the name of a set for messages, and the kinds of samples that it has."""
    if data.name is None and data.path is not None:
        return data.path, recognize_kinds(str(expanded(data.path)))[1]
    name = data.name or BUILT_IN
    if is_own(name):
        return name, (kind_of_own(name),)
    if name == BUILT_IN:
        return name, (SampleKind.CLASS, SampleKind.MASK)
    if name in NAMED:
        return name, NAMED[name].kinds
    names = [BUILT_IN, *NAMED]
    near = get_close_matches(name.lower(), names, n=1)
    raise ConfigError(
        f"data.name: no set called {name!r}" + (f"; did you mean {near[0]}?" if near else ""),
        hint=f"Choose one of {', '.join(names)}, or a folder with --data ./FOLDER.",
    )


def _as_labelled(kind: SampleKind) -> SampleKind:
    """Return the kind as which a named set is read: with labels even if only images are requested."""
    return SampleKind.CLASS if kind is SampleKind.IMAGE else kind
