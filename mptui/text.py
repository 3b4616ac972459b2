"""Makes untrusted text safe to show: file names, class names, exception messages.

A file name can hold terminal escape sequences, line breaks that imitate a log line, and bidirectional marks
that display another name. Text is cleaned where it enters and again where it is printed.
"""

import re
import shlex
import unicodedata
from collections.abc import Sequence

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
    if text.isascii() and text.isprintable() and len(text) <= limit:
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
