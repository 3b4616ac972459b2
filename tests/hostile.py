"""Names that would act on a terminal or a toolkit, or break a line, if they were shown as they are."""

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


def acts(text: str) -> set[str]:
    """What of `text` a terminal would obey, or show as something else than it is."""
    return {c for c in text if c < " " or "\x7f" <= c < "\xa0" or c in "\u202e\u2066\u200f"} - {"\n"}


def overflows(frame: str, width: int) -> list[str]:
    """The lines that are not `width` cells wide."""
    return [line for line in frame.split("\n") if cell_len(line) != width]
