"""Shell completion of the values of options and of RUN, without importing torch.

The shell completes values that have no words here as files or folders.
"""

import os
import re
from collections.abc import Callable, MutableMapping
from pathlib import Path

import typer


def words_in(metavar: str) -> Callable[[str], list[str]] | None:
    """Return the completion of an option whose help has its words: best|last, auto|cpu|cuda[:N]|N,N.

    None where it has none: words in capitals stand for values.
    """
    parts = [re.match(r"[a-z0-9-]*", part)[0] for part in metavar.split("|")]  # type: ignore[index]
    words = [word for word in parts if word]
    return (lambda incomplete: [word for word in words if word.startswith(incomplete)]) if words else None


def tasks(incomplete: str) -> list[str]:
    """Return the names of tasks that start with `incomplete`."""
    from mptui.registry.tasks import TASKS

    return [name for name in TASKS if name.startswith(incomplete)]


def cards(incomplete: str) -> list[str]:
    """Return the names of GPUs that start with `incomplete`."""
    from mptui.hardware.cards import CARDS

    return [name for name in CARDS if name.startswith(incomplete)]


def columns(incomplete: str) -> list[str]:
    """Return the columns of the list of runs that start with `incomplete`."""
    from mptui.runs.listing.table import COLUMNS

    return [name for name in COLUMNS if name.startswith(incomplete)]


def profiles(incomplete: str) -> list[str]:
    """Return the names of profiles that start with `incomplete`."""
    from mptui.config.profiles import profile_names

    return [name for name in profile_names() if name.startswith(incomplete)]


def models(incomplete: str) -> list[str]:
    """Return the names of networks that start with `incomplete`."""
    from mptui.registry.models import model_names

    return sorted(model_names(incomplete))


def settings(incomplete: str) -> list[str]:
    """Return what --set may go on with: keys, and where only one is left, that with its values.

    A key that takes any value ends with "=".
    """
    from mptui.config.keys import SETTINGS

    if (given := os.environ.get(_GIVEN_KEY)) is not None:
        words = (SETTINGS[given].words or SETTINGS[given].examples) if given in SETTINGS else []
        return [word for word in words if word.startswith(incomplete)]
    key, equals, value = incomplete.partition("=")
    found = [name for name in SETTINGS if (name == key if equals else name.startswith(key))]
    if len(found) != 1 or not (words := SETTINGS[found[0]].words or SETTINGS[found[0]].examples):
        return [] if equals else [f"{name}=" for name in found]
    return [f"{found[0]}={word}" for word in words if word.startswith(value)]


def join_assignments(environ: MutableMapping[str, str]) -> None:
    """Join KEY, "=" and VALUE in the words of a bash that asks for completions: it splits words at "=".

    The word to complete begins after the "=" for a bash; its key is then in another variable.
    """
    if environ.get("_MPTUI_COMPLETE") != "complete_bash":
        return
    current = int(environ["COMP_CWORD"])
    joined: list[str] = []
    before = ""
    for number, word in enumerate(environ["COMP_WORDS"].split("\n")):
        if joined and "=" in {word, before}:
            joined[-1] += word
        else:
            joined.append(word)
        before = word
        if number == current:
            environ["COMP_CWORD"] = str(len(joined) - 1)
            key, equals, value = joined[-1].partition("=")
            if equals and not key.startswith("-"):
                environ[_GIVEN_KEY], joined[-1] = key, value
    environ["COMP_WORDS"] = "\n".join(joined)


_GIVEN_KEY = "_MPTUI_COMPLETE_KEY"


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of runs in --runs-dir or MPTUI_RUNS_DIR that start with `incomplete`."""
    from mptui.runs.store.directory import list_runs

    folder = Path(ctx.params.get("runs_dir") or "runs")
    return [run.name for run in list_runs(folder) if run.name.startswith(incomplete)]
