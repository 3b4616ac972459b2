"""Another preset or setting put in force between two optimizer steps, and taken back.

A checkpoint is kept before each switch, under a name of its own. Taking the switch back restores the run from
it: weights, optimizer, schedule and place in the data.
"""

from typing import TYPE_CHECKING

from mptui.engine.checkpoint import snapshots
from mptui.engine.job import Job, ProfileSwitch
from mptui.engine.mailbox import Command
from mptui.engine.optim.lr_schedule import GoingOn, Standing, rate_change
from mptui.engine.torch_setup import set_switches
from mptui.errors import ConfigError, DiskError
from mptui.events import PrecisionChanged, PresetSwitched

if TYPE_CHECKING:
    from mptui.engine.trainer import Trainer


def switch(trainer: "Trainer", command: Command) -> str | None:
    """Obey `preset`, `set` or `undo` from the next step on.

    Returns:
        Why it is refused; None: it is in force. After a refusal nothing has changed.
    """
    trainer.reporter.flush(wait=True)
    try:
        if trainer.rebuild is None:
            raise ConfigError("this run has no other presets", hint="start it from a profile")
        wanted = trainer.rebuild(command)
    except (ConfigError, DiskError) as error:
        return error.message
    before, precision = trainer.parts.standing(), trainer.job.precision
    if wanted.changes and wanted.back_to is None:
        trainer.save("switch", {"switch": wanted.before})
    try:
        wanted.accept()
    except DiskError as error:
        _close_loaders(wanted.job, but_of=trainer.job)
        return error.message
    if wanted.changes or wanted.back_to is not None:
        _take(trainer, wanted)
    _tell(trainer, wanted, command, before, precision)
    return None


def _take(trainer: "Trainer", wanted: ProfileSwitch) -> None:
    _close_loaders(trainer.job, but_of=wanted.job)
    set_switches(wanted.job.config)
    if wanted.back_to is not None:
        trainer.guards.restart(wanted.back_to.state["guards"])
    trainer.take_job(wanted.job)
    if wanted.back_to is None:
        training = trainer.job.config.training
        trainer.cursor.epoch_step = trainer.cursor.sample // (training.batch_size * training.accumulate)
    else:
        snapshots.restore(trainer, wanted.back_to)
        trainer.guards.begin()
        trainer.saver.went_back(trainer.step)
        trainer.save("undo")
    trainer.leave_epoch()


def _close_loaders(job: Job, *, but_of: Job) -> None:
    """Close the loaders of `job` that the job `but_of` does not use."""
    used = (but_of.train_loader, but_of.val_loader)
    for loader in (job.train_loader, job.val_loader):
        if loader not in used:
            loader.close()


def _tell(
    trainer: "Trainer", wanted: ProfileSwitch, command: Command, before: Standing, precision: str
) -> None:
    if trainer.job.precision != precision:
        trainer.emit(
            PrecisionChanged(
                step=trainer.step,
                precision=trainer.job.precision,
                previous=precision,
                reason=f"{command.name} {command.argument or ''}".rstrip(),
            )
        )
    parts = trainer.parts
    rate = rate_change(before, GoingOn(parts.schedule, parts.updater.position(), 1.0))
    trainer.emit(
        PresetSwitched(
            step=trainer.step,
            profile=wanted.profile,
            previous=wanted.previous,
            changes=wanted.changes,
            undone=wanted.back_to is not None,
            lr=list(rate.lr),
            batch=list(rate.batch),
            ramp_steps=rate.ramp_steps,
        )
    )
