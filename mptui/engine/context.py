"""Context shared by the loop and its hooks: the state of a run; reporting, saving, recovery, switches."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from typing_extensions import override

from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.saver import Saver
from mptui.engine.evaluate import ValidationResult
from mptui.engine.guards.rollback import Rollback
from mptui.engine.hooks import Hook
from mptui.engine.job import Job, Parts, ProfileSwitch
from mptui.engine.mailbox import Command, Mailbox
from mptui.engine.micro_batches import MicroBatches, Recovery
from mptui.engine.progress import Outcome, StepSeeds
from mptui.engine.ranks.group import Ranks, SyncPart
from mptui.engine.reporting.reporter import StepRow
from mptui.engine.state import TrainState
from mptui.events import Event, PhaseChanged
from mptui.registry.own_code import is_own
from mptui.tasks.base import Task

Emit = Callable[[Event], None]
Rebuild = Callable[[Command], ProfileSwitch]
OnBest = Callable[[ValidationResult], None]


_REASONS = (None, "steps", "time")
"""Why a save is due (`Saver.reason_now`), by the number that stands for it."""


class Due(SyncPart):
    """Whether a report or a save is due between two steps, by the clock of rank 0.

    Ranks agree on it when they last met, before the step's row is recorded. That row may take the last place
    of the reporter, of which each rank learns by itself: all have recorded the same steps.
    """

    size = 2

    def __init__(self, state: TrainState, saver: Saver) -> None:
        self._state = state
        self._saver = saver
        self._report = False
        self._save: str | None = None
        state.job.ranks.agree_on("due", self)

    def take_report(self) -> bool:
        """Return whether a report is due now, which it then no longer is: its clock starts over."""
        if self._is_alone:
            return self._report_here()
        report, self._report = self._report, False
        return report or self._state.report.full

    def take_save(self) -> str | None:
        """Return why a save is due now, or None."""
        if self._is_alone:
            return self._save_here()
        save, self._save = self._save, None
        return save

    @override
    def numbers(self) -> list[int]:
        return [int(self._report_here()), _REASONS.index(self._save_here())]

    @override
    def on_numbers(self, rows: list[list[int]]) -> None:
        report, save = rows[0]
        self._report, self._save = bool(report), _REASONS[save]

    @property
    def _is_alone(self) -> bool:
        return self._state.job.ranks.is_alone

    def _report_here(self) -> bool:
        # a checkpoint that is due brings a report with it: a state is saved only after its figures were read
        return self._state.report.due(time.perf_counter()) or self._save_here() is not None

    def _save_here(self) -> str | None:
        return self._saver.reason_now(self._state.step)


class TrainContext:
    """A run as its hooks see it.

    Args:
        job: The job to train.
        emit: Called with each event, from the training thread and the saver's.
        mailbox: Commands and stop requests; polled between two steps and two validation batches.
        saver: Writes the checkpoints.
        rebuild: Builds the job for a command that switches profile or settings, around the same model.
        on_best: Called with each validation that is the best so far.
        seconds: Returns the seconds that the run has taken in all its processes, without pauses; None: since
            this was built.

    Attributes:
        state: Everything that a checkpoint holds.
        hooks: The hooks of the run.
        reporter: Reads step figures asynchronously, and reports them.
        seeds: Seeds the random numbers of a step from its position.
        micro_batches: Limits on the size of a micro-batch.
        left_out: Windows left out of the order, as (epoch from 0, first sample).
        rollback: Snapshots of the last good states, in host memory.
        outcome: Figures for the summary.
        phase: Current phase of the run.
        on_trial: The last switch of settings as a command, and its step, until its first steps are done.
        left_epoch: The current pass over the data ends; the next one begins at the cursor.
        due: Whether a report or a save is due between two steps.
    """

    def __init__(
        self,
        job: Job,
        *,
        emit: Emit,
        mailbox: Mailbox,
        saver: Saver,
        rebuild: Rebuild | None = None,
        on_best: OnBest = lambda result: None,
        seconds: Callable[[], float] | None = None,
    ) -> None:
        began = time.monotonic()
        self.seconds = seconds or (lambda: time.monotonic() - began)
        self.emit = emit
        self.mailbox = mailbox
        self.saver = saver
        self.rebuild = rebuild
        self.on_best = on_best
        self.device = job.device
        self.state = TrainState(job, emit)
        self.state.build(job, None)
        self.hooks = self.state.hooks
        self.reporter = self.state.report
        self.reporter.on_rows = self._rows_read
        has_own_code = is_own(job.config.model.name) or is_own(job.config.model.task)
        self.seeds = StepSeeds(job.config.training.seed, job.device, job.ranks.rank, others=has_own_code)
        self.micro_batches = MicroBatches()
        self.left_out: set[tuple[int, int]] = set()
        self.rollback = Rollback(self.warn, job.ranks)
        self.outcome = Outcome()
        self.phase = ""
        self.left_epoch = False
        self.on_trial: tuple[Command, int] | None = None
        self.due = Due(self.state, saver)

    @property
    def job(self) -> Job:
        """The job, with the settings in force."""
        return self.state.job

    @property
    def ranks(self) -> Ranks:
        """The processes that train the network together."""
        return self.state.job.ranks

    @property
    def model(self) -> torch.nn.Module:
        """The network."""
        return self.state.model

    @property
    def task(self) -> Task:
        """The task."""
        return self.state.job.task

    @property
    def parts(self) -> Parts:
        """Objects built from the settings in force."""
        return self.state.parts

    def warn(self, code: str, message: str) -> None:
        """Emit a warning."""
        self.state.warn(code, message)

    def enter(
        self,
        phase: str,
        *,
        detail: str = "",
        total: int | None = None,
        expected_s: float | None = None,
        known_from: str = "",
    ) -> None:
        """Enter a phase, and report it; the arguments are those of the event."""
        if phase != self.phase:
            self.phase = phase
            self.emit(
                PhaseChanged(
                    step=self.state.step,
                    phase=phase,
                    detail=detail,
                    total=total,
                    expected_s=expected_s,
                    known_from=known_from,
                )
            )

    def leave_epoch(self) -> None:
        """End the current pass over the data; the next one begins at the cursor."""
        self.left_epoch = True

    def _rows_read(self, rows: Sequence[StepRow]) -> None:
        for rows_read in self.hooks.at(Hook.rows_read):
            rows_read(rows)

    def act_on_report(self) -> bool:
        """Let the hooks act on the rows read so far; returns whether the run was rolled back.

        Raises:
            DivergedError: The run diverged, and may not or can't recover.
        """
        for report_due in self.hooks.at(Hook.report_due):
            report_due()
        return self.left_epoch

    def begin(self) -> None:
        """Let the hooks prepare for the next steps."""
        for run_begins in self.hooks.at(Hook.run_begins):
            run_begins()

    def read_all_rows(self) -> bool:
        """Read the rows of all steps, waiting for the device, and act on them; as `act_on_report`."""
        self.reporter.flush(wait=True)
        return self.act_on_report()

    def save(self, reason: str, more: dict[str, Any] | None = None) -> None:
        """Save now, with `more` (JSON-ready) in the checkpoint's state; wait until it is on disk."""
        before = self.phase
        self.enter("saving")
        snapshot = snapshots.take(self.state)
        snapshot.state |= more or {}
        self.saver.save(snapshot, reason, wait=True)
        self.enter(before)
        self.reporter.restart_clock()

    def recovery_for(self, error: Exception, phase: str, rows: int) -> Recovery | None:
        """Return a recovery from `error` for a retry of a batch of `rows` samples; None: there is none."""
        recoveries = (failed(error, phase, rows) for failed in self.hooks.at(Hook.failed))
        return next((recovery for recovery in recoveries if recovery is not None), None)

    def go_back(self) -> None:
        """Roll back to the last good state; the run continues there with another pass over the data."""
        self.reporter.flush(wait=True)  # no row of the undone steps may arrive later
        self.rollback.go_back(self.state)
        self.leave_epoch()
        for went_back in self.hooks.at(Hook.went_back):
            went_back()

    def take_job(self, job: Job) -> None:
        """Apply a job with other settings, with the same model, optimizer and average."""
        state = self.state
        state.given = job
        for adapt_job in self.hooks.at(Hook.adapt_job):
            job = adapt_job(job)
        state.build(job, state.parts)
        self.hooks.refresh()
        for settings_changed in self.hooks.at(Hook.settings_changed):
            settings_changed()

    def take_length(self, job: Job) -> None:
        """Apply a job that differs from the one given in its length, and in what other hooks make of it."""
        for adapt_job in self.hooks.at(Hook.adapt_job):
            job = adapt_job(job)
        self.state.take_length(job)


HookFactory = Callable[[TrainContext], Hook]
"""Builds a hook of a run."""
