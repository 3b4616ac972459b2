"""Calls a person who looks at another window: the terminal's bell, or its notification by OSC 9 or OSC 777.

OSC 9 is iTerm2's, OSC 777 rxvt-unicode's; kitty, Ghostty and WezTerm read both, foot the latter. tmux rings
the bell itself, and passes the others on in a sequence of its own, where `allow-passthrough` is on (tmux(1)).
"""

import os
from collections.abc import Mapping
from difflib import get_close_matches

from textual.app import App

from mptui.text import clean

CHOICE = "MPTUI_NOTIFY"
"""Variable that names the ways to call, separated by commas; unset: none."""

_LONGEST = 200


def _bell(_: str) -> str:
    return "\a"


def _osc9(words: str) -> str:
    # after the prefix, no text looks like a command of ConEmu's, which begin with a digit
    return f"\x1b]9;mptui: {words}\a"


def _osc777(words: str) -> str:
    return f"\x1b]777;notify;mptui;{words.replace(';', ',')}\a"


WAYS = {"bell": _bell, "osc9": _osc9, "osc777": _osc777}


def fault_of_choice(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return what is wrong with the choice of the person; None: nothing."""
    unknown = [name for name in _chosen(environ) if name not in WAYS]
    if not unknown:
        return None
    near = get_close_matches(unknown[0], WAYS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(WAYS)}"
    return clean(f"{CHOICE}: {unknown[0]}: no way to notify; {hint}", 200)


def sequences(words: str, environ: Mapping[str, str]) -> str:
    """Return what calls a person with `words` on the terminal of this environment; "" without a choice."""
    words = clean(words, _LONGEST)
    called = [WAYS[name](words) for name in _chosen(environ) if name in WAYS]
    if "TMUX" in environ:
        called = [each if each == "\a" else _through_tmux(each) for each in called]
    return "".join(called)


def call_person(app: App[object], words: str, environ: Mapping[str, str] = os.environ) -> None:
    """Call a person with `words`, in the ways that they chose."""
    called = sequences(words, environ)
    if called and app._driver is not None:  # as Textual's bell
        app._driver.write(called)


def _chosen(environ: Mapping[str, str]) -> list[str]:
    names = (name.strip() for name in environ.get(CHOICE, "").split(","))
    return [name for name in dict.fromkeys(names) if name]


def _through_tmux(sequence: str) -> str:
    return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
