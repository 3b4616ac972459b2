"""Executes commands between two optimizer steps: stop, save, switch, set, undo."""

from typing import get_args

from mptui.engine.checkpoint import snapshots
from mptui.engine.context import TrainContext
from mptui.engine.epochs import report, validate
from mptui.engine.job import Job, ProfileSwitch
from mptui.engine.mailbox import Command, Stopped
from mptui.engine.micro_batches import release
from mptui.engine.numerics import NumericsMonitor
from mptui.engine.optim.schedule import ScheduleContinuation, ScheduleProgress, rate_change
from mptui.engine.progress import limit_memory, set_switches
from mptui.engine.ranks.group import Ranks
from mptui.errors import ConfigError, DiskError, RankError, RunDirectoryError
from mptui.events import CommandAnswered, Paused, PrecisionChanged, PresetSwitched, Recovered, Resumed
from mptui.registry.commands import COMMANDS
from mptui.registry.names import NumericsMode
from mptui.text import clean

# Executes commands of a user or another process between two optimizer steps
# --------------------------------------------------------------------------

PAUSE_POLL_S = 1.0
"""Timeout of a wait for a command while paused; a command or a stop request ends the wait at once."""


def execute(context: TrainContext, command: Command) -> None:
    """Execute `command`, and report its result."""
    _answer(context, command, "taken")
    refusal = COMMANDS[command.name].execute(context, command)
    if refusal is None:
        _answer(context, command, "done")
    else:
        _answer(context, command, "refused", refusal)


def _answer(context: TrainContext, command: Command, state: str, detail: str = "") -> None:
    context.emit(
        CommandAnswered(
            step=context.state.step,
            command=command.name,
            state=state,
            detail=detail,
            id=command.id,
            by=command.by,
        )
    )


def set_numerics(context: TrainContext, mode: str | None) -> None:
    """Probe numerics in this mode from the next step on; None: as configured."""
    monitor = context.hooks["numerics"]
    assert isinstance(monitor, NumericsMonitor)
    monitor.ask(next((each for each in get_args(NumericsMode) if each == mode), None))


def validate_now(context: TrainContext) -> None:
    """Validate between two steps; the best epoch stays as it is."""
    before = context.phase
    measured = validate(context)
    report(context, measured, context.state.cursor.epoch + 1, best=False)
    context.enter(before)
    context.reporter.restart_clock()


def pause(context: TrainContext, by: str) -> None:
    """Block until a command resumes or stops the run."""
    context.reporter.flush(wait=True)
    before = context.phase
    context.enter("paused")
    context.emit(Paused(step=context.state.step, by=by))
    while not context.mailbox.stop_requested:
        command = context.mailbox.take(timeout_s=PAUSE_POLL_S)
        if command is not None and command.name in {"resume", "pause"}:
            _answer(context, command, "done")
            break
        if command is not None:
            execute(context, command)
    context.emit(Resumed(step=context.state.step))
    context.enter(before)
    context.reporter.restart_clock()


# Switches a run to another profile or setting between two optimizer steps, and undoes a switch
# ---------------------------------------------------------------------------------------------
# A checkpoint is saved before each switch, under the name `undo`. Undoing the switch restores the run from
# it: weights, optimizer, schedule and position in the data. What is left is saved in its place first, so that
# another undo goes back to it, and nothing is lost.
#
# The first steps after a switch belong to it: if the new settings can't be had, such as a batch that no
# memory holds, it is undone, and the run goes on with the settings before.

FIRST_STEPS = 2
"""Steps that a switch is on trial for: the second needs what the first has allocated."""


def switch(context: TrainContext, command: Command, *, keeps_state: bool = True) -> str | None:
    """Apply the command `preset`, `set` or `undo` from the next step on.

    Args:
        context: The run.
        command: The command.
        keeps_state: Whether an undo keeps the state that it leaves.

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
    elif wanted.back_to is not None and keeps_state:
        context.saver.write_waiting_best(force=True)
        context.save("left", {"switch": wanted.before})
    try:
        wanted.accept()
    except DiskError as error:
        refusal = error.message
    if (refusal := context.ranks.broadcast(refusal)) is not None:
        _close_loaders(wanted.job, but_of=context.job)
        return refusal
    context.on_trial = None
    if wanted.changes and wanted.back_to is None:
        context.on_trial = command, context.state.step
    reason = None
    try:
        if wanted.changes or wanted.back_to is not None:
            _take(context, wanted)
            _read_validation(context)
        context.ranks.sync_status()  # all can have it, or none
    except Exception as error:
        if not may_undo(context, error):
            raise
        context.ranks.fail(error)
        reason = reason_of(error, context.ranks)
    if reason is not None:  # outside the except block, since the traceback holds tensors
        undo_trial(context, reason)
        return reason
    _report(context, wanted, command, before, precision=precision)
    return None


def may_undo(context: TrainContext, error: Exception) -> bool:
    """Whether a switch is undone after `error`: in its first steps, with all ranks that can be reached."""
    if context.on_trial is None or isinstance(error, (Stopped, RunDirectoryError)):
        return False
    is_lost = isinstance(error, RankError) and context.ranks.failure is None
    return not is_lost and context.state.step < context.on_trial[1] + FIRST_STEPS


def reason_of(error: Exception, ranks: Ranks) -> str:
    """Return the first line of an error, for a message; of several ranks, of the failure that all know of."""
    failure = ranks.failure
    words = (
        f"{type(error).__name__}: {error}" if failure is None else f"rank {failure.rank}: {failure.message}"
    )
    return clean(words.splitlines()[0], 300)


def undo_trial(context: TrainContext, reason: str) -> None:
    """Undo the switch that is on trial, whose settings can't be had.

    Raises:
        ConfigError: It can't be undone either.
    """
    assert context.on_trial is not None, "see may_undo"
    (command, _), context.on_trial = context.on_trial, None
    context.ranks.continue_run()
    context.parts.updater.forget()
    release(context.device)
    words = f"{command.name} {command.argument or ''}".rstrip()
    if (refusal := switch(context, Command("undo", by="mptui"), keeps_state=False)) is not None:
        raise ConfigError(f"{words}: {reason}", hint=f"it could not be undone: {refusal}")
    action = f"{words} is undone: {reason}"
    context.emit(Recovered(step=context.state.step, problem="switch", action=action))


def _read_validation(context: TrainContext) -> None:
    """Read the first validation batch of a switch: the first validation may be hours away."""
    if context.on_trial is not None:
        with context.job.val_loader.window_at(0, 1, 0) as window:
            next(iter(window), None)


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
    context: TrainContext,
    wanted: ProfileSwitch,
    command: Command,
    before: ScheduleProgress,
    *,
    precision: str,
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
            changed=list(wanted.changed),
            undone=wanted.back_to is not None,
            by=command.by,
            lr=list(rate.lr),
            batch=list(rate.batch),
            ramp_steps=rate.ramp_steps,
            planned_lr=parts.planned_lr(context.state.step),
        )
    )
