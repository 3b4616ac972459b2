"""What every rank of a run does: prepare, resume, train; a rank that is not the first."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mptui.config.change import changed, check_resume
from mptui.config.keys import UNSET
from mptui.config.resolve import resolve, values_of
from mptui.config.schema import RunConfig
from mptui.data.learned import LearnedData
from mptui.data.types import Dataset, Problem
from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import adopt, never_saved, read_newest
from mptui.engine.checkpoint.saver import NonPrimarySaver, Saver
from mptui.engine.epochs import EPOCHS, MAX_STEPS, PATIENCE, TIME, ended_by
from mptui.engine.job import ProfileSwitch
from mptui.engine.mailbox import Command, Mailbox, Stopped
from mptui.engine.ranks.group import Ranks
from mptui.engine.ranks.sync import mailbox_of
from mptui.engine.reporting.observers import observers
from mptui.engine.trainer import Trainer
from mptui.errors import ConfigError, MptuiError, RunDirectoryError, cleaned_up_by
from mptui.events import Event
from mptui.hardware.sampler import DeviceSampler
from mptui.io.files import Guard
from mptui.runs.planning.build import PreparedRun, prepare
from mptui.runs.planning.change import build_switch
from mptui.runs.planning.plan import Plan, Request, workers_under
from mptui.runs.session.ending import exit_code
from mptui.runs.session.shutdown import WORKER
from mptui.runs.store.directory import CHECKPOINTS, CONFIG
from mptui.text import some

# What every rank of a run does, and a rank that is not the first: it trains, and rank 0 tells of it
# --------------------------------------------------------------------------------------------------

POLL_S = 1.0

Decide = Callable[[Plan, torch.nn.Module, Dataset], Plan]


class RankTraining:
    """What every rank of a run does: it prepares, restores the newest checkpoint, and trains.

    Rank 0 adds what a run writes and tells (`Session`).

    Args:
        plan: The plan of the run, on this rank's device.
        ranks: All ranks.
        force_compile: Compile even if the run is too short to repay it.

    Attributes:
        plan: The plan in force.
        mailbox: Receives the signals of this process.
    """

    def __init__(self, plan: Plan, ranks: Ranks, *, force_compile: bool) -> None:
        self.plan = plan
        self.mailbox = Mailbox()
        self._ranks = ranks
        self._force_compile = force_compile
        self._agreed = mailbox_of(ranks, self.mailbox)
        self._trainer: Trainer | None = None

    def _train_from(self, begun: "Beginning", decide: Decide, on_bad: Callable[[Problem], None]) -> None:
        """Prepare the run as all ranks know of its beginning, and train it to its end.

        Args:
            begun: What rank 0 has told.
            decide: What decides the `auto` settings, on rank 0.
            on_bad: Called with each sample that is left out.
        """
        prepared = prepare(
            self.plan,
            emit=self._emit,
            mailbox=self._agreed,
            on_bad=on_bad,
            force_compile=self._force_compile,
            decide=decided_by_first(self._ranks, decide),
            goes_on=begun.goes_on,
            learned=begun.learned,
            read_before=begun.read_before,
            ranks=self._ranks,
        )
        self.plan = prepared.loaders.plan  # values that depend on the data are chosen now
        self._note_prepared(prepared)
        with self._saver(begun.run) as saver:
            trainer = self._trainer = Trainer(
                prepared.job,
                emit=self._emit,
                mailbox=self._agreed,
                saver=saver,
                rebuild=partial(self._rebuild, prepared, begun.run / CHECKPOINTS),
                **self._outputs(),
            )
            with cleaned_up_by(trainer.close):
                resumed = self._restore(trainer, prepared, begun)
                self._agreed.poll()  # nothing to save yet
                self._train_on(trainer, prepared, begun, resumed)

    def _rebuild(self, prepared: PreparedRun, folder: Path, command: Command) -> ProfileSwitch:
        assert self._trainer is not None, "it asks for this"
        job = self._trainer.context.job
        plan, switch = build_switch(self.plan, prepared, job, command, folder=folder, emit=self._emit)
        return replace(switch, accept=partial(self._accept, plan))

    # -- what rank 0 does otherwise

    def _emit(self, event: Event) -> None:
        """Drop an event: those of rank 0 are the run's."""

    def _note_prepared(self, prepared: PreparedRun) -> None:
        """Do nothing once the run is prepared."""

    def _saver(self, run: Path) -> Saver:
        return NonPrimarySaver(run / CHECKPOINTS, lambda: self.plan.config.checkpoint, self._emit)

    def _outputs(self) -> dict[str, Any]:
        """Return what a trainer calls with its results, by its arguments."""
        return {"observers": observers()}

    def _restore(self, trainer: Trainer, prepared: PreparedRun, begun: "Beginning") -> int | None:
        """Restore the newest checkpoint of a resumed run; return the step it goes on from."""
        return restore_run(trainer, begun.run, None, lambda code, message: None) if begun.resume else None

    def _train_on(
        self, trainer: Trainer, prepared: PreparedRun, begun: "Beginning", resumed: int | None
    ) -> None:
        trainer.train()

    def _accept(self, plan: Plan) -> None:
        self.plan = plan


