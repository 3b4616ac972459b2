"""Text from outside: what a file name, a class name or an exception says, made safe to show.

A file name can hold escape sequences that a terminal obeys, line breaks that fake a log line, and
bidirectional marks that show another name than the one on disk. Text is cleaned where it enters and
again where it is printed.
"""

import unicodedata

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clean(text: str, limit: int = 1000) -> str:
    r"""Make `text` safe for one line of a terminal, a log or a table.

    Control characters, line breaks, surrogates and bidirectional marks become `\xNN`-style escapes, so that
    two different names stay different; anything beyond `limit` characters is cut with an ellipsis.
    """
    if text.isascii() and text.isprintable() and len(text) <= limit:
        return text
    safe = "".join(_escaped(c) for c in text[: limit + 1])
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def _escaped(character: str) -> str:
    if character in _BIDI or unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}:
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return character
