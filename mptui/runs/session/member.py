"""What every rank of a run does, and a rank that is not the first: it trains, and rank 0 tells of it."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mptui.data.core.learned import LearnedData
from mptui.data.core.types import Dataset, Problem
from mptui.engine.checkpoint.async_saver import Saver
from mptui.engine.checkpoint.follower import Follower
from mptui.engine.job import ProfileSwitch
from mptui.engine.mailbox import Command, Mailbox, Stopped
from mptui.engine.ranks.group import Ranks
from mptui.engine.ranks.ranks_mailbox import mailbox_of
from mptui.engine.trainer import Trainer
from mptui.errors import MptuiError, cleaned_up_by
from mptui.events import Event
from mptui.hardware.device_sampler import DeviceSampler
from mptui.runs.planning.build import PreparedRun, prepare
from mptui.runs.planning.plan import Plan, Request, workers_under
from mptui.runs.planning.switch_job import build_switch
from mptui.runs.session.exit_status import exit_code
from mptui.runs.session.resuming import take_up
from mptui.runs.session.shutdown import WORKER
from mptui.runs.store.directory import CHECKPOINTS

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
        self.plan, self.mailbox = plan, Mailbox()
        self._ranks, self._force_compile = ranks, force_compile
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
        plan, switch = build_switch(self.plan, prepared, job, command, folder, self._emit)
        return replace(switch, accept=partial(self._accept, plan))

    # -- what rank 0 does otherwise

    def _emit(self, event: Event) -> None:
        """Drop an event: those of rank 0 are the run's."""

    def _note_prepared(self, prepared: PreparedRun) -> None:
        """Do nothing once the run is prepared."""

    def _saver(self, run: Path) -> Saver:
        return Follower(run / CHECKPOINTS, lambda: self.plan.config.checkpoint, self._emit)

    def _outputs(self) -> dict[str, Any]:
        """Return what a trainer calls with its results, by its arguments."""
        return {}

    def _restore(self, trainer: Trainer, prepared: PreparedRun, begun: "Beginning") -> int | None:
        """Restore the newest checkpoint of a resumed run; return the step it goes on from."""
        return take_up(trainer, begun.run, None, lambda code, message: None) if begun.resume else None

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
        if isinstance(error, MptuiError) and failure is not None and failure.rank != self._ranks.rank:
            self._code = error.exit_code
        else:
            self._error = error
        leave(self._ranks, error)

    def _train(self) -> None:
        begun = self._ranks.broadcast(Beginning(told(self.plan)))  # its own is replaced by that of rank 0
        self.plan = as_told(begun.plan, self.plan)
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
        return as_told(ranks.broadcast(told(chosen)), plan)

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


def told(plan: Plan) -> Plan:
    """Return the plan as rank 0 tells it to the others, without the environment of its process."""
    return replace(plan, request=Request(profile=plan.request.profile, sets=plan.request.sets))


def as_told(first: Plan, own: Plan) -> Plan:
    """Return the plan of rank 0 for the rank whose plan is `own`.

    Device and loader processes are its own, but not what is known of the device's formats, from which
    precisions are chosen, also by a switch: all ranks choose as rank 0 does.
    """
    request = replace(own.request, profile=first.request.profile, sets=first.request.sets)
    device = replace(own.device, native=first.device.native, costs=first.device.costs)
    return replace(first, request=request, device=device, workers=workers_under(first.config, own))
