"""The summaries of runs as rows: listed, ordered, compared."""

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli

from mptui import text as fmt
from mptui.errors import RunDirectoryError
from mptui.io.files import read_regular
from mptui.io.records import as_number
from mptui.registry.tasks import metric_spec, metric_word
from mptui.runs.listing.forks import fork_step, parent_of
from mptui.runs.store.directory import (
    CONFIG,
    CRASHED,
    ENVIRONMENT,
    LARGEST,
    SUMMARY,
    check_version,
    is_trained,
    list_runs,
    read_json,
    started_of,
    status_of,
    summary_of,
    time_of,
)
from mptui.runs.store.heartbeat import Heartbeat, silence_of
from mptui.runs.view.words import metric_words
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.runs.view.run_view import RunView

# Lists the summaries of runs, and compares runs
# ----------------------------------------------

_ENVIRONMENT = ("platform", "python", "cuda", "driver", "git_commit", "processors", "torch_threads")

_FIGURES = {
    "status": ("status",),
    "device": ("device",),
    "precision": ("precision", "used"),
    "epochs": ("epochs",),
    "optimizer_steps": ("optimizer_steps",),
    "skipped_steps": ("skipped_steps",),
    "best_epoch": ("best", "epoch"),
    "best_metric": ("best", "metric"),
    "best_value": ("best", "value"),
    "ranks": ("ranks",),
    "samples_per_second": ("samples_per_second",),
    "total_s": ("time", "total_s"),
    "first_step_s": ("time", "first_step_s"),
    "data_wait_fraction": ("time", "data_wait_fraction"),
    "peak_allocated_bytes": ("memory", "peak_allocated_bytes"),
    "peak_reserved_bytes": ("memory", "peak_reserved_bytes"),
    "host_peak_bytes": ("memory", "host_peak_bytes"),
}


_LOSS_WORDS = {"train_loss": "loss, train", "val_loss": "loss, validation"}
_FIGURE_WORDS = {
    "status": "state",
    "optimizer_steps": "optimizer steps",
    "skipped_steps": "skipped steps",
    "best_epoch": "epoch of best",
    "best_metric": "metric of best",
    "best_value": "best",
    "samples_per_second": "images/s",
    "total_s": "time",
    "first_step_s": "until the first step",
    "data_wait_fraction": "waited for data",
    "peak_allocated_bytes": "device memory, peak",
    "peak_reserved_bytes": "device memory reserved",
    "host_peak_bytes": "host memory, peak",
}
"""Figures by the words that the other screens have for them."""

_UNITS: dict[str, Callable[[float], str]] = {
    "_fraction": fmt.percent,
    "_bytes": fmt.size,
    "_s": fmt.duration,
    "_per_second": lambda rate: f"{rate:,.0f}" if 100 <= rate < 1e6 else fmt.figure(rate),
}
"""The end of the name of a figure -> its words."""


def summaries(folder: Path, on_error: Callable[[OSError], None] = lambda _: None) -> list[dict[str, Any]]:
    """Return the summary of each run, in the order of their start.

    `silent_s` is set for a running run that gives no sign any more.

    Args:
        folder: The folder of all runs.
        on_error: Called for each folder that can't be read.
    """
    found = []
    for run in list_runs(folder, on_error):
        summary = status_of(run)
        silent_s = silence_of(run, Heartbeat()) if summary["status"] == "running" else None
        if silent_s is not None:
            summary["silent_s"] = round(silent_s)
        found.append((started_of(run, summary), run.name, summary))
    return [summary for *_, summary in sorted(found, key=lambda each: each[:2])]


def compare(runs: Sequence[Path]) -> dict[str, Any]:
    """Compare runs; each entry is a list with a value for each of them.

    `settings`: differing values of run.toml, None if a run has none; `environment`: differing versions, and
    commits; `figures`: values of summary.json; `changes`: what changed during a run, its switches and its
    recoveries; `branches`: those of a run that has left some, the last one in force; `curves`: losses and
    metrics by epoch, by name.

    Raises:
        RunDirectoryError: The configuration of one can't be read, or it is of a later version.
    """
    views = [_view(run) for run in runs]
    curves = [_curves(view) for view in views]
    since = fork_step(runs) or 0
    return {
        "runs": [run.name for run in runs],
        "directories": [str(run) for run in runs],
        **compare_setups(runs),
        "changes": [_changes(view, since) for view in views],
        "branches": [_branches(view) for view in views],
        "curves": _side_by_side(curves, []),
    }


