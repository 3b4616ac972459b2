"""How long a run would take, by an earlier run of the same network on the same device. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptui.config.keys import value_of
from mptui.config.schema import RunConfig
from mptui.errors import RunDirectoryError
from mptui.hardware.advice import choose_precision
from mptui.hardware.devices import Device
from mptui.runs.listing.rows import RunRow, settings_of
from mptui.runs.store.directory import read_summary, time_of
from mptui.text import read_duration

_NEWEST = 30
"""Earlier runs that are looked at, the newest."""

_LEAST_S = 5.0
"""Seconds of training below which the pace of a run says nothing."""

_HELD = 3.0
"""Time of a run, in times of its steps alone, from which it was paused or suspended most of the time."""

_DATA = ("data.name", "data.path")
_ALIKE = ("model.name", "data.image_size", "training.batch_size", "speed.compile")
"""Settings that decide how long a sample takes, the most important first; the first two must be the same."""
_MUST = 2


@dataclass(frozen=True, slots=True)
class _Pace:
    """How fast an earlier run was, over all that it did: steps, validations and saves.

    Attributes:
        run: Its name.
        settings: Its settings.
        start_s: Seconds until its first step.
        sample_s: Seconds per training sample after that.
        samples: Number of training samples of its data; None: not known.
    """

    run: str
    settings: dict[str, Any]
    start_s: float
    sample_s: float
    samples: int | None


@dataclass(frozen=True, slots=True)
class ExpectedTime:
    """The time that a run would take, and the earlier run by which it is reckoned; "": it is set."""

    seconds: float
    run: str


def expected_time(
    rows: Sequence[RunRow], config: RunConfig, device: Device, *, ranks: int = 1, samples: int | None = None
) -> ExpectedTime | None:
    """Reckon the time of a run, or return the one it is given; None: no earlier run tells it.

    Args:
        rows: The earlier runs, newest first.
        config: The run, with its network and the size of its images.
        device: Its device.
        ranks: Number of processes.
        samples: Number of training samples; None: as an earlier run has found on the same data.
    """
    if config.training.time is not None:
        return ExpectedTime(read_duration(config.training.time), "")
    used = choose_precision(config.precision.mode, device).used
    candidates = [row for row in rows if row.model == config.model.name and row.precision == used]
    paces = (_pace_of(row.path, device, ranks) for row in candidates[:_NEWEST])
    alike = [pace for pace in paces if pace is not None]
    if samples is None:
        of_data = (each.samples for each in alike if _same(each, config, _DATA) == len(_DATA))
        samples = next((each for each in of_data if each), None)
    fitting = [each for each in alike if _same(each, config, _ALIKE[:_MUST]) == _MUST]
    if not samples or not fitting:
        return None
    pace = max(fitting, key=lambda each: _same(each, config, _ALIKE))  # of equals, the newest
    training = config.training
    wanted = samples * training.epochs
    if training.max_steps is not None:
        wanted = min(wanted, training.max_steps * training.batch_size * training.accumulate)
    return ExpectedTime(pace.start_s + wanted * pace.sample_s, pace.run)


def _same(pace: _Pace, config: RunConfig, keys: Sequence[str]) -> int:
    return sum(pace.settings.get(key) == value_of(config, key) for key in keys)


def _pace_of(run: Path, device: Device, ranks: int) -> _Pace | None:
    """Return the pace of a run; None: it has trained elsewhere, or too little."""
    summary = read_summary(run)
    if summary.get("device") != device.name or (summary.get("ranks") or 1) != ranks:
        return None
    spent, seen = summary.get("time") or {}, summary.get("samples_seen")
    session_s, total_s = time_of(summary)
    seconds, start_s = total_s or session_s, spent.get("first_step_s")
    if not isinstance(start_s, int | float) or not isinstance(seen, int) or seconds is None or seen <= 0:
        return None
    sample_s, rate = (seconds - start_s) / seen, summary.get("samples_per_second")
    was_held = isinstance(rate, int | float) and sample_s * rate > _HELD
    if seconds - start_s < _LEAST_S or was_held:
        return None
    try:
        settings = settings_of(run)
    except RunDirectoryError:
        return None
    samples = (summary.get("dataset") or {}).get("train_samples")
    known = samples if isinstance(samples, int) else None
    return _Pace(run.name, settings, float(start_s), sample_s, known)


def time_words(seconds: float) -> str:
    """Return a duration as it is known in advance: `about 4 min`."""
    if seconds < 90:
        return f"about {max(5, round(seconds / 5) * 5)} s"
    if seconds < 90 * 60:
        return f"about {seconds / 60:.0f} min"
    if seconds < 36 * 3600:
        return f"about {seconds / 3600:.1f} h"
    return f"about {seconds / 86400:.1f} d"
