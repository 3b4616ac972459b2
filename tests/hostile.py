"""Names that would control a terminal or a toolkit, or break a line, if they were shown unescaped."""

import random
import unicodedata

from rich.cells import cell_len

NAMES = [
    "\x1b[2J\x1b[31mred",
    "\x1b]52;c;cm0gLXJmIH4=\x07",
    "\x1b]0;a title\x1b\\",
    "\x9b2J\x85\x90+q\x9c",
    "[@click=app.quit]x[/]",
    "[/x] [bold",
    "two\nlines\r\ttabs\x07\x08\x00",
    "\u202etxt.exe\u2066 \u200f",
    "模型 e\u0301 🏳️‍🌈 \ufe0f",
    "$accent {0} %s \\x1b",
    "n" * 300,
]


_PARTS = [
    *(
        "\x1b[",
        "\x1b]0;",
        "\x1b]8;;file:///etc\x1b\\",
        "\x1bP",
        "\x1b_G",
        "\x1b#8",
        "\x9b",
        "\x9d",
        "\x90",
        "\x07",
    ),
    *("\x00", "\x05", "\x08", "\x0e", "\x7f", "\r", "\n", "\t", "\x0b", "\x0c", "\x85", "\u2028", "\u2029"),
    *(
        "\u061c",
        "\u200e",
        "\u200f",
        "\u202a",
        "\u202d",
        "\u202e",
        "\u2066",
        "\u2069",
        "\ufeff",
        "\u200b",
        "\u200d",
    ),
    *(
        "\ud800",
        "\udfff",
        "\ufffe",
        "\U000e0041",
        "\U0001f3f3\ufe0f",
        "\u0300" * 9,
        "\u1160",
        "\u3164",
        "\u00ad",
    ),
    *(
        "[@click=app.quit]",
        "[link=file:///]",
        "[/x]",
        "[bold",
        "[on red]",
        "[$accent]",
        "]",
        "[",
        "\\[",
        "\\",
    ),
    *("{0}", "{0.__class__}", "%s%n", "$(id)", "`id`", "${HOME}", "$accent", "<script>", "&amp;", "'", '"'),
    *(
        "J",
        "2J",
        "31m",
        "?1049l",
        "52;c;cm0K",
        "6n",
        "c",
        ";",
        "m",
        "x",
        "é",
        "模型",
        "ﷺ",
        "𝕏",
        " ",
        "-",
        "..",
        "/",
    ),
]


def generated(count: int, seed: int = 0) -> list[str]:
    """As many more, each composed of parts that are active alone or in combination."""
    chance = random.Random(seed)
    return [
        "".join(chance.choice(_PARTS) for _ in range(chance.choice((1, 2, 3, 5, 9, 40))))
        for _ in range(count)
    ]


def acts(text: str) -> set[str]:
    """Return the parts of `text` that a terminal would obey, or show as something else."""
    return {c for c in text if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} or c in _UNSEEN} - {"\n"}


_UNSEEN = (
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u200c\u200d\u2060\ufeff"
)


def overflows(frame: str, width: int) -> list[str]:
    """Return the lines that are not `width` cells wide."""
    return [line for line in frame.split("\n") if cell_len(line) != width]