class Member(RankTraining):
    """The training of one rank that is not the first; its arguments are those of `RankTraining`."""

    def __init__(self, plan: Plan, ranks: Ranks, *, force_compile: bool) -> None:
        super().__init__(plan, ranks, force_compile=force_compile)
        self._code = 0
        self._error: BaseException | None = None

    def run(self) -> int:
        """Train to the end, and return the exit code: that of rank 0 if another rank has failed.

        Raises:
            MptuiError: This rank has failed.
        """
        # signals are handled in this thread, which must not wait for other ranks
        thread = threading.Thread(target=self._work, name=WORKER, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(POLL_S)
        if self._error is not None:
            raise self._error
        return self._code

    def _work(self) -> None:
        try:
            with self._sampled():
                self._train()
            leave(self._ranks, None)
        except Stopped as stop:
            self._code = exit_code(stop.signal)
            leave(self._ranks, None)  # gloo's threads can abort a process that ends with a group
        except BaseException as error:  # noqa: BLE001 - raised again by the main thread
            self._end_by(error)

    @contextlib.contextmanager
    def _sampled(self) -> Iterator[None]:
        """Tell rank 0 of the device of this rank, from a thread of its own."""
        device = self.plan.device
        sampler = DeviceSampler(device.torch_name, uuid=device.uuid)
        sampler.start()
        if self._ranks.beats is not None:
            self._ranks.beats.device = sampler.latest
        try:
            yield
        finally:
            sampler.stop()

    def _end_by(self, error: BaseException) -> None:
        failure = self._ranks.failure
        is_of_another = failure is not None and failure.rank != self._ranks.rank
        if isinstance(error, MptuiError) and is_of_another:
            self._code = error.exit_code
        else:
            self._error = error
        leave(self._ranks, error)

    def _train(self) -> None:
        own = Beginning(for_other_ranks(self.plan))
        begun = self._ranks.broadcast(own)  # it is replaced by that of rank 0
        self.plan = on_this_rank(begun.plan, self.plan)
        self._train_from(begun, decide=lambda plan, model, dataset: plan, on_bad=lambda problem: None)


def leave(ranks: Ranks, error: BaseException | None) -> None:
    """Leave the group, after telling the others of the error that ended this rank.

    They may not answer: what this rank has to write is written before.
    """
    if error is not None:
        with contextlib.suppress(MptuiError, RuntimeError):  # the others have ended, too
            ranks.fail(error)
    with contextlib.suppress(RuntimeError):
        ranks.close(at_once=error is not None)


def decided_by_first(ranks: Ranks, decide: Decide) -> Decide:
    """Return what decides the `auto` settings of all ranks: `decide` on rank 0."""
    if ranks.is_alone:
        return decide

    def decided(plan: Plan, model: torch.nn.Module, dataset: Dataset) -> Plan:
        chosen = decide(plan, model, dataset) if ranks.is_first else plan
        return on_this_rank(ranks.broadcast(for_other_ranks(chosen)), plan)

    return decided


@dataclass(frozen=True, slots=True)
class Beginning:
    """What rank 0 tells the others as a run begins.

    Attributes:
        plan: The plan, as `told`.
        run: The run directory.
        resume: Whether the run is resumed.
        goes_on: Whether it goes on from a checkpoint.
        learned: What the network in that has learned from.
        read_before: How the run has read its data.
    """

    plan: Plan
    run: Path = Path()
    resume: bool = False
    goes_on: bool = False
    learned: LearnedData | None = None
    read_before: dict[str, Any] | None = None


def for_other_ranks(plan: Plan) -> Plan:
    """Return the plan as rank 0 tells it to the others, without the environment of its process."""
    return replace(plan, request=Request(profile=plan.request.profile, sets=plan.request.sets))


def on_this_rank(first: Plan, own: Plan) -> Plan:
    """Return the plan of rank 0 for the rank whose plan is `own`.

    Device and loader processes are its own, but not what is known of the device's formats, from which
    precisions are chosen, also by a switch: all ranks choose as rank 0 does.
    """
    request = replace(own.request, profile=first.request.profile, sets=first.request.sets)
    device = replace(own.device, native=first.device.native, costs=first.device.costs)
    return replace(first, request=request, device=device, workers=workers_under(first.config, own))


# Resumes a run: checks its settings and restores the newest checkpoint
# ---------------------------------------------------------------------

_LONGER = {
    EPOCHS: "set more with --epochs; to begin at an earlier step: mptui resume RUN --fork --at STEP",
    MAX_STEPS: f"set more, or no limit: --set {MAX_STEPS}={UNSET}",
    TIME: "give it more with --time",
    PATIENCE: f"set more, or no limit: --set {PATIENCE}={UNSET}",
}
"""Setting that ends a run -> how it goes on."""


def settings_before(run: Path, now: RunConfig) -> RunConfig | None:
    """Return the previous settings of a run, checked against those of `now`.

    Returns:
        None if the run has no checkpoint, so that it starts from the beginning, or no readable `run.toml`.

    Raises:
        ConfigError: The new settings can't apply to this run.
    """
    if never_saved(run / CHECKPOINTS):
        return None
    before = None
    with contextlib.suppress(ConfigError):
        before = resolve(str(run / CONFIG), task=None, flags={}, sets=(), environ={}).config
    if before is not None:
        check_resume(before, now)
    return before


def has_checkpoint(run: Path, guard: Guard) -> bool:
    """Whether a resume goes on from a checkpoint; adopts those that a copy of the run brought as folders.

    Raises:
        RunDirectoryError: Such a folder is not an intact checkpoint.
        DiskError: The checkpoints can't be read now.
    """
    adopt(run / CHECKPOINTS, guard)
    return not never_saved(run / CHECKPOINTS)


def check_length(
    trainer: Trainer, before: RunConfig | None, planned: RunConfig, warn: Callable[[str, str], None]
) -> bool:
    """Check that a resumed run can have the length that is asked for.

    Args:
        trainer: The trainer, restored.
        before: Result of `settings_before`.
        planned: The settings before those that are "auto" were decided.
        warn: Called with (code, message) if other settings are asked for, and nothing is left to train.

    Returns:
        Whether the settings apply: not if nothing is left to train, so that the run would not be repeated by
        them.

    Raises:
        ConfigError: Another length is asked for than before, and a setting holds the run where it is.
    """
    now, ended = trainer.state.given.config, ended_by(trainer.context)  # as asked, before it is planned
    if before is None:
        return True
    had, asked = values_of(before), values_of(now)
    lengths = [key for key in (EPOCHS, MAX_STEPS, TIME, PATIENCE) if had[key] != asked[key]]
    if ended is None:
        _check_max_steps(trainer, before, lengths)
        return True
    key, reached = ended
    holds = f"{key} = {asked[key]}, and {reached}"
    if lengths:
        words = ", ".join(f"{each} = {asked[each]}" for each in lengths if each != key)
        raise ConfigError(f"{words and words + ': '}nothing is left to train: {holds}", hint=_LONGER[key])
    decided = {key for key, value in values_of(planned).items() if value == "auto"}
    if others := sorted(changed(had, asked) - decided):
        warn("nothing_left", f"nothing is left to train ({holds}): {some(others)} stay as they were")
    return False


def _check_max_steps(trainer: Trainer, before: RunConfig, lengths: list[str]) -> None:
    """Refuse more epochs of a run that `training.max_steps` ends before.

    Raises:
        ConfigError: They would never be trained.
    """
    training, steps_per_epoch = trainer.context.job.config.training, trainer.context.parts.steps_per_epoch
    had = before.training.epochs
    is_longer = lengths == [EPOCHS] and had < training.epochs
    limit = training.max_steps if is_longer else None
    if limit is not None and limit <= had * steps_per_epoch:
        raise ConfigError(
            f"{EPOCHS} = {training.epochs}: {MAX_STEPS} = {limit} ends this run in epoch "
            f"{-(-limit // steps_per_epoch)}",
            hint=_LONGER[MAX_STEPS],
        )


def restore_run(
    trainer: Trainer,
    run: Path,
    before: RunConfig | None,
    warn: Callable[[str, str], None],
    *,
    guard: Guard = contextlib.nullcontext,
) -> int:
    """Restore `trainer` from the newest complete checkpoint of `run`; without any, it starts from step 0.

    Args:
        trainer: A new trainer.
        run: The run directory.
        before: Result of `settings_before`.
        warn: Called with (code, message) for each unusable checkpoint.
        guard: Context around each change of a name in the run directory.

    Returns:
        The step to continue from.

    Raises:
        ConfigError: The checkpoint does not fit the new settings.
        RunDirectoryError: All checkpoints are damaged, or of a newer version.
        DiskError: The newest checkpoint can't be read now.
    """
    folder, ranks = run / CHECKPOINTS, trainer.context.ranks
    if ranks.broadcast(never_saved(folder)):
        warn("never_saved", "this run has no checkpoint yet: it starts from the beginning")
        return 0
    if not ranks.is_first:
        ranks.sync_status()  # rank 0 has set damaged ones aside
    snapshot, complaints = read_newest(folder, guard)
    if ranks.is_first:
        ranks.sync_status()
    if len(set(ranks.gather(snapshot.step))) > 1:
        raise RunDirectoryError(
            f"{folder}: the processes of this run find different checkpoints",
            hint="put the run directory on a file system that all nodes share: --runs-dir",
        )
    for complaint in complaints:
        warn("damaged_checkpoint", complaint)
    if snapshot.ignored:
        warn("ignored_files", f"not of the checkpoint, ignored: {', '.join(snapshot.ignored)}")
    if before is not None:  # checkpoints of earlier versions have no settings
        snapshot.state.setdefault("settings", values_of(before))
    snapshots.restore(trainer.state, snapshot)
    trainer.context.saver.go_on_from(snapshot.step)
    return snapshot.step
