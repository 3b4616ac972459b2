"""The commands to a run by name: what each takes, what it does, and its key. Imports no torch."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from mptui.registry.names import NumericsMode

if TYPE_CHECKING:
    from mptui.engine.context import TrainContext
    from mptui.engine.mailbox import Command

_SETTING = re.compile(r"[a-z0-9_.]{1,60}=[^\x00-\x1f]{1,200}")


def _nothing(_context: "TrainContext", _command: "Command") -> None:
    """Do nothing: the mailbox, or a pause, has obeyed the command."""


def _no_argument(_given: object, _profiles: Sequence[str]) -> None:
    """Take no argument; one that is given is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """A command to a run, from a key, a signal or the control socket.

    Attributes:
        execute: Executes it in the training thread between two steps; returns why it is refused, and None if
            it is done.
        argument: Returns its argument, given what a client has sent, which may be anything, and the profiles
            that the run may switch to. ValueError: it is none.
        help: What it does, for help, palette and page of keys, if it has a `key`.
        key: The key of the live screen that sends it without a question. Commands with an argument, or with a
            question, have theirs in `mptui.tui.keys`.
        is_save: Whether steps would be lost without it: no number of other commands keeps it from a run.
        title: What it is called in the log; "": its name.
    """

    execute: Callable[["TrainContext", "Command"], str | None]
    argument: Callable[[object, Sequence[str]], str | None] = _no_argument
    help: str = ""
    key: str = ""
    is_save: bool = False
    title: str = ""


def _pause(context: "TrainContext", command: "Command") -> None:
    from mptui.engine.commands import pause

    pause(context, command.by)


def _checkpoint(context: "TrainContext", _command: "Command") -> None:
    context.save("asked")


def _validate(context: "TrainContext", _command: "Command") -> None:
    from mptui.engine.commands import validate_now

    validate_now(context)


def _numerics(context: "TrainContext", command: "Command") -> None:
    from mptui.engine.commands import set_numerics

    set_numerics(context, command.argument)


def _switch(context: "TrainContext", command: "Command") -> str | None:
    from mptui.engine.commands import switch

    return switch(context, command)


def _profile(given: object, profiles: Sequence[str]) -> str:
    if not isinstance(given, str) or given not in profiles:
        raise ValueError(f"no such profile; available: {', '.join(profiles)}")
    return given


def _setting(given: object, _profiles: Sequence[str]) -> str:
    if not isinstance(given, str) or not _SETTING.fullmatch(given):
        raise ValueError("not a setting; write it as table.key=value")
    return given


def _mode(given: object, _profiles: Sequence[str]) -> str | None:
    return given if isinstance(given, str) and given in get_args(NumericsMode) else None


COMMANDS: dict[str, CommandSpec] = {
    "stop": CommandSpec(execute=_nothing, is_save=True),
    "pause": CommandSpec(execute=_pause),
    "resume": CommandSpec(execute=_nothing),
    "checkpoint": CommandSpec(execute=_checkpoint, help="save a checkpoint now", key="c", is_save=True),
    "validate": CommandSpec(execute=_validate, help="validate now", key="v"),
    "preset": CommandSpec(execute=_switch, argument=_profile, title="profile"),
    "set": CommandSpec(execute=_switch, argument=_setting),
    "undo": CommandSpec(execute=_switch),
    "numerics": CommandSpec(execute=_numerics, argument=_mode),
}
"""Name -> command."""


def command_of(name: object, given: object, profiles: Sequence[str]) -> tuple[str, str | None]:
    """Return name and argument of what a client has sent.

    Raises:
        ValueError: It is not a command of a run.
    """
    if not isinstance(name, str) or name not in COMMANDS:
        raise ValueError(f"unknown command; available: {', '.join(COMMANDS)}")
    return name, COMMANDS[name].argument(given, profiles)
