"""Whether the terminal's background is light: asked of it by OSC 11, or told by COLORFGBG.

xterm's control sequences: `OSC 11 ; ?` asks for the background, and the terminal answers with its colour in
place of the question mark. tmux answers for itself, and terminals that know no such question don't answer. So
nothing waits for it: the answer is read among the keys, and never taken for one.
"""

import re
import threading
import time
from collections.abc import Mapping

from textual.message import Message

QUESTION = "\x1b]11;?\x1b\\"

PATIENCE_S = 3.0
"""Seconds after which an answer changes nothing any more: a person has begun to read."""

_LEAVES_S = 0.5
"""Seconds that the end of the screen waits at most for an answer on its way."""

_ANSWER = re.compile(r"\x1b\]11;([^\x07\x1b]{0,40})(?:\x07|\x1b\\)")
_BEGUN = re.compile(r"\x1b(?:\](?:1(?:1(?:;[^\x07\x1b]{0,40}\x1b?)?)?)?)?\Z")
_COLOUR = re.compile(r"(?:rgba?:|#)([0-9a-fA-F]{1,4})/?([0-9a-fA-F]{1,4})/?([0-9a-fA-F]{1,4})(?:/.*)?")

_WEIGHTS = (0.2126, 0.7152, 0.0722)
_LIGHT_GROUNDS = {"7", "15"}
"""Colours of a light background at the end of COLORFGBG, as rxvt, Konsole and others set it."""

_UNABLE = ("linux", "vt", "dumb", "cons")
"""Beginnings of TERM of terminals that would print the question."""


class TerminalBackground(Message):
    """The terminal has told in time whether its background is light."""

    def __init__(self, light: bool) -> None:
        super().__init__()
        self.light = light


def can_be_asked(environ: Mapping[str, str]) -> bool:
    """Whether the terminal of this environment knows the question, or skips it."""
    return not environ.get("TERM", "dumb").startswith(_UNABLE)


def is_light_by_environment(environ: Mapping[str, str]) -> bool:
    """Whether COLORFGBG tells of a light background."""
    return environ.get("COLORFGBG", "").rpartition(";")[2] in _LIGHT_GROUNDS


def is_light(colour: str) -> bool | None:
    """Return whether a colour as `rgb:ffff/ffff/dddd` is light; None: it is no colour."""
    match = _COLOUR.fullmatch(colour)
    if match is None:
        return None
    parts = (int(digits, 16) / int("f" * len(digits), 16) for digits in match.groups())
    return sum(weight * part for weight, part in zip(_WEIGHTS, parts, strict=True)) > 0.5


class Answers:
    """Takes the terminal's answers out of what is typed; `asked` and `wait` are for other threads."""

    def __init__(self) -> None:
        self._held = ""
        self._until = 0.0
        self._settled = threading.Event()
        self._settled.set()

    def asked(self) -> None:
        """Begin to await an answer."""
        self._until = time.monotonic() + PATIENCE_S
        self._settled.clear()

    def wait(self) -> None:
        """Wait until an awaited answer has come, or its time is over: nobody else may read it as keys."""
        self._settled.wait(min(_LEAVES_S, max(0.0, self._until - time.monotonic())))

    def take(self, typed: str) -> tuple[str, bool | None]:
        """Return what of `typed` is none of an answer, and whether the background is light; None: not told.

        The beginning of an answer is held back until the rest comes. "" says that nothing came for a while:
        what can be a key is given back.
        """
        light: bool | None = None
        text = self._held + typed
        self._held = ""
        if "\x1b" not in text:
            return text, None
        for answer in _ANSWER.finditer(text):
            if self._is_awaited:
                light = is_light(answer[1])
            self._settled.set()
        text = _ANSWER.sub("", text)
        begun = _BEGUN.search(text)
        if begun is not None and self._is_held(begun[0], typed):
            text, self._held = text[: begun.start()], begun[0]
        return text, light

    def _is_held(self, begun: str, typed: str) -> bool:
        if len(begun) > len("\x1b]1"):
            return True
        # the escape key alone is one, unless an answer is awaited
        return bool(typed) and (len(begun) > 1 or self._is_awaited)

    @property
    def _is_awaited(self) -> bool:
        return not self._settled.is_set() and time.monotonic() < self._until
