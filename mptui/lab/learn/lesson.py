"""What an exercise shows: lines of text with tones, curves, and a JSON document. Imports no torch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Tone = Literal["", "quiet", "good", "warn", "bad", "accent", "strong"]
Line = Sequence[tuple[str, Tone]]
"""A line as spans of text with their tones; a screen gives tones colours, plain text leaves them out."""


@dataclass(frozen=True, slots=True)
class StepCurve:
    """A value of each step, from step 1 on, for a chart."""

    label: str
    values: Sequence[float]


class Lesson(ABC):
    """The result of an exercise, possibly of its first steps."""

    @abstractmethod
    def lines(self, width: int, focus: int) -> list[Line]:
        """Return the lines for `width` cells; `focus` is what the person moved with the arrow keys."""

    def limited(self, focus: int) -> int:
        """Return the nearest `focus` that the lesson has; 0: there is nothing to move."""
        return 0

    def curves(self) -> Mapping[str, Sequence[StepCurve]]:
        """Return the charts: title -> curves; empty if the exercise has none."""
        return {}

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """Return the JSON document; numbers may be infinite or NaN."""


def quiet(text: str) -> Line:
    """Return a line in the quiet tone."""
    return [(text, "quiet")]


def plain(text: str = "") -> Line:
    """Return a line without a tone."""
    return [(text, "")]


def text_of(line: Line) -> str:
    """Return a line without its tones."""
    return "".join(text for text, _ in line).rstrip()


def power(exponent: int) -> str:
    """Return a power of two: `2^16 = 65,536`, without its value where that is long."""
    return f"2^{exponent} = {2**exponent:,}" if 0 <= exponent <= 24 else f"2^{exponent}"
