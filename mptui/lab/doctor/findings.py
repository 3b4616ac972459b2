"""What the doctor found: one line that says what is, and one that says what to do."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mptui.errors import ConfigError, DataError, DiskError, MptuiError
from mptui.text import clean

State = Literal["ok", "advice", "error"]
Area = Literal["machine", "data", "configuration", "two configurations"]

AREAS: tuple[Area, ...] = ("machine", "data", "configuration", "two configurations")
"""The order in which they are shown."""
DISK = "disk"
"""The finding of the machine that has an exit code of its own."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `do` is empty where there is nothing to do."""

    area: Area
    name: str
    state: State
    what: str
    do: str = ""


def ok(area: Area, name: str, what: str) -> Finding:
    """Nothing is to be done."""
    return Finding(area, name, "ok", clean(what))


def advice(area: Area, name: str, what: str, do: str) -> Finding:
    """It works, and would work better otherwise."""
    return Finding(area, name, "advice", clean(what), clean(do))


def error(area: Area, name: str, what: str, do: str) -> Finding:
    """It does not work, or not as it says."""
    return Finding(area, name, "error", clean(what), clean(do))


def told(area: Area, name: str, fault: MptuiError) -> list[Finding]:
    """The findings of an error that a run would end with: one for each line of its message."""
    return [error(area, name, line.strip(), fault.hint) for line in fault.message.splitlines()]


def sentence(area: Area, name: str, state: Literal["advice", "error"], text: str, do: str = "") -> Finding:
    """The finding of a sentence that says what is and, after a colon, what to do."""
    what, _, rest = text.rstrip(".").partition(": ")
    return Finding(area, name, state, clean(what), clean(rest or do))


def exit_code(findings: Iterable[Finding]) -> int:
    """The exit code: 0 without errors; 2 for the machine and configurations, 3 for data, 7 for the disk.

    Of several the smallest: what is said wrongly is put right first.
    """
    return min((_code(finding) for finding in findings if finding.state == "error"), default=0)


def _code(finding: Finding) -> int:
    if finding.area == "data":
        return DataError.exit_code
    return DiskError.exit_code if finding.name == DISK else ConfigError.exit_code
