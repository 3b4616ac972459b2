"""Pictures on a terminal: in pixels by textual-image (an extra), in half blocks, or in ASCII."""

import fcntl
import locale
import os
import struct
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from rich.cells import cell_len
from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.app import App
from textual.color import Color
from textual.content import Content
from textual.filter import LineFilter
from textual.strip import Strip
from textual.widget import Widget

from mptui.hardware.host import given_environ

if TYPE_CHECKING:
    from PIL.Image import Image


# Pictures in pixels, by textual-image (an extra), on terminals with kitty's graphics or sixels
# ---------------------------------------------------------------------------------------------
# The terminal is told by its environment. textual-image would ask it when it is imported, and wait 0.1 s:
# an answer that comes later, as over SSH, would be read as keys.

Protocol = Literal["kitty", "sixel"]

CHOICE = "MPTUI_GRAPHICS"
"""Variable that names the protocol, or `off`: for terminals that the environment does not tell."""
_MULTIPLEXERS = ("tmux", "screen")
# with kitty's Unicode placeholders, which scroll and vanish with the text around them
_KITTY = ("xterm-kitty", "xterm-ghostty")
_SIXEL = ("foot", "mlterm", "contour")
_SIXEL_PROGRAMS = {"iTerm.app", "iTerm2", "WezTerm", "mintty"}


@dataclass(frozen=True, slots=True)
class Graphics:
    """What the terminal shows pictures with.

    Attributes:
        widget: Returns a widget of textual-image that shows a picture.
        cell: Width and height of a cell in pixels.
    """

    widget: "Callable[[Image], Widget]"
    cell: tuple[int, int]


def protocol_of(environ: Mapping[str, str]) -> Protocol | None:
    """Return the protocol of the terminal that has this environment; None: none, or not known."""
    match environ.get(CHOICE):
        case "kitty" | "sixel" as chosen:
            return chosen
        case str():
            return None
    term = environ.get("TERM", "")
    if "TMUX" in environ or term.startswith(_MULTIPLEXERS):
        return None
    if term in _KITTY:
        return "kitty"
    programs = {environ.get("TERM_PROGRAM"), environ.get("LC_TERMINAL")}  # SSH passes on the latter
    return "sixel" if term.startswith(_SIXEL) or programs & _SIXEL_PROGRAMS else None


def graphics_of(app: App[object], environ: Mapping[str, str] = os.environ) -> Graphics | None:
    """Return what the terminal of `app` shows pictures with; None: nothing but characters."""
    protocol = protocol_of(environ)
    # the number of a picture is a colour of 24 bits
    in_colour = app.console.color_system == "truecolor" and not app.no_color
    has_pixels = protocol is not None and in_colour and not app.is_headless
    cell = _cell_pixels() if has_pixels else None
    if cell is None:
        return None
    terminal = sys.__stdout__
    sys.__stdout__ = None  # type: ignore[misc] # no terminal to be asked
    try:
        import textual_image.renderable  # noqa: F401
    except ImportError:
        return None
    finally:
        sys.__stdout__ = terminal  # type: ignore[misc]
    from textual_image.widget import SixelImage, TGPImage

    return Graphics(TGPImage if protocol == "kitty" else SixelImage, cell)


