"""Checks the data of a run by the same scan; opens a set as a run would, and writes what is made of it."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from mptui.config.schema import DataConfig, RunConfig
from mptui.data.describe import data_findings, reading_lines
from mptui.data.open import open_dataset
from mptui.data.scan import OnProgress
from mptui.data.types import Dataset
from mptui.errors import DiskError, MptuiError
from mptui.io.files import expanded, replace_file
from mptui.io.read_speed import READERS, measure_read_speed
from mptui.io.written_files import disk_hint
from mptui.lab.doctor.findings import Finding, advice, findings_of, ok
from mptui.registry.tasks import DEFAULT_TASK
from mptui.runs.planning.plan import Plan, Request, resolve_request
from mptui.text import clean_name, shell_word, size

_ok, _advice = partial(ok, "data"), partial(advice, "data")
_MOST_NAMED = 20
_SLOW_BYTES, _SLOW_FILES = 100 << 20, 1000
"""Bytes and files a second below both of which a disk holds back a classifier that trains on a GPU."""
_MOSTLY_DISK = 0.1
"""Share of what is read from memory up to which the speed is that of the disk."""


def check_data(plan: Plan, on_progress: Callable[[int, int], None]) -> list[Finding]:
    """Open and scan the data of a plan.

    Args:
        plan: Plan of the run.
        on_progress: Called with (files checked, all files).
    """
    config = plan.config
    warnings: list[str] = []
    try:
        dataset = open_dataset(
            config.data,
            kind=config.model.reads(plan.task),
            side=int(config.data.image_size or 0),
            seed=config.split_seed,
            on_progress=on_progress,
            should_stop=lambda: False,
            on_warning=warnings.append,
        )
    except MptuiError as fault:
        return findings_of("data", "data", fault)
    do = "see what is understood: mptui data DATA"
    said = [_advice("warning", warning, do) for warning in warnings]
    return [
        _summary(dataset, plan.task),
        *(_ok("reading", line) for line in reading_lines(dataset)),
        *_problems(dataset, config.data.bad_sample_budget),
        *said,
        *_fit(dataset, plan),
        *_disk(plan),
    ]


def _summary(dataset: Dataset, task: str) -> Finding:
    sides = "" if dataset.sides is None else ", shorter sides {}/{}/{} px".format(*dataset.sides)
    return _ok(
        "data",
        f"{dataset.name}: {len(dataset.train):,} training and {len(dataset.val):,} validation images for "
        f"{task}, {len(dataset.classes)} classes{sides}",
    )


def _problems(dataset: Dataset, budget: float) -> Iterator[Finding]:
    """Report unreadable files within the budget, which a run leaves out; beyond it, the scan has failed."""
    do = f"repair or remove it; a run leaves it out (data.bad_sample_budget = {budget:g})"
    for problem in dataset.problems[:_MOST_NAMED]:
        yield _advice("file", f"{problem.path}: {problem.reason}", do)
    if (more := len(dataset.problems) - _MOST_NAMED) > 0:
        yield _advice("file", f"and {more} more files that can't be used", do)


def _fit(dataset: Dataset, plan: Plan) -> Iterator[Finding]:
    for finding in data_findings(dataset, plan.config.data.sampler):
        yield _advice("classes", finding.what, finding.do)
    side = int(plan.config.data.image_size or 0)
    if dataset.sides is not None and dataset.sides[1] < side:
        what = f"half of the images are smaller than data.image_size = {side} and are enlarged"
        yield _advice("image_size", what, f"--set data.image_size={max(32, dataset.sides[1] // 32 * 32)}")


def _disk(plan: Plan) -> Iterator[Finding]:
    """Report how fast the files of the data are read."""
    if plan.config.data.path is None:
        return
    place = expanded(plan.config.data.path)
    speed = measure_read_speed(place)
    if speed is None:
        return
    rate = f"{speed.bytes_per_second / (1 << 20):,.0f} MiB/s, {speed.files_per_second:,.0f} files/s"
    how = f"in random order by {READERS} threads ({size(speed.bytes_read)} in {speed.seconds:.2f} s)"
    what = f"{place}: {rate}, {how}, "
    if speed.cached is None:
        yield _ok("read speed", f"{what}perhaps from memory: the file system doesn't tell")
    elif speed.cached > _MOSTLY_DISK:
        yield _ok("read speed", f"{what}{speed.cached:.0%} of it from memory: the disk may be slower")
    elif speed.bytes_per_second < _SLOW_BYTES and speed.files_per_second < _SLOW_FILES:
        do = f"mptui prepare {shell_word(place)} --out READY, on a local disk; or --set data.cache=ram"
        yield _advice("read speed", f"{what}from the disk: slow", do)
    else:
        yield _ok("read speed", f"{what}from the disk")


# Opens a set as a run with the same settings would, and writes what is made of it
# --------------------------------------------------------------------------------

_SIDE = 64
"""Side of the built-in images in pixels."""


def read_data(request: Request, on_progress: OnProgress) -> tuple[Dataset, DataConfig]:
    """Open the set of a request, as the kind that it has if no network is named; return it and its settings.

    Raises:
        ConfigError: A setting is wrong, or the person's own code is not trusted.
        DataError: The data is missing, empty, unreadable, or can be read in several ways.
    """
    resolved = resolve_request(request)
    config = resolved.config
    return dataset_of(config, resolved.task or DEFAULT_TASK, on_progress), config.data


def dataset_of(config: RunConfig, task: str, on_progress: OnProgress) -> Dataset:
    """Open the set of a run.

    Raises:
        ConfigError, DataError: As `read_data`.
    """
    return open_dataset(
        config.data,
        kind=config.model.reads(task),
        side=int(config.data.image_size or _SIDE),
        seed=config.split_seed,
        on_progress=on_progress,
        should_stop=lambda: False,
        on_warning=lambda _: None,  # they are in the dataset
    )


def write_new(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        DiskError: It can't be written.
    """
    try:
        replace_file(path, content, mode=0o666)
    except OSError as error:
        raise DiskError(
            f"{clean_name(str(path))}: {(error.strerror or str(error)).lower()}",
            hint=disk_hint(error, path, "choose another folder"),
        ) from error
