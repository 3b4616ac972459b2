"""ASCII mode: replacements of box, bar and dot characters for terminals that can't show them."""

import locale
from collections.abc import Mapping

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from mptui.hardware.host import given_environ

_STAND_INS = {
    **dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼┏┓┗┛╔╗╚╝", "+"),
    **dict.fromkeys("─╌┄▔▁▂", "-"),
    **dict.fromkeys("━═╸▄▃▓▒", "="),
    **dict.fromkeys("│┃║┊╎▏▕▎▍", "|"),
    **dict.fromkeys("█▉▊▋▌▐▀▇▆▅", "#"),
    "░": ".",
    **dict.fromkeys("●■", "*"),
    "○": "o",
    **dict.fromkeys("▲▴", "^"),
    **dict.fromkeys("▼▾", "v"),
    **dict.fromkeys("→▸▶", ">"),
    **dict.fromkeys("←◂", "<"),
    "↑": "^",
    "↓": "v",
    "✓": "+",
    **dict.fromkeys("✗×", "x"),
    **dict.fromkeys("–—", "-"),
    "…": "~",
    "·": "|",
    "°": " ",
    "⌫": "<",
    "\u00a0": " ",
}


def needs_ascii(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the locale of the terminal supports only ASCII."""
    environ = given_environ() if environ is None else environ
    for variable in ("LC_ALL", "LC_CTYPE", "LANG"):
        if value := environ.get(variable):
            return "utf-8" not in value.lower() and "utf8" not in value.lower()
    return locale.getpreferredencoding(False).lower() not in {"utf-8", "utf8"}


def to_ascii(text: str) -> str:
    """Replace each character by ASCII of the same width in cells; `?` for unknown characters."""
    if text.isascii():
        return text
    return "".join(c if c.isascii() else _STAND_INS.get(c, "?" * cell_len(c)) for c in text)


class AsciiFilter(LineFilter):
    """Converts each line of output to ASCII, including frames, titles and external names."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments in ASCII."""
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]
