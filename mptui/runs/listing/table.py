"""The table of runs that the shell prints: its columns, and which runs are in it, in which order."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mptui import text as fmt
from mptui.errors import ConfigError, RunDirectoryError
from mptui.io.records import as_number
from mptui.registry.tasks import VAL_LOSS, metric_word
from mptui.runs.listing.forks import parent_words
from mptui.runs.listing.rows import differing, settings_of
from mptui.runs.view.words import steps_words
from mptui.text import clean


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run of the list: its summary, and its settings by `table.key`; none where they can't be read."""

    summary: Mapping[str, Any]
    settings: Mapping[str, Any]

    @property
    def path(self) -> Path:
        """The run's directory."""
        return Path(str(self.summary["directory"]))

    def at(self, *keys: str) -> Any:  # noqa: ANN401 - a value of JSON
        """Return a value of the summary; None if it has none there."""
        value: Any = self.summary
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


@dataclass(frozen=True, slots=True)
class RunColumn:
    """A column of the table.

    Attributes:
        name: Its heading.
        value: Returns what a run has in it, to sort by; None: nothing.
        words: Returns the cell of a run.
        leave: Order in which a narrow terminal omits it: largest first, 0 never.
        is_figure: Whether its cells are aligned to the right.
        usual: What it has in most runs: where all have that, it is left out unless asked for.
        asked: Whether it is shown only if it is asked for.
    """

    name: str
    value: Callable[[ListedRun], object]
    words: Callable[[ListedRun], str]
    leave: int = 0
    is_figure: bool = False
    usual: str | None = None
    asked: bool = False


def _of(name: str, *keys: str, leave: int = 0, asked: bool = False) -> RunColumn:
    """Return a column of a word of the summary."""
    return RunColumn(
        name, lambda run: run.at(*keys), lambda run: str(run.at(*keys) or fmt.UNKNOWN), leave, asked=asked
    )


def _best(run: ListedRun) -> object:
    """Return the metric and its best value, so that the better one of two is the larger."""
    metric, value = run.at("best", "metric"), run.at("best", "value")
    if not isinstance(value, float):
        return None
    return str(metric), -value if metric == VAL_LOSS else value


def _best_words(run: ListedRun) -> str:
    metric, value = str(run.at("best", "metric")), run.at("best", "value")
    return f"{metric_word(metric)} {value:.4f}" if isinstance(value, float) else fmt.UNKNOWN


def _status(run: ListedRun) -> str:
    silent = run.at("silent_s")
    return str(run.at("status")) + (f", no sign for {fmt.duration(silent)}" if silent else "")


def _epochs(run: ListedRun) -> str:
    return str(run.summary.get("epochs", fmt.UNKNOWN))


def _steps(run: ListedRun) -> str:
    return steps_words(run.summary.get("optimizer_steps", 0), run.at("total_steps"))


def _rate(run: ListedRun) -> str:
    rate = run.at("samples_per_second")
    return f"{rate:,.1f}" if isinstance(rate, float) else fmt.UNKNOWN


def _ranks(run: ListedRun) -> str:
    """Return the number of processes of a run, and of its nodes if it has several."""
    ranks, nodes = run.summary.get("ranks", 1), run.summary.get("nodes", 1)
    return f"{ranks:,} on {nodes:,} nodes" if nodes > 1 else f"{ranks:,}"


def _seconds(run: ListedRun) -> str:
    return fmt.duration(as_number(run.at("time", "total_s")))


def _parent(run: ListedRun) -> str:
    return parent_words(run.path, dict(run.summary))


COLUMNS = {
    column.name: column
    for column in (
        # not shortened: other commands need it
        RunColumn("run", lambda run: run.path.name, lambda run: clean(run.path.name)),
        RunColumn("status", lambda run: run.at("status"), _status),
        _of("model", "model"),
        _of("data", "dataset", "name"),
        RunColumn("best", _best, _best_words, leave=1),
        RunColumn("epochs", lambda run: run.at("epochs"), _epochs, 2, True),
        RunColumn("images/s", lambda run: run.at("samples_per_second"), _rate, 3, True),
        _of("precision", "precision", "used", leave=4),
        RunColumn("steps", lambda run: run.at("optimizer_steps"), _steps, 5, True),
        RunColumn("ranks", lambda run: run.summary.get("ranks", 1), _ranks, 6, True, usual="1"),
        RunColumn("fork of", _parent, _parent, 7, usual=""),
        _of("task", "task", asked=True),
        _of("device", "device", asked=True),
        RunColumn("time", lambda run: run.at("time", "total_s"), _seconds, 0, True, asked=True),
    )
}
"""The columns by name, in their order."""


def listed_runs(summaries: Iterable[dict[str, Any]], *, with_settings: bool) -> list[ListedRun]:
    """Return the runs of these summaries, with their settings if they are needed."""
    return [ListedRun(each, _settings(each) if with_settings else {}) for each in summaries]


def _settings(summary: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return settings_of(Path(str(summary["directory"])))
    except RunDirectoryError:
        return {}


def differing_settings(runs: Sequence[ListedRun]) -> list[str]:
    """Return the settings that are not the same in all runs."""
    return list(differing([run.settings for run in runs]))


def column_of(name: str) -> RunColumn:
    """Return the column with a heading, or that of a setting.

    Raises:
        ConfigError: There is no such column.
    """
    from mptui.config.keys import SETTINGS, nearest_setting

    name = name.strip()
    if name in COLUMNS:
        return COLUMNS[name]
    if name in SETTINGS:
        return setting_column(name)
    near = next(iter(get_close_matches(name, COLUMNS, n=1)), None) or nearest_setting(name)
    raise ConfigError(
        f"{clean(name, 100)}: no column of the runs" + (f"; nearest: {near}" if near else ""),
        hint=f"name a setting, as training.lr, or one of: {', '.join(COLUMNS)}",
    )


def setting_column(key: str) -> RunColumn:
    """Return the column of a setting."""
    return RunColumn(key, lambda run: run.settings.get(key), lambda run: _setting(run, key), leave=8)


def _setting(run: ListedRun, key: str) -> str:
    if key not in run.settings:
        return "unset" if run.settings else fmt.UNKNOWN
    value = run.settings[key]
    return str(value).lower() if isinstance(value, bool) else clean(str(value), 60)


def chosen_runs(runs: Sequence[ListedRun], filters: Sequence[str]) -> list[ListedRun]:
    """Return the runs that match all filters: COLUMN=VALUE, or a word in any cell.

    Raises:
        ConfigError: A filter names no column.
    """
    tests = [_test(text) for text in filters]
    return [run for run in runs if all(test(run) for test in tests)]


def _test(text: str) -> Callable[[ListedRun], bool]:
    name, equals, wanted = text.partition("=")
    if not equals:
        return lambda run: any(text.lower() in column.words(run).lower() for column in COLUMNS.values())
    column = column_of(name)
    return lambda run: _is(wanted.strip().lower(), column.value(run), column.words(run))


def _is(wanted: str, value: object, words: str) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(wanted) == value
        except ValueError:
            return False
    return wanted in {words.lower(), str(value).lower()}


def in_order(runs: Sequence[ListedRun], column: RunColumn) -> list[ListedRun]:
    """Return the runs with the largest value of a column last, and those without one first."""
    return sorted(runs, key=lambda run: _place(column.value(run)))


def _place(value: object) -> tuple[Any, ...]:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return (0,)
    if isinstance(value, tuple):
        return (3, *value)
    return (1, value) if isinstance(value, int | float) else (2, str(value).lower())
