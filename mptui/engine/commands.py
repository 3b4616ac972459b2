"""Executes commands of a user or another process between two optimizer steps."""

from typing import get_args

from mptui.config.base_tables import NumericsMode
from mptui.engine.context import TrainContext
from mptui.engine.epochs import report, validate
from mptui.engine.mailbox import Command
from mptui.engine.numerics.numerics_monitor import NumericsMonitor
from mptui.engine.switching import switch
from mptui.events import CommandAnswered, Paused, Resumed

PAUSE_POLL_S = 1.0
"""Timeout of a wait for a command while paused; a command or a stop request ends the wait at once."""

_NUMERICS: dict[str, NumericsMode] = {mode: mode for mode in get_args(NumericsMode)}


def obey(context: TrainContext, command: Command) -> None:
    """Execute `command`, and report its result."""
    name = command.name
    _answer(context, command, "taken")
    if name == "pause":
        _pause(context)
    elif name == "checkpoint":
        context.save("asked")
    elif name == "validate":
        _validate(context)
    elif name == "numerics":
        monitor = context.hooks["numerics"]
        assert isinstance(monitor, NumericsMonitor)
        monitor.ask(_NUMERICS.get(command.argument or ""))
    elif name in {"preset", "set", "undo"} and (refusal := switch(context, command)) is not None:
        _answer(context, command, "refused", refusal)
        return
    _answer(context, command, "done")


def _answer(context: TrainContext, command: Command, state: str, detail: str = "") -> None:
    step, name = context.state.step, command.name
    context.emit(CommandAnswered(step=step, command=name, state=state, detail=detail, id=command.id))


def _validate(context: TrainContext) -> None:
    before = context.phase
    measured = validate(context)
    report(context, measured, context.state.cursor.epoch + 1, best=False)
    context.enter(before)
    context.reporter.restart_clock()


def _pause(context: TrainContext) -> None:
    """Block until a command resumes or stops the run."""
    context.reporter.flush(wait=True)
    before = context.phase
    context.enter("paused")
    context.emit(Paused(step=context.state.step))
    while not context.mailbox.stop_requested:
        command = context.mailbox.take(timeout_s=PAUSE_POLL_S)
        if command is not None and command.name in {"resume", "pause"}:
            _answer(context, command, "done")
            break
        if command is not None:
            obey(context, command)
    context.emit(Resumed(step=context.state.step))
    context.enter(before)
    context.reporter.restart_clock()