def _cell_pixels() -> tuple[int, int] | None:
    """Return the size of a cell; None if the terminal doesn't tell its size in pixels."""
    try:
        given = fcntl.ioctl(sys.__stdout__ or 1, termios.TIOCGWINSZ, bytes(8))
    except (OSError, ValueError):
        return None
    rows, columns, width, height = struct.unpack("HHHH", given)
    return (width // columns, height // rows) if 0 < columns <= width and 0 < rows <= height else None


def on_whole_cells(picture: "Image", cell: tuple[int, int]) -> tuple["Image", tuple[int, int]]:
    """Add transparent edges, so that a picture isn't scaled again; return its columns and rows, too."""
    columns, rows = -(-picture.width // cell[0]), -(-picture.height // cell[1])
    edged = picture.convert("RGBA").crop((0, 0, columns * cell[0], rows * cell[1]))
    return edged, (columns, rows)


# ASCII mode: replacements of box, bar and dot characters for terminals that can't show them
# ------------------------------------------------------------------------------------------

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


_CONSOLE = {
    **dict.fromkeys("╭┏", "┌"),
    **dict.fromkeys("╮┓", "┐"),
    **dict.fromkeys("╰┗", "└"),
    **dict.fromkeys("╯┛", "┘"),
    **dict.fromkeys("╌┄", "─"),
    **dict.fromkeys("┃┊╎", "│"),
    **dict.fromkeys("▃▅", "▄"),
    **dict.fromkeys("▆▇", "█"),
    **{same: same for same in "─│┌┐└┘├┤┬┴┼█▌▐▀▄░▒▓■°·"},
}
"""Signs of the Linux console, whose fonts have those of code page 437 (drivers/tty/vt/cp437.uni)."""

_ASCII_TERMINALS = ("linux", "vt", "cons")
"""Beginnings of TERM of terminals with at most 256 signs, without braille."""


def needs_ascii(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the terminal's locale or font has little more than ASCII."""
    environ = given_environ() if environ is None else environ
    if environ.get("TERM", "").startswith(_ASCII_TERMINALS):
        return True
    return has_ascii_locale(environ)


def has_ascii_locale(environ: Mapping[str, str]) -> bool:
    """Whether the locale of the terminal supports only ASCII."""
    for variable in ("LC_ALL", "LC_CTYPE", "LANG"):
        if value := environ.get(variable):
            return "utf-8" not in value.lower() and "utf8" not in value.lower()
    return locale.getpreferredencoding(False).lower() not in {"utf-8", "utf8"}


def to_ascii(text: str, signs: Mapping[str, str] = _STAND_INS) -> str:
    """Replace each character by ASCII, or `signs`, of the same width in cells; `?` for unknown characters."""
    if text.isascii():
        return text
    return "".join(c if c.isascii() else signs.get(c, "?" * cell_len(c)) for c in text)


class AsciiFilter(LineFilter):
    """Converts each line of output to ASCII, including frames, titles and external names.

    On the Linux console, what its fonts have stays.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        super().__init__()
        environ = given_environ() if environ is None else environ
        is_console = environ.get("TERM") == "linux" and not has_ascii_locale(environ)
        self._signs = _STAND_INS | _CONSOLE if is_console else _STAND_INS

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments in the signs of the terminal."""
        return [Segment(to_ascii(text, self._signs), style, control) for text, style, control in segments]


# Pictures in characters: two pixels in a cell as half blocks, or brightness where there are none
# -----------------------------------------------------------------------------------------------

_HALF_BLOCK = "▀"
_CELL = 1, 2
_MOST_STYLES = 1 << 16
_RAMP = " .:-=+*#%@"
"""Characters by brightness, where there are no half blocks."""


class HalfBlocks(Widget):
    """Shows an RGBA image, two rows of pixels in a line of cells; where it is transparent, what is below.

    A line is drawn from its pixels: as text with a style for each cell, pictures on 200x60 cells took half a
    second and more, in which no key was answered.
    """

    def __init__(self, picture: "Image") -> None:
        super().__init__()
        self._width = picture.width
        pixels = memoryview(picture.tobytes()).cast("I").tolist()
        self._rows = [pixels[at : at + self._width] for at in range(0, len(pixels), self._width)]

    def render_line(self, y: int) -> Strip:
        """Draw the two rows of pixels of a line."""
        if not 0 <= 2 * y < len(self._rows) - 1:
            return Strip.blank(self.size.width, self.rich_style)
        around = self.rich_style.bgcolor
        cells = groupby(zip(self._rows[2 * y], self._rows[2 * y + 1], strict=True))
        parts = [
            Segment((_HALF_BLOCK if any(pair) else " ") * len(list(same)), _style(*pair, around))
            for pair, same in cells
        ]
        return Strip(parts, self._width)


@lru_cache(_MOST_STYLES)
def _style(upper: int, lower: int, around: RichColor | None) -> RichStyle:
    """Return the style of a cell with two pixels, of which some may be transparent."""
    return RichStyle.from_color(_colour(upper) or around, _colour(lower) or around)


def _colour(pixel: int) -> RichColor | None:
    """Return the colour of a pixel of RGBA; None if it is transparent."""
    red, green, blue, alpha = pixel.to_bytes(4, sys.byteorder)
    return RichColor.from_rgb(red, green, blue) if alpha else None


HALF_BLOCKS = Graphics(HalfBlocks, _CELL)
"""What a terminal without graphics shows pictures with."""


def half_blocks(pixels: "Image", *, ascii_only: bool) -> list[Content]:
    """Return the lines of an RGB image: a column of cells for each column of pixels, a line for two rows."""
    return [_line(pixels, top, ascii_only) for top in range(0, pixels.height, 2)]


def _line(pixels: "Image", top: int, ascii_only: bool) -> Content:
    upper, lower = (
        [pixels.getpixel((x, min(y, pixels.height - 1))) for x in range(pixels.width)] for y in (top, top + 1)
    )
    if ascii_only:
        brightness = [sum(map(_brightness, pair)) / 2 for pair in zip(upper, lower, strict=True)]
        return Content("".join(map(_sign, brightness)))
    styles = (f"{_hex(one)} on {_hex(other)}" for one, other in zip(upper, lower, strict=True))
    return Content.assemble(*((_HALF_BLOCK * len(list(cells)), style) for style, cells in groupby(styles)))


def sign_of(colour: Sequence[int]) -> str:
    """Return the sign of a colour where there are no colours."""
    return _sign(sum(colour) / len(colour))


def _sign(brightness: float) -> str:
    return _RAMP[int(brightness * (len(_RAMP) - 1) / 255)]


def _rgb(pixel: object) -> tuple[int, int, int]:
    assert isinstance(pixel, tuple), "of an RGB image"
    red, green, blue = pixel
    return red, green, blue


def _brightness(pixel: object) -> float:
    return sum(_rgb(pixel)) / 3


def _hex(pixel: object) -> str:
    return "#{:02x}{:02x}{:02x}".format(*_rgb(pixel))
