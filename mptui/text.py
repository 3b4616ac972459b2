"""Text from outside: what a file name, a class name or an exception says, made safe to show.

A file name can hold escape sequences that a terminal obeys, line breaks that fake a log line, and
bidirectional marks that show another name than the one on disk. Text is cleaned where it enters and
again where it is printed.
"""

import re
import shlex
import unicodedata

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# joiners and variation selectors: unseen, and terminals disagree about how wide they make what is around them
_JOINING = frozenset("\u200b\u200c\u200d\u2060\ufe0e\ufe0f\ufeff")
_UNSEEN = _BIDI | _JOINING


_LIKE_AN_ESCAPE = re.compile(r"\\(?=x[0-9a-f]{2}|u[0-9a-f]{4})")


def clean_name(text: str, limit: int = 1000) -> str:
    r"""Make a name safe where it enters, so that two different names of any kind stay different.

    `clean` shows an escape character as `\x1b`; a name that holds those four characters themselves would look
    the same. Here their backslash is escaped too (`\x5cx1b`). Not for text that was cleaned before.
    """
    return clean(_LIKE_AN_ESCAPE.sub(r"\\x5c", text), limit)


def clean(text: str, limit: int = 1000) -> str:
    r"""Make `text` safe for one line of a terminal, a log or a table.

    Control characters, line breaks, surrogates, joiners and bidirectional marks become `\xNN`-style escapes;
    anything beyond `limit` characters is cut with an ellipsis. Cleaning twice changes nothing.
    """
    if text.isascii() and text.isprintable() and len(text) <= limit:
        return text
    safe = "".join(_escaped(c) for c in text[: limit + 1])
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def clean_lines(text: str, limit: int = 1000) -> str:
    """Make each line of `text` safe, and keep the line breaks: for messages with one fault a line."""
    return "\n".join(clean(line, limit) for line in text.splitlines())


def shell_word(path: object) -> str:
    """`path` as one word of a command line that a person may copy into a shell."""
    return shlex.quote(clean(str(path), 4096))


def _escaped(character: str) -> str:
    if character in _UNSEEN or unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}:
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return character