def compare_setups(runs: Sequence[Path]) -> dict[str, Any]:
    """Return `settings`, `environment` and `figures` of `compare`, without a look at journals."""
    for run in runs:
        check_version(run)
    return {
        "settings": differing([settings_of(run) for run in runs]),
        "environment": differing([_environment(run) for run in runs]),
        "figures": _side_by_side([_figures(status_of(run)) for run in runs], None),
    }


def differing(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each key that are not the same in all tables."""
    return _unequal(_side_by_side(tables, None))


def _unequal(rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    return {key: values for key, values in rows.items() if any(value != values[0] for value in values)}


def _side_by_side(tables: Sequence[Mapping[str, Any]], missing: object) -> dict[str, list[Any]]:
    """Return the values of each key that any of the tables has."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return {key: [table.get(key, missing) for table in tables] for key in keys}


def settings_of(run: Path) -> dict[str, Any]:
    """Return run.toml as table.key -> value.

    Raises:
        RunDirectoryError: It can't be read.
    """
    try:
        document = tomli.loads(read_regular(run / CONFIG, LARGEST).decode())
        for name in ("version", "description"):
            document.pop(name, None)
        return dict(_flat("", document))
    except (OSError, ValueError, RecursionError) as error:
        raise RunDirectoryError(
            f"{run / CONFIG}: {error}", hint="choose complete runs; mptui runs lists them"
        ) from None


class DifferingSettings:
    """Finds the settings that differ among runs; each run.toml is read again only after it has changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, dict[str, Any]]] = {}

    def among(self, runs: Iterable[Path]) -> list[str]:
        """Return the keys of the settings that differ; a run whose settings can't be read is left out."""
        return list(differing([each for run in runs if (each := self._settings_of(run))]))

    def _settings_of(self, run: Path) -> dict[str, Any]:
        try:
            changed = (run / CONFIG).stat().st_mtime_ns
            known = self._known.get(run)
            if known is None or known[0] != changed:
                known = self._known[run] = changed, settings_of(run)
        except (OSError, RunDirectoryError):
            return {}
        return known[1]


def _environment(run: Path) -> dict[str, Any]:
    """Return versions and commit of environment.json; empty without one."""
    found = read_json(run / ENVIRONMENT)
    packages = found.get("packages")
    versions = packages if isinstance(packages, dict) else {}
    known = {**{name: found.get(name) for name in _ENVIRONMENT}, **versions}
    return {clean(name): clean(str(value)) for name, value in known.items() if value is not None}


def _flat(prefix: str, table: dict[str, Any]) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in table.items():
        flat += _flat(f"{prefix}{key}.", value) if isinstance(value, dict) else [(clean(prefix + key), value)]
    return flat


def _figures(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the summary: final loss and metrics, then the others."""
    final = summary.get("final")
    figures = (
        {f"final_{clean(name)}": value for name, value in final.items()} if isinstance(final, dict) else {}
    )
    for name, path in _FIGURES.items():
        value: Any = summary
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        figures[name] = clean(value) if isinstance(value, str) else value
    return figures


def _view(run: Path) -> "RunView | None":
    """Return the view of a run; None if it has no readable journal."""
    from mptui.runs.store.index import read_run  # needs NumPy, and the list of runs does not

    try:
        return read_run(run)
    except OSError:
        return None


def _curves(view: "RunView | None") -> dict[str, list[float]]:
    """Return losses and metrics by epoch; for very many epochs, means of neighbouring ones."""
    from mptui.runs.view.state import EPOCHS_KEPT

    by_epoch = {} if view is None else view.by_epoch
    return {name: history.tail(EPOCHS_KEPT).tolist() for name, history in by_epoch.items()}


def _changes(view: "RunView | None", since: int) -> list[str]:
    marks = () if view is None else view.marks
    return [f"{mark.label} at step {mark.step:,}" for mark in marks if mark.step > since]


def _branches(view: "RunView | None") -> list[dict[str, Any]]:
    return [] if view is None or not view.branches else list(map(asdict, [*view.branches, view.branch()]))


# What differs between runs, and whether it explains their figures: only where it is a single thing
# --------------------------------------------------------------------------------------------------

CHANGES = "changes during the run"

_OF_THE_MACHINE = ("device", "ranks")
"""Figures that are no results."""

_NAMED = 6
"""Number of things that differ that a sentence names."""


def what_differs(compared: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return all that differs between runs but their results, with the value of each; see `compare`."""
    figures = {name: compared["figures"][name] for name in _OF_THE_MACHINE if name in compared["figures"]}
    others = {**figures, CHANGES: [", ".join(each) or "none" for each in compared.get("changes", [""])]}
    return {
        **compared["settings"],
        **compared["environment"],
        **_unequal(others),
    }


_OF_A_TABLE = {"name", "path", "mode"}
"""Settings that are named by their table: the name of the model, the path of the data."""


_SETTING_WORDS = {
    "model.vae": "VAE",
    "model.vae_precision": "VAE precision",
    "model.vae_sha256": "VAE checksum",
    "model.up": "upsampling",
    "model.norm": "normalization",
    "precision.matmul": "matrix products",
    "precision.fp32_layers": "FP32 layers",
    "precision.grad_scaler.init_scale": "first loss scale",
    "precision.grad_scaler.growth_factor": "loss scale growth",
    "precision.grad_scaler.backoff_factor": "loss scale backoff",
    "precision.grad_scaler.growth_interval": "loss scale interval",
    "precision.grad_scaler.min_scale": "least loss scale",
    "training.time": "time limit",
    "training.max_steps": "step limit",
    "training.accumulate": "accumulation",
    "training.freeze": "frozen layers",
    "training.warmup_max_fraction": "warmup limit",
    "training.eps": "optimizer epsilon",
    "training.clip_grad_norm": "gradient clipping",
    "training.min_snr_gamma": "SNR weighting",
    "training.ema_decay": "EMA decay",
    "memory.budget_gib": "memory limit",
    "memory.shard": "sharding",
    "data.crop_pct": "validation crop",
    "data.mean": "pixel mean",
    "data.std": "pixel deviation",
    "data.val_fraction": "validation fraction",
    "data.sampler": "sample order",
    "sampling.count": "generated images",
    "sampling.steps": "sampling steps",
    "sampling.sampler": "sampling method",
    "sampling.every_epochs": "sampling interval",
    "sampling.keep": "kept images",
    "checkpoint.every_steps": "checkpoint steps",
    "checkpoint.every_minutes": "checkpoint minutes",
    "checkpoint.keep": "kept checkpoints",
    "guards.on_nan": "on NaN",
    "guards.on_oom": "on full memory",
    "guards.snapshot_every": "snapshot interval",
    "guards.max_recoveries": "recovery limit",
    "guards.max_skipped_streak": "skipped step limit",
    "logging.step_interval_s": "logging interval",
    "code.folder": "code folder",
}
"""Names of settings whose keys are abbreviated, or say little without their table."""


def setting_words(key: str) -> str:
    """Return the name of a setting for people, `batch size` of training.batch_size; others as they are."""
    table, _, name = key.rpartition(".")
    if not table:
        return key
    if key in _SETTING_WORDS:
        return _SETTING_WORDS[key]
    return table if name in _OF_A_TABLE else name.replace("_", " ")


def figure_name(name: str) -> str:
    """Return the name of a figure of `compare` for people, who have others for some than --json."""
    metric = name.removeprefix("final_")
    if metric in _LOSS_WORDS:
        return _LOSS_WORDS[metric]
    return metric_word(metric) if metric != name else _FIGURE_WORDS.get(name, name)


def figure_texts(compared: Mapping[str, Any], name: str, values: Sequence[object]) -> list[str]:
    """Return the values of a row of `compare` for people, with their units; not cleaned."""
    metrics: Sequence[object] = [name.removeprefix("final_")] * len(values)
    if name == "best_value":
        metrics = compared["figures"].get("best_metric", metrics)
    return [_figure_text(name, *each) for each in zip(values, metrics, strict=True)]


def _figure_text(name: str, value: object, metric: object) -> str:
    if value is None:
        return "unset" if "." in name else fmt.UNKNOWN
    number = as_number(value)
    if number is None or "." in name:
        return metric_word(value) if name == "best_metric" and isinstance(value, str) else str(value)
    if isinstance(metric, str) and name.startswith(("best_value", "final_")):
        return fmt.percent(number) if metric_spec(metric).fraction else fmt.figure(number)
    for ending, words in _UNITS.items():
        if name.endswith(ending):
            return words(number)
    return f"{value:,}" if isinstance(value, int) else fmt.figure(number)


def cause_words(differing: Collection[str]) -> str:
    """Say what differs; a cause is named only where it is a single thing."""
    if not differing:
        return "no setting, version or device differs"
    if len(differing) == 1:
        return f"only {clean(setting_words(next(iter(differing))))} differs"
    names = list(dict.fromkeys(clean(setting_words(name)) for name in differing))
    named = ", ".join(names[:_NAMED])
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"{len(differing):,} things differ, so that none is known as the cause: {named}{more}"


# The rows of the list of runs, from their summaries; imports no torch and no numpy
# ---------------------------------------------------------------------------------
# A summary is read again only after its file has changed: a look at 200 runs costs two `stat` calls each.

RUNNING = "running"

_AWAY_S = 10.0
"""Seconds between two looks at the list after which what was seen of the signs of runs is old."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in the list; "" and None: not known.

    Attributes:
        path: Its directory.
        state: Its status (`mptui.runs.store.directory.status_of`).
        task: Its task.
        model: Its network.
        data: Name or path of its data.
        precision: The precision in use.
        metric: The name of its primary metric.
        best: The best value of this metric.
        rate: Training samples a second.
        seconds: Its time over all sessions, in seconds.
        seconds_before: That of the sessions before the last one.
        started: When it was last started, in seconds since the epoch.
        parent: The run that it was forked from, and the step there; None: it is no fork.
        is_doubtful: Whether it ended as it should with a result that is doubtful.
        silent_s: Seconds without a sign, if it should give one each second and does not; None: all is well.
    """

    path: Path
    state: str
    task: str
    model: str
    data: str
    precision: str
    metric: str
    best: float | None
    rate: float | None
    seconds: float | None
    seconds_before: float
    started: float
    parent: tuple[Path, int] | None
    is_doubtful: bool = False
    silent_s: float | None = None

    @property
    def name(self) -> str:
        """The name of the run, as its directory has it."""
        return self.path.name

    def seconds_at(self, now: float) -> float | None:
        """Return its time over all sessions at `now`, in seconds since the epoch."""
        return self.seconds_before + now - self.started if self.state == RUNNING else self.seconds

    @property
    def best_words(self) -> str:
        """The best value with its metric: `top-1 76.4 %`, `loss 0.0123`."""
        known = [] if self.best is None else metric_words({self.metric: self.best})
        return known[0].removeprefix("val_") if known else fmt.UNKNOWN

    def matches(self, words: Sequence[str]) -> bool:
        """Whether each of these lower-case words is in a word of the row."""
        state = self.state.replace("_", " ")
        texts = (self.name, self.state, state, self.task, self.model, self.data, self.precision, self.metric)
        said = " ".join(texts).lower()
        return all(word in said for word in words)


_STAMP = re.compile(r"\d{8}-\d{6}-(?=.)")


def unstamped(name: str) -> str:
    """Return the name of a run without the time of its start."""
    return _STAMP.sub("", name)


class RunList:
    """The runs of a folder.

    Args:
        folder: The folder of all runs.
        read: Reads the summary of a run.
    """

    def __init__(self, folder: Path, read: Callable[[Path], dict[str, Any]] = summary_of) -> None:
        self.folder = folder
        self._read = read
        self._known: dict[Path, tuple[object, RunRow]] = {}
        self._heartbeats: dict[Path, Heartbeat] = {}
        self._looked = time.monotonic()

    def rows(self) -> list[RunRow]:
        """Return the row of each run, newest first; reads the summaries that have changed."""
        known = self._known
        self._known = {run: self._row(run, known) for run in list_runs(self.folder)}
        now = time.monotonic()
        if now - self._looked > _AWAY_S:
            self._heartbeats = {}
        self._looked = now
        rows = [self._with_signs(_with_state(row)) for _, row in self._known.values()]
        return sorted(rows, key=lambda row: (row.started, row.name), reverse=True)

    def _with_signs(self, row: RunRow) -> RunRow:
        if row.state != RUNNING:
            self._heartbeats.pop(row.path, None)
            return row
        heartbeat = self._heartbeats.setdefault(row.path, Heartbeat())
        return replace(row, silent_s=silence_of(row.path, heartbeat))

    def _row(self, run: Path, known: dict[Path, tuple[object, RunRow]]) -> tuple[object, RunRow]:
        try:
            status = os.stat(run / SUMMARY)  # noqa: PTH116 - as the files' writer does
            version = status.st_ino, status.st_mtime_ns, status.st_size
        except OSError:
            version = None
        before = known.get(run)
        if before is not None and before[0] == version and before[1].model and _is_parent_there(before[1]):
            return before
        return version, row_of(run, self._read(run))


def row_of(run: Path, summary: dict[str, Any]) -> RunRow:
    """Return the row of a run from its summary."""
    best, (session_s, total_s) = summary.get("best") or {}, time_of(summary)
    return RunRow(
        path=run,
        state=summary.get("status") or RUNNING,
        task=summary.get("task") or "",
        model=summary.get("model") or "",
        data=_word(summary, "dataset", "name"),
        precision=_word(summary, "precision", "used"),
        metric=best.get("metric") or "",
        best=as_number(best.get("value")),
        rate=as_number(summary.get("samples_per_second")),
        seconds=session_s if total_s is None else total_s,
        seconds_before=0.0 if total_s is None or session_s is None else total_s - session_s,
        started=started_of(run, summary),
        parent=parent_of(run, summary),
        is_doubtful=bool(summary.get("concerns")),
    )


def _is_parent_there(row: RunRow) -> bool:
    """Whether the parent of a fork still has its name; a run that is no fork needs none."""
    return row.parent is None or (row.parent[0] / CONFIG).is_file()


def _with_state(row: RunRow) -> RunRow:
    """Tell a run that is trained from one whose process has gone."""
    return replace(row, state=CRASHED) if row.state == RUNNING and not is_trained(row.path) else row


def _word(summary: dict[str, Any], table: str, key: str) -> str:
    value = (summary.get(table) or {}).get(key)
    return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class Order:
    """An order of the list: its name, and the place of a row."""

    name: str
    place: Callable[[RunRow], Any]


def _falling(value: float | None) -> tuple[bool, float]:
    """Sort large values first, unknown ones last."""
    return value is None, -(value or 0.0)


ORDERS = (
    Order("newest", lambda row: 0),
    Order("name", lambda row: row.name.lower()),
    Order("state", lambda row: (row.state != RUNNING, row.state)),
    Order("model", lambda row: (row.model, row.data)),
    Order("best", lambda row: (row.best is None, row.metric, _falling(row.best))),
    Order("images/s", lambda row: _falling(row.rate)),
    Order("time", lambda row: _falling(row.seconds)),
)
"""The orders of the list, as the key cycles through them; rows of one place stay newest first."""


def chosen_rows(rows: Sequence[RunRow], order: Order, words: str = "") -> list[RunRow]:
    """Return the rows that match all `words`, in an order."""
    wanted = words.lower().split()
    return sorted((row for row in rows if row.matches(wanted)), key=order.place)
