"""Text for people: untrusted text made safe to show, figures as words."""

import math
import re
import shlex
import time
import unicodedata
from collections.abc import Sequence
from typing import Protocol, TypeVar

# Makes untrusted text safe to show: file names, class names, exception messages
# ------------------------------------------------------------------------------
# A file name can hold terminal escape sequences, line breaks that imitate a log line, and bidirectional
# marks that display another name. Text is cleaned where it enters and again where it is printed.

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# joiners and variation selectors: invisible, and terminals disagree about the width of text around them
_JOINING = frozenset("\u200b\u200c\u200d\u2060\ufe0e\ufe0f\ufeff")
_UNSEEN = _BIDI | _JOINING


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MARKUP = re.compile(r"[\\|<>*_`\[\]~]")
_LIKE_AN_ESCAPE = re.compile(r"\\(?=x[0-9a-f]{2}|u[0-9a-f]{4})")


def clean_name(text: str, limit: int = 1000) -> str:
    r"""Make a name safe where it enters, so that different names stay different.

    `clean` shows an escape character as `\x1b`; a name with these four characters would look the same. Here
    the backslash is escaped too (`\x5cx1b`). Not for text that is already clean.
    """
    return clean(_LIKE_AN_ESCAPE.sub(r"\\x5c", text), limit)


def some(names: Sequence[str], most: int = 10) -> str:
    """Join the first `most` names for a message."""
    shown = ", ".join(clean_name(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown}, … ({len(names)} in all)"


def clean(text: str, limit: int = 1000) -> str:
    r"""Make `text` safe for one line of a terminal, a log or a table.

    Control characters, line breaks, surrogates, joiners and bidirectional marks become `\xNN`-style escapes;
    text beyond `limit` characters is cut with an ellipsis. Cleaning is idempotent.
    """
    is_clean = text.isascii() and text.isprintable()
    if is_clean and len(text) <= limit:
        return text
    safe = "".join(_escaped(c) for c in text[: limit + 1])
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def cell(text: str) -> str:
    """Return a cell of a CSV file for text from elsewhere, which a spreadsheet doesn't take for a formula.

    An apostrophe is put before it, as https://owasp.org/www-community/attacks/CSV_Injection has it. A number
    stays as it is.
    """
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def markdown(text: str) -> str:
    """Escape what Markdown would read as a column, HTML, a link or emphasis."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def clean_lines(text: str, limit: int = 1000) -> str:
    """Make each line of `text` safe and keep the line breaks, for messages with one fault per line."""
    return "\n".join(clean(line, limit) for line in text.splitlines())


def shell_word(path: object) -> str:
    """Quote `path` as one word for a command line to copy into a shell."""
    return shlex.quote(clean(str(path), 4096))


def _escaped(character: str) -> str:
    if character in _UNSEEN or unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}:
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return character


def ranges(values: Sequence[int]) -> list[str]:
    """Return ascending values as text, those in a row as a range: `0-7`."""
    rows: list[list[int]] = []
    for value in values:
        if rows and value == rows[-1][-1] + 1:
            rows[-1].append(value)
        else:
            rows.append([value])
    return [str(row[0]) if len(row) == 1 else f"{row[0]}-{row[-1]}" for row in rows]


# Formats figures for display: always with units; unknown values as `–`, never 0
# ------------------------------------------------------------------------------

UNKNOWN = "–"
_HEIGHTS = "▁▂▃▄▅▆▇█"
_LARGEST = 1e100  # larger values have no meaningful differences in float64


class _Column(Protocol):
    """A column of a table: its cells, and its place among those that can be left out; 0: never."""

    @property
    def width(self) -> int: ...

    @property
    def leave(self) -> int: ...


_C = TypeVar("_C", bound=_Column)


def count(value: float | None) -> str:
    """Return a whole number with separators: 14,302; below 1 with three significant digits."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 1 or value == 0 else figure(value)


def dtype_name(dtype: object) -> str:
    """Return the name of a dtype of torch: float16."""
    return str(dtype).removeprefix("torch.")


def counted(number: int, noun: str) -> str:
    """Return a number of things: 1 epoch, 1,200 epochs; of a noun whose plural ends in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(value: float) -> str:
    """Return an abbreviated count: 950, 3k, 1.5M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.4g}{unit}"
    return f"{value:.4g}"


