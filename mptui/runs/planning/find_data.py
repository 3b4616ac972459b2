"""Finds and scans the data of a run, and measures statistics of images that are read as they are stored."""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mptui.config.resolve import Resolved
from mptui.data.address import status_of, title_of
from mptui.data.dataset import FileSplit, MaskedSplit
from mptui.data.describe import data_findings, reading_lines
from mptui.data.kept_reading import KeptReading, read_again
from mptui.data.open import open_dataset
from mptui.data.scan import ScanCancelledError, measure
from mptui.data.types import Dataset
from mptui.engine.evaluate import PROGRESS_S
from mptui.engine.mailbox import Mailbox, Stopped
from mptui.engine.ranks.group import Ranks
from mptui.errors import ConfigError, DataError
from mptui.events import Event, Progress, Warned
from mptui.io.cache import cache_folder
from mptui.runs.planning.plan import Plan
from mptui.text import clean

Emit = Callable[[Event], None]

_LOOKED_FOR = 16
"""Files of another rank's list that this one looks for."""

_SAME = "put the same files in the same folder on each node"


class PacedProgress:
    """Emits the progress of a phase at most a few times per second, and its end."""

    def __init__(self, emit: Emit, phase: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self._phase = phase
        self._clock = clock
        self._next = 0.0

    def __call__(self, done: int, total: int) -> None:
        """Report that `done` of `total` units are done."""
        now = self._clock()
        if done == total or now >= self._next:
            self._next = now + PROGRESS_S
            self._emit(Progress(phase=self._phase, done=done, total=total))


def find_data(
    plan: Plan, emit: Emit, mailbox: Mailbox, ranks: Ranks, *, before: Mapping[str, Any] | None = None
) -> tuple[Dataset, Plan]:
    """Return the data of a run, and the plan with their statistics.

    Rank 0 lists and scans files for all: a shared file system is asked once for each of millions of files.

    Args:
        plan: The plan of the run.
        emit: Receives progress and warnings.
        mailbox: Checked for a stop.
        ranks: The processes that train together, all of which call this.
        before: How a run that goes on has read its data (`reading_document`); None: it is new, or unknown.

    Raises:
        ConfigError: There is no set of that name, or statistics are given for another number of bands.
        DataError: The data is missing, empty, unreadable, or differs between ranks.
        Stopped: A stop was requested.
    """
    found = _scanned(plan, emit, mailbox, before) if ranks.is_first else None
    mailbox.poll()
    told = ranks.broadcast(None if found is None else _for_all(*found, ranks))
    if found is None and told is not None:
        dataset, resolved, notes = told
        _look_for(dataset)
        found = dataset, replace(plan, resolved=resolved, notes=notes)
    found = found or _scanned(plan, emit, mailbox, before)
    mailbox.poll()
    _check_same(found[0], ranks)
    return found


def _scanned(
    plan: Plan, emit: Emit, mailbox: Mailbox, before: Mapping[str, Any] | None
) -> tuple[Dataset, Plan]:
    config, progress = plan.config, PacedProgress(emit, "scanning")

    def should_stop() -> bool:
        return mailbox.stop_is_asked

    def opened(kept: KeptReading | None) -> Dataset:
        return open_dataset(
            config.data,
            kind=config.model.reads(plan.task),
            side=int(config.data.image_size or 0),
            seed=config.split_seed,
            on_progress=progress,
            should_stop=should_stop,
            on_warning=lambda message: None,
            kept=kept,
        )

    try:
        dataset, differs = read_again(opened, before)
        for message in (*dataset.warnings, *([differs] if differs else [])):
            emit(Warned(code="data", message=message))
        for finding in data_findings(dataset, config.data.sampler):
            emit(Warned(code="data", message=f"{finding.what}: {finding.do}"))
        plan = replace(plan, notes=(*plan.notes, *reading_lines(dataset)))
        return dataset, with_statistics(plan, dataset, progress, should_stop)
    except ScanCancelledError:
        mailbox.poll()
        raise Stopped(mailbox.stop_signal) from None


def _for_all(dataset: Dataset, plan: Plan, ranks: Ranks) -> tuple[Dataset, Resolved, tuple[str, ...]] | None:
    """Return what the other ranks take over; None if each has to open the data itself.

    Files in the folder of caches may be there on this node alone; data that are no files cost nothing.
    """
    split = dataset.train
    if not isinstance(split, FileSplit | MaskedSplit):
        return None
    is_cached = split.paths[0].startswith(str(cache_folder()))
    return None if is_cached and ranks.nodes > 1 else (dataset, plan.resolved, plan.notes)


def _look_for(dataset: Dataset) -> None:
    """Check that this node has the files of rank 0, by some of them.

    Raises:
        DataError: One is missing.
    """
    split = dataset.train
    assert isinstance(split, FileSplit | MaskedSplit), "from _for_all"
    for index in range(0, len(split), max(1, len(split) // _LOOKED_FOR)):
        address = split.paths[int(split.rows[index])]
        try:
            status_of(address)
        except OSError as error:
            raise DataError(
                f"the data differs: rank 0 has {clean(title_of(address))}, {socket.gethostname()} has not",
                hint=_SAME,
            ) from error


def _check_same(dataset: Dataset, ranks: Ranks) -> None:
    """Check that all ranks have the same data.

    Raises:
        DataError: The numbers of samples or classes differ.
    """
    sizes = ranks.gather((len(dataset.train), len(dataset.val), len(dataset.classes)))
    if (other := next((rank for rank, size in enumerate(sizes) if size != sizes[0]), None)) is not None:
        raise DataError(
            "the data differs: rank 0 has {} training and {} validation samples of {} classes, "
            "rank {} has {}, {} and {}".format(*sizes[0], other, *sizes[other]),
            hint=_SAME,
        )


def with_statistics(
    plan: Plan, dataset: Dataset, on_progress: Callable[[int, int], None], should_stop: Callable[[], bool]
) -> Plan:
    """Return the plan with `data.mean` and `data.std` for images that are read as they are stored.

    Those left open are measured over all training images, once: run.toml saves them, and a resume has them.

    Args:
        plan: The plan.
        dataset: The scanned data.
        on_progress: Called with (done, total) of images.
        should_stop: Called several times per second.

    Raises:
        ConfigError: They are given for another number of bands.
        ScanCancelledError: `should_stop` returned True.
    """
    data, form, train = plan.config.data, dataset.pixels, dataset.train
    if data.bands == "rgb":
        return plan
    notes = (*plan.notes, f"Images are read as stored: {form}")
    given = {"mean": data.mean, "std": data.std}
    for key, values in given.items():
        if values is not None and len(values) != form.bands:
            raise ConfigError(
                f"data.{key}: {len(values)} values, but images have {form.bands} bands",
                hint=f"give data.{key} one value for each band, or leave it out to measure it",
            )
    if None not in given.values():
        return replace(plan, notes=notes)
    assert isinstance(train, FileSplit | MaskedSplit), "others are not read as stored"
    found = measure(train.files, form, on_progress, should_stop)
    left_open = {"mean": list(found.mean), "std": list(found.std)}
    left_open = {key: value for key, value in left_open.items() if given[key] is None}
    config = plan.config.model_copy(update={"data": data.model_copy(update=left_open)})
    source = f"measured: {len(train):,} training images"
    sources = {**plan.resolved.sources, **{f"data.{key}": source for key in left_open}}
    return replace(plan, resolved=replace(plan.resolved, config=config, sources=sources), notes=notes)
