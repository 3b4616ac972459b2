"""The results that the page is made of, and what a section holds."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.page.words import Ratio, capital, ratio

NO = "**no**"


@dataclass(frozen=True)
class Result:
    """One file of `benchmarks/results/`."""

    name: str
    document: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """What it is a result of: the name up to the part that was measured."""
        return self.name.partition("-")[0]

    @property
    def part(self) -> str:
        """What of it was measured; empty: all."""
        return self.name.partition("-")[2]

    @property
    def date(self) -> str:
        return str(self.document.get("machine", {}).get("date", ""))

    @property
    def place(self) -> str:
        """The machine in a few words."""
        about = self.document.get("machine", {})
        threads = about.get("threads")
        counted = (
            f", {threads} thread{'' if threads == 1 else 's'}" if threads and not about.get("gpu") else ""
        )
        named = about.get("gpu") or about.get("cpu") or self.document.get("device_name", "a machine unknown")
        return f"{named}{counted}"

    @property
    def versions(self) -> str:
        """What it ran with, and when."""
        about = self.document.get("machine", {})
        return f"torch {about.get('torch')}, Python {about.get('python')}; {self.date}"

    @property
    def machine(self) -> str:
        """The machine, the versions and the day."""
        return f"{self.place}; {self.versions}" if "machine" in self.document else self.place


def found_in(folder: Path) -> list[Result]:
    """All results; a part that was measured with the whole again since is left out."""
    results = [
        Result(path.stem, json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(folder.glob("*.json"))
    ]
    return [each for each in results if not any(_supersedes(whole, each) for whole in results)]


def _supersedes(whole: Result, part: Result) -> bool:
    if not part.name.startswith(f"{whole.name}-"):
        return False
    named = part.name.removeprefix(f"{whole.name}-")
    return named in whole.document.get("cases", whole.document) and whole.date >= part.date


@dataclass(frozen=True)
class Claim:
    """Something that is to be reached, and what was measured of it."""

    what: str
    asked: str
    measured: str
    reached: str
    on: str
    command: str


@dataclass
class Section:
    """A part of the page, and the claims in it that the page begins with."""

    title: str
    blocks: list[str] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)

    def add(self, *blocks: str) -> None:
        """Go on with these, those that say nothing left out."""
        self.blocks += [block for block in blocks if block]

    def at_least(self, what: str, found: Ratio, asked: float, result: Result, command: str) -> None:
        """Claim that a ratio is no less than this."""
        self._claim(what, f"at least {asked:g}", ratio(found), _reached(found, asked, 1), result, command)

    def at_most(self, what: str, found: Ratio, asked: float, result: Result, command: str) -> None:
        """Claim that a ratio is no more than this."""
        self._claim(what, f"at most {asked:g}", ratio(found), _reached(found, asked, -1), result, command)

    def at_most_alone(
        self,
        what: str,
        value: float,
        asked: float,
        result: Result,
        command: str,
        tell: Callable[[float], str],
    ) -> None:
        """Claim that a figure without rounds, which `tell` puts in words, is no more than this."""
        told, reached = (tell(value), "yes" if value <= asked else NO)
        self._claim(what, f"at most {tell(asked)}", told, reached, result, command)

    def _claim(
        self, what: str, asked: str, measured: str, reached: str, result: Result, command: str
    ) -> None:
        self.claims.append(Claim(capital(what), asked, measured, reached, result.place, command))


def _reached(found: Ratio, asked: float, sign: int) -> str:
    """Whether the median reaches it, and the worst round; `sign` is -1 for at most."""
    if sign * found["median"] < sign * asked:
        return NO
    worst = found["min" if sign > 0 else "max"]
    return "yes" if sign * worst >= sign * asked else "yes, not in every round"