def figure(value: float | None) -> str:
    """Return three significant digits: 1.24, 0.0123, 3.1e-05, nan."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        digits = 2 if abs(value) < 1e-9 else max(0, 2 - math.floor(math.log10(abs(value))))
        return f"{value:,.{min(digits, 5)}f}"
    return f"{value:.1e}"


def filled(form: str, value: float | None) -> str:
    """Return a format such as `{:.1f} s` with a value in it; – where there is none."""
    return UNKNOWN if value is None else form.format(value)


def percent(fraction: float | None) -> str:
    """Return a fraction of 1 as a percentage with one decimal: 76.4 %."""
    return UNKNOWN if fraction is None else f"{100 * fraction:.1f} %"


def size(value: float | None) -> str:
    """Return bytes in a binary unit: 52.1 GiB, 98 MiB, 412 KiB."""
    if value is None:
        return UNKNOWN
    if 0 < value < 1 << 20:
        return f"{max(1.0, value / (1 << 10)):.0f} KiB"
    if value >= 1 << 30:
        return f"{gib(value)} GiB"
    return f"{value / (1 << 20):.0f} MiB"


def gib(value: float | None) -> str:
    """Return bytes in GiB, without the unit: 52.1."""
    return UNKNOWN if value is None else f"{value / (1 << 30):.1f}"


def milliseconds(seconds: float | None) -> str:
    """Return a short duration: 84.2 ms, or 3.20 s from 10 s on."""
    if seconds is None:
        return UNKNOWN
    return f"{1000 * seconds:,.1f} ms" if seconds < 10 else f"{seconds:.2f} s"


def duration(seconds: float | None, *, aligned: bool = False) -> str:
    """Return a duration in its two largest units: 2 h 14 min, 3 min 20 s, 45 s; `over a year` from one on.

    `aligned` pads the second figure to two cells, so that a counting duration keeps its width.
    """
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    whole = max(0, round(seconds))
    days, hours = divmod(whole // 3600, 24)
    minutes, rest = whole // 60 % 60, whole % 60
    width = 2 if aligned else 1
    if days >= _YEAR_D:
        return "over a year"
    if days:
        return f"{days} d {hours:{width}} h"
    if hours:
        return f"{hours} h {minutes:{width}} min"
    return f"{minutes} min {rest:{width}} s" if minutes else f"{rest} s"


_YEAR_D = 366
"""Days from which a duration has no figure: nobody waits so long, and a wrong clock is its usual cause."""


_UNITS_S = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile("".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in _UNITS_S))


def read_duration(text: str) -> float:
    """Return the seconds of a duration as `90m`, `2h`, `1h30m`, `1d` or `45s`.

    Raises:
        ValueError: It is none, or of no length.
    """
    match = _DURATION.fullmatch(text)
    parts = [float(part or 0) for part in match.groups()] if match else []
    seconds = sum(part * unit for part, unit in zip(parts, _UNITS_S.values(), strict=False))
    if not 0 < seconds < math.inf:
        raise ValueError(f"{text!r} is no duration")
    return seconds


def clock(moment: float, seconds: bool = False) -> str:
    """Return the local time of day of `moment` (seconds since the epoch)."""
    try:
        local = time.localtime(moment)
    except (ValueError, OverflowError, OSError):  # not a number, or beyond datetime's range
        return UNKNOWN
    return time.strftime("%H:%M:%S" if seconds else "%H:%M", local)


def clock_on_day(moment: float, now: float) -> str:
    """Return the local time of `moment`, with its weekday or date where that is not the day of `now`."""
    try:
        local, today = time.localtime(moment), time.localtime(now)
    except (ValueError, OverflowError, OSError):
        return UNKNOWN
    if local[:3] == today[:3]:
        return time.strftime("%H:%M", local)
    is_near = 0 <= moment - now < _WEEK_S
    return time.strftime("%a %H:%M" if is_near else "%d %b %Y", local)


_WEEK_S = 6 * 86400
"""Seconds for which a weekday alone names one day."""


def sparkline(values: Sequence[float], among: Sequence[float] | None = None) -> str:
    """Return values as bars from the smallest to the largest of `among` (or of them); × is no number."""
    finite = [value for value in among or values if abs(value) < _LARGEST]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span, top = (high - low) or 1.0, len(_HEIGHTS) - 1
    return "".join(_HEIGHTS[round((v - low) / span * top)] if abs(v) < _LARGEST else "×" for v in values)


def fitting(columns: Sequence[_C], width: int, gap: int = 0) -> list[_C]:
    """Return the columns that fit into `width` cells; those with the largest `leave` are left out first."""
    shown = list(columns)
    while sum(column.width + gap for column in shown) - gap > width:
        last = max(shown, key=lambda column: column.leave, default=None)
        if last is None or not last.leave:
            break
        shown.remove(last)
    return shown
