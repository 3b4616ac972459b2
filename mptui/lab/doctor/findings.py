"""The findings of the doctor: a line with the fact, and one with the remedy."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mptui.errors import ConfigError, DataError, DiskError, MptuiError
from mptui.text import clean

State = Literal["ok", "advice", "error"]
Area = Literal["machine", "data", "configuration", "two configurations"]

AREAS: tuple[Area, ...] = ("machine", "data", "configuration", "two configurations")
"""The areas in the order in which they are shown."""
DISK = "disk"
"""The name of the finding with its own exit code."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `do` is the remedy; "" if there is none."""

    area: Area
    name: str
    state: State
    what: str
    do: str = ""


def ok(area: Area, name: str, what: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(area, name, "ok", clean(what))


def advice(area: Area, name: str, what: str, do: str) -> Finding:
    """Return a finding of something that works, but could work better."""
    return Finding(area, name, "advice", clean(what), clean(do))


def error(area: Area, name: str, what: str, do: str) -> Finding:
    """Return a finding of something that doesn't work, or not as configured."""
    return Finding(area, name, "error", clean(what), clean(do))


def findings_of(area: Area, name: str, fault: MptuiError) -> list[Finding]:
    """Return the findings of an error that would end a run: one per line of its message."""
    return [error(area, name, line.strip(), fault.hint) for line in fault.message.splitlines()]


def sentence(area: Area, name: str, state: Literal["advice", "error"], text: str, *, do: str = "") -> Finding:
    """Return the finding of a sentence that gives the fact and, after a colon, the remedy."""
    what, _, rest = text.rstrip(".").partition(": ")
    return Finding(area, name, state, clean(what), clean(rest or do))


def exit_code(findings: Iterable[Finding]) -> int:
    """Return the exit code: 0 without errors; 2 for the machine and configurations, 3 for data, 7 for disk.

    Of several, the smallest: configuration errors are to be fixed first.
    """
    return min((_code(finding) for finding in findings if finding.state == "error"), default=0)


def _code(finding: Finding) -> int:
    if finding.area == "data":
        return DataError.exit_code
    return DiskError.exit_code if finding.name == DISK else ConfigError.exit_code
