"""Device statistics as rows of a CSV file: of `mptui monitor --csv`, and of `device.csv` in a run.

One table is the truth for the columns. Unknown values are empty.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone

from mptui.events import DeviceProcess, DeviceSample

COLUMNS: Mapping[str, Callable[[DeviceSample], object]] = {
    "time": lambda sample: _iso(sample.time),
    "device": lambda sample: sample.device,
    "name": lambda sample: sample.name,
    "utilisation_percent": lambda sample: _percent(sample.utilisation),
    "utilisation_own_percent": lambda sample: _percent(sample.utilisation_own),
    "memory_utilisation_percent": lambda sample: _percent(sample.memory_utilisation),
    "memory_used_bytes": lambda sample: sample.memory_used,
    "memory_own_bytes": lambda sample: sample.memory_own,
    "memory_total_bytes": lambda sample: sample.memory_total,
    "power_w": lambda sample: sample.power_w,
    "power_limit_w": lambda sample: sample.power_limit_w,
    "temperature_c": lambda sample: sample.temperature_c,
    "sm_clock_mhz": lambda sample: sample.sm_clock_mhz,
    "memory_clock_mhz": lambda sample: sample.memory_clock_mhz,
    "throttle": lambda sample: "; ".join(sample.throttle),
    "processes": lambda sample: "; ".join(process_words(each) for each in sample.processes or ()),
}
"""Heading, with the unit -> value of a sample."""


def csv_header() -> str:
    """Return the headings as a line of CSV."""
    return _line(list(COLUMNS))


def csv_row(sample: DeviceSample) -> str:
    """Return a sample as a line of CSV."""
    return _line([value(sample) for value in COLUMNS.values()])


def process_words(process: DeviceProcess) -> str:
    """Return `PID USER BYTES COMMAND`; `?` for what is unknown."""
    known = (process.pid, process.user, process.memory, process.command)
    return " ".join("?" if value is None else str(value) for value in known)


def _line(values: Sequence[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else round(100 * fraction, 1)
