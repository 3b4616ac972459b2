"""Writes a screen to files that can be shown to others: SVG and PNG, and two lines on the run."""

import re
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

from PIL import Image, ImageDraw, ImageFont
from rich.cells import cell_len

from mptui import text as fmt
from mptui.data.pictures import png_bytes
from mptui.errors import DiskError
from mptui.io.files import replace_file
from mptui.runs.listing.rows import row_of
from mptui.runs.store.directory import status_of
from mptui.runs.view.words import closing_line
from mptui.text import clean
from mptui.tui.terminal.graphics import to_ascii

_LOADED = re.compile(r"@font-face\s*{[^}]*}")


def write_screen(svg: str, where: str, run: Path | None) -> Path:
    """Write a picture of a screen, and beside it two lines on its run, into the current folder.

    Args:
        svg: The picture.
        where: Name of the screen.
        run: Directory of the run that it shows, if it shows one.

    Returns:
        The file of the picture; the same as PNG and the words have its name with `.png` and `.txt`.

    Raises:
        DiskError: The folder is not writable.
    """
    path = Path(time.strftime(f"mptui-{where}-%Y%m%d-%H%M%S.svg"))
    svg = without_fonts(svg)
    try:
        replace_file(path, svg.encode(errors="backslashreplace"))
        replace_file(path.with_suffix(".png"), picture_of(svg))
        if run is not None:
            replace_file(path.with_suffix(".txt"), run_words(run).encode(errors="backslashreplace"))
    except OSError as error:
        raise DiskError(f"{path}: {error.strerror}", hint="start mptui in a folder of yours") from error
    return path


def without_fonts(svg: str) -> str:
    """Return a picture without the fonts that it would load from other sites."""
    return _LOADED.sub("", svg)


def run_words(run: Path) -> str:
    """Return two lines: what the run trains and how fast, and how it stands."""
    summary = status_of(run)
    row = row_of(run, summary)
    rate = f"{row.rate:,.0f} images/s" if row.rate is not None else ""
    taken = f"in {fmt.duration(row.seconds)}" if row.seconds else ""
    parts = (row.name, row.model, row.data, row.precision, rate, taken)
    return f"{clean(' · '.join(filter(None, parts)), 400)}\n{closing_line(run, summary)}\n"


# Draws the SVG of a screen as PNG, cell by cell, as terminals do
# ---------------------------------------------------------------
# Bars, frames and dots are drawn here, as terminals draw them, so that they meet; letters are those of a
# monospaced font of this machine, or else of the one in Pillow.

WIDTH, HEIGHT = 12, 24
"""Pixels of a cell."""

_CELL, _LINE = 12.2, 24.4
"""Size of a cell in the SVG: `rich.console.Console.export_svg`."""
_NAME = "{http://www.w3.org/2000/svg}"
_RULE = re.compile(r"-(r\d+) { fill: (#[0-9a-f]{6})([^}]*)")

_FONTS = (
    ("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf"),
    ("LiberationMono-Regular.ttf", "LiberationMono-Bold.ttf"),
    ("NotoSansMono-Regular.ttf", "NotoSansMono-Bold.ttf"),
    ("Menlo.ttc", "Menlo.ttc"),
    ("consola.ttf", "consolab.ttf"),
)
_BASELINE = 18

Box = tuple[float, float, float, float]
"""Left, top, right and bottom, as shares of a cell."""

_LOWER, _LEFT = "▁▂▃▄▅▆▇█", "▏▎▍▌▋▊▉"
_SHADES = {"░": 64, "▒": 128, "▓": 191}
_QUARTERS: tuple[Box, ...] = ((0, 0, 0.5, 0.5), (0.5, 0, 1, 0.5), (0, 0.5, 0.5, 1), (0.5, 0.5, 1, 1))
_QUARTERED = {"▘": "0", "▝": "1", "▖": "2", "▗": "3", "▚": "03", "▞": "12", "▛": "012", "▜": "013"} | {
    "▙": "023",
    "▟": "123",
}
_PARTS: dict[str, tuple[Box, ...]] = {
    **{sign: ((0, 1 - n / 8, 1, 1),) for n, sign in enumerate(_LOWER, 1)},
    **{sign: ((0, 0, n / 8, 1),) for n, sign in enumerate(_LEFT, 1)},
    **{sign: tuple(_QUARTERS[int(n)] for n in numbers) for sign, numbers in _QUARTERED.items()},
    "▀": ((0, 0, 1, 0.5),),
    "▐": ((0.5, 0, 1, 1),),
    "▔": ((0, 0, 1, 1 / 8),),
    "▕": ((7 / 8, 0, 1, 1),),
    **dict.fromkeys("╌┄", ((0.1, 0.45, 0.4, 0.55), (0.6, 0.45, 0.9, 0.55))),
    **dict.fromkeys("╎┊", ((0.45, 0.1, 0.55, 0.4), (0.45, 0.6, 0.55, 0.9))),
}
"""Signs that fill parts of a cell."""
_ARMS = {
    **dict.fromkeys("─━", "lr"),
    **dict.fromkeys("│┃", "ud"),
    **dict.fromkeys("╭┌┏", "dr"),
    **dict.fromkeys("╮┐┓", "dl"),
    **dict.fromkeys("╰└┗", "ur"),
    **dict.fromkeys("╯┘┛", "ul"),
    "├": "udr",
    "┤": "udl",
    "┬": "dlr",
    "┴": "ulr",
    "┼": "udlr",
    "╸": "l",
}
"""Lines from the middle of a cell: up, down, left, right."""
_HEAVY = "━┃┏┓┗┛╸"
_BRAILLE = 0x2800
_DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
"""Column and row of each bit of a Braille pattern."""


