"""What a person asks of a running trainer, done between two optimizer steps."""

from typing import TYPE_CHECKING, get_args

from mptui.config.schema import NumericsMode
from mptui.engine.mailbox import Command
from mptui.engine.switching import switch
from mptui.events import CommandAnswered, Paused, Resumed

if TYPE_CHECKING:
    from mptui.engine.trainer import Trainer

PAUSE_LOOK_S = 1.0
"""While paused, the mailbox wakes the thread; it looks by itself this often too."""

_NUMERICS: dict[str, NumericsMode] = {mode: mode for mode in get_args(NumericsMode)}


def obey(trainer: "Trainer", command: Command) -> None:
    """Do what `command` says, and answer it."""
    name = command.name
    trainer.emit(CommandAnswered(step=trainer.step, command=name, state="taken"))
    if name == "pause":
        _pause(trainer)
    elif name == "checkpoint":
        trainer.save("asked")
    elif name == "validate":
        _validate(trainer)
    elif name == "numerics":
        trainer.lens.ask(_NUMERICS.get(command.argument or ""))
    elif name in {"preset", "set", "undo"} and (refusal := switch(trainer, command)) is not None:
        trainer.emit(CommandAnswered(step=trainer.step, command=name, state="refused", detail=refusal))
        return
    trainer.emit(CommandAnswered(step=trainer.step, command=name, state="done"))


def _validate(trainer: "Trainer") -> None:
    before = trainer.phase
    measured = trainer.validate()
    trainer.emit(measured.event(trainer.step, trainer.cursor.epoch + 1, best=False))
    trainer.enter(before)
    trainer.reporter.restart_clock()


def _pause(trainer: "Trainer") -> None:
    """Take no step until asked to go on or to stop."""
    trainer.reporter.flush(wait=True)
    before = trainer.phase
    trainer.enter("paused")
    trainer.emit(Paused(step=trainer.step))
    while not trainer.mailbox.stop_asked:
        command = trainer.mailbox.take(timeout_s=PAUSE_LOOK_S)
        if command is not None and command.name in {"resume", "pause"}:
            trainer.emit(CommandAnswered(step=trainer.step, command=command.name, state="done"))
            break
        if command is not None:
            obey(trainer, command)
    trainer.emit(Resumed(step=trainer.step))
    trainer.enter(before)
    trainer.reporter.restart_clock()
