"""Switches a run to another profile or setting between two optimizer steps, and undoes a switch.

A checkpoint is saved before each switch, under the name `undo`. Undoing the switch restores the run from it:
weights, optimizer, schedule and position in the data.
"""

from mptui.engine.checkpoint import snapshots
from mptui.engine.context import TrainContext
from mptui.engine.job import Job, ProfileSwitch
from mptui.engine.mailbox import Command
from mptui.engine.optim.lr_schedule import ScheduleContinuation, ScheduleProgress, rate_change
from mptui.engine.torch_setup import limit_memory, set_switches
from mptui.errors import ConfigError, DiskError
from mptui.events import PrecisionChanged, PresetSwitched


def switch(context: TrainContext, command: Command) -> str | None:
    """Apply the command `preset`, `set` or `undo` from the next step on.

    Returns:
        The reason for a refusal, which changes nothing; None if the command was applied.
    """
    context.reporter.flush(wait=True)
    wanted, refusal = None, None
    try:
        if context.rebuild is None:
            raise ConfigError("this run has no other profiles", hint="start it from a profile")
        wanted = context.rebuild(command)
    except (ConfigError, DiskError) as error:
        refusal = error.message
    refusal = next(filter(None, context.ranks.gather(refusal)), None)  # all switch, or none
    if wanted is None or refusal is not None:
        if wanted is not None:
            _close_loaders(wanted.job, but_of=context.job)
        return refusal
    before, precision = context.parts.schedule_progress(), context.job.precision
    if wanted.changes and wanted.back_to is None:
        context.saver.write_waiting_best(force=True)  # an undo restores `best`, too
        context.save("switch", {"switch": wanted.before})
    try:
        wanted.accept()
    except DiskError as error:
        refusal = error.message
    if (refusal := context.ranks.broadcast(refusal)) is not None:
        _close_loaders(wanted.job, but_of=context.job)
        return refusal
    if wanted.changes or wanted.back_to is not None:
        _take(context, wanted)
    _report(context, wanted, command, before, precision)
    return None


def _take(context: TrainContext, wanted: ProfileSwitch) -> None:
    _close_loaders(context.job, but_of=wanted.job)
    set_switches(wanted.job.config)
    limit_memory(wanted.job.config.memory.budget_gib, wanted.job.device)
    if wanted.back_to is not None:
        context.rollback.forget()
        context.hooks.load_state_dict(wanted.back_to.state)
    context.take_job(wanted.job)
    if wanted.back_to is None:
        context.state.cursor.recount(context.job.config.training)
    else:
        snapshots.restore(context.state, wanted.back_to)
        context.begin()
        context.saver.went_back(context.state.step)
        context.save("undo")
    context.leave_epoch()


def _close_loaders(job: Job, *, but_of: Job) -> None:
    """Close the loaders of `job` that the job `but_of` does not use."""
    used = (but_of.train_loader, but_of.val_loader)
    for loader in (job.train_loader, job.val_loader):
        if loader not in used:
            loader.close()


def _report(
    context: TrainContext, wanted: ProfileSwitch, command: Command, before: ScheduleProgress, precision: str
) -> None:
    if context.job.precision != precision:
        context.emit(
            PrecisionChanged(
                step=context.state.step,
                precision=context.job.precision,
                previous=precision,
                reason=f"{command.name} {command.argument or ''}".rstrip(),
            )
        )
    parts = context.parts
    rate = rate_change(before, ScheduleContinuation(parts.schedule, parts.updater.position(), 1.0))
    context.emit(
        PresetSwitched(
            step=context.state.step,
            profile=wanted.profile,
            previous=wanted.previous,
            changes=wanted.changes,
            undone=wanted.back_to is not None,
            lr=list(rate.lr),
            batch=list(rate.batch),
            ramp_steps=rate.ramp_steps,
            planned_lr=parts.planned_lr(context.state.step),
        )
    )