def picture_of(svg: str) -> memoryview:
    """Return the cells of a screen's SVG (`textual.app.App.export_screenshot`) as PNG, without its frame."""
    root = ElementTree.fromstring(svg)  # noqa: S314 - the text is Textual's own
    columns, lines = _size(root)
    styles = {name: (fill, "bold" in more) for name, fill, more in _RULE.findall(svg)}
    picture = Image.new("RGB", (columns * WIDTH, lines * HEIGHT), _background(root))
    for rect in root.iter(f"{_NAME}rect"):
        if rect.get("shape-rendering"):
            column, line = _place(rect, 1.5)
            right = column + round(float(rect.attrib["width"]) / _CELL)
            box = (column * WIDTH, line * HEIGHT, right * WIDTH, (line + 1) * HEIGHT)
            picture.paste(rect.attrib["fill"], box)
    for character, column, line, style in _characters(root):
        fill, bold = styles[style]
        picture.paste(fill, (column * WIDTH, line * HEIGHT), _mask(character, bold))
    return png_bytes(picture)


def _size(root: ElementTree.Element) -> tuple[int, int]:
    """Return the columns and lines of the screen, from the rectangle that clips it."""
    clip = next(rect for rect in root.iter(f"{_NAME}rect"))
    return round(float(clip.attrib["width"]) / _CELL), round(float(clip.attrib["height"]) / _LINE)


def _background(root: ElementTree.Element) -> str:
    return next(rect.attrib["fill"] for rect in root.iter(f"{_NAME}rect") if rect.get("rx"))


def _place(element: ElementTree.Element, offset: float) -> tuple[int, int]:
    x, y = float(element.attrib["x"]), float(element.attrib["y"])
    return round(x / _CELL), round((y - offset) / _LINE)


def _characters(root: ElementTree.Element) -> Iterator[tuple[str, int, int, str]]:
    """Yield each character that is no space, with its column, line and style."""
    for text in root.iter(f"{_NAME}text"):
        style = text.attrib["class"].rpartition("-")[2]
        if style == "title":
            continue
        column, line = _place(text, 20)
        for character in text.text or "":
            if not character.isspace():
                yield character, column, line, style
            column += cell_len(character)


@cache
def _mask(character: str, bold: bool) -> Image.Image:
    """Return how much of each pixel a character covers, from 0 to 255."""
    mask = Image.new("L", (max(1, cell_len(character)) * WIDTH, HEIGHT))
    draw = ImageDraw.Draw(mask)
    if character in _SHADES:
        mask.paste(_SHADES[character], (0, 0, *mask.size))
    elif character in _PARTS:
        for left, top, right, bottom in _PARTS[character]:
            corners = (left * WIDTH, top * HEIGHT, right * WIDTH - 1, bottom * HEIGHT - 1)
            draw.rectangle(tuple(map(round, corners)), 255)
    elif character in _ARMS:
        _draw_arms(draw, _ARMS[character], 2 if character in _HEAVY else 1)
    elif 0 <= ord(character) - _BRAILLE < 256:
        for bit, (x, y) in enumerate(_DOTS):
            if (ord(character) - _BRAILLE) >> bit & 1:
                left, top = x * WIDTH // 2 + 1, y * HEIGHT // 4 + 1
                draw.ellipse((left, top, left + 3, top + 3), 255)
    else:
        _write(mask, character, bold)
    return mask


def _draw_arms(draw: ImageDraw.ImageDraw, arms: str, thick: int) -> None:
    x, y = WIDTH // 2, HEIGHT // 2
    ends: Mapping[str, Box] = {
        "u": (x - thick, 0, x + thick - 1, y + thick - 1),
        "d": (x - thick, y - thick, x + thick - 1, HEIGHT),
        "l": (0, y - thick, x + thick - 1, y + thick - 1),
        "r": (x - thick, y - thick, WIDTH, y + thick - 1),
    }
    for arm in arms:
        draw.rectangle(ends[arm], 255)


def _write(mask: Image.Image, character: str, bold: bool) -> None:
    """Write a character in a font, or its stand-in in ASCII where the font has none."""
    font = _font(bold)
    if font is None:
        small = Image.new("L", (mask.width // 2, HEIGHT // 2))
        text = character if ord(character) < 256 else to_ascii(character).replace("?", " ")  # Latin-1
        ImageDraw.Draw(small).text((0, 0), text, 255, ImageFont.load_default_imagefont())
        mask.paste(small.resize(mask.size, Image.Resampling.NEAREST))
        return
    if bytes(font.getmask(character)) == bytes(font.getmask("\uffff")):
        character = to_ascii(character).replace("?", " ")
    ImageDraw.Draw(mask).text((mask.width / 2, _BASELINE), character, 255, font, "ms")


@cache
def _font(bold: bool) -> ImageFont.FreeTypeFont | None:
    """Return a monospaced font of this machine whose characters are as wide as a cell; None without one."""
    for names in _FONTS:
        try:
            wide = ImageFont.truetype(names[bold], HEIGHT)
            return wide.font_variant(size=HEIGHT * WIDTH / wide.getlength("0"))
        except OSError:
            continue
    return None
