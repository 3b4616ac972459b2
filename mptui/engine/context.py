"""What the loop and its hooks share: the state of a run, and the ways to report, save, recover and switch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.async_saver import Saver
from mptui.engine.guards.microbatch import MicroBatches
from mptui.engine.guards.rollback import Rollback
from mptui.engine.hooks import Recovery
from mptui.engine.job import Job, Parts, ProfileSwitch, build_parts
from mptui.engine.mailbox import Command, Mailbox
from mptui.engine.progress import Outcome
from mptui.engine.reporting.device_buffer import StepRow
from mptui.engine.state import TrainState
from mptui.engine.torch_setup import StepSeeds
from mptui.events import Event, PhaseChanged, Warned
from mptui.tasks.base import Task

Emit = Callable[[Event], None]
Rebuild = Callable[[Command], ProfileSwitch]


class TrainContext:
    """A run as its hooks see it.

    Args:
        job: What is trained, how, on what.
        emit: Where events go; called from the thread that trains, and from the saver's.
        mailbox: Commands and the request to stop; asked between two steps and two batches of a validation.
        saver: Writes the checkpoints.
        rebuild: Makes the job that a command for another profile or setting asks for, around the same model.

    Attributes:
        state: Everything that a checkpoint holds.
        hooks: What acts at the moments of the run.
        reporter: Reads the figures of the steps late, and reports them.
        seeds: Set the random numbers of a step from its position.
        micro_batches: Samples that pass through the network at once.
        left_out: Windows that are left out of the order, as (epoch from 0, first sample).
        rollback: The last good states, in host memory.
        outcome: Figures for the summary.
        phase: What the run is busy with.
        left_epoch: The pass over the data under way ends; the next one begins at the cursor.
    """

    def __init__(
        self, job: Job, *, emit: Emit, mailbox: Mailbox, saver: Saver, rebuild: Rebuild | None = None
    ) -> None:
        self.emit, self.mailbox, self.saver, self.rebuild = emit, mailbox, saver, rebuild
        self.device = job.device
        self.state = TrainState(job, emit)
        self.state.use(build_parts(job, self.warn))
        self.hooks, self.reporter = self.state.hooks, self.state.report
        self.reporter.watcher = self._rows_read
        self.seeds = StepSeeds(job.config.training.seed, job.device)
        self.micro_batches = MicroBatches()
        self.left_out: set[tuple[int, int]] = set()
        self.rollback = Rollback(self.warn)
        self.outcome = Outcome()
        self.phase = ""
        self.left_epoch = False

    @property
    def job(self) -> Job:
        """What is trained, with the settings in force."""
        return self.state.job

    @property
    def model(self) -> torch.nn.Module:
        """The network."""
        return self.state.model

    @property
    def task(self) -> Task:
        """What is learnt."""
        return self.state.job.task

    @property
    def parts(self) -> Parts:
        """What the settings in force have built."""
        return self.state.parts

    def warn(self, code: str, message: str) -> None:
        """Report something that a person should know."""
        self.emit(Warned(step=self.state.step, code=code, message=message))

    def enter(
        self, phase: str, *, detail: str = "", total: int | None = None, expected_s: float | None = None
    ) -> None:
        """Report what the run is busy with from now on."""
        if phase != self.phase:
            self.phase = phase
            step = self.state.step
            self.emit(PhaseChanged(step=step, phase=phase, detail=detail, total=total, expected_s=expected_s))

    def leave_epoch(self) -> None:
        """End the pass over the data under way; the next one begins at the cursor."""
        self.left_epoch = True

    def _rows_read(self, rows: Sequence[StepRow]) -> None:
        for rows_read in self.hooks.rows_read:
            rows_read(rows)

    def act_on_report(self) -> bool:
        """Let the hooks act on what was read; whether the run went back to an earlier state.

        Raises:
            DivergedError: It diverged, and may not or can't recover.
        """
        for report_due in self.hooks.report_due:
            report_due()
        return self.left_epoch

    def begin(self) -> None:
        """Let the hooks prepare for the steps that come next."""
        for run_begins in self.hooks.run_begins:
            run_begins()

    def settle(self) -> bool:
        """Read the figures of all steps, waiting for the device; act on them. Whether the run went back."""
        self.reporter.flush(wait=True)
        return self.act_on_report()

    def save(self, reason: str, more: dict[str, Any] | None = None) -> None:
        """Save now, with `more` (JSON-ready) in the checkpoint's state, and wait until it is on the disk."""
        before = self.phase
        self.enter("saving")
        snapshot = snapshots.take(self.state)
        snapshot.state |= more or {}
        self.saver.save(snapshot, reason, wait=True)
        self.enter(before)
        self.reporter.restart_clock()

    def recovery_for(self, error: Exception, phase: str, rows: int) -> Recovery | None:
        """What makes another try of a batch of `rows` samples work after `error`; None: nothing does."""
        recoveries = (failed(error, phase, rows) for failed in self.hooks.failed)
        return next((recovery for recovery in recoveries if recovery is not None), None)

    def go_back(self) -> None:
        """Set the run to its last good state; it continues from there with another pass over the data."""
        self.reporter.flush(wait=True)  # no row of what is undone now may come in later
        self.rollback.go_back(self.state)
        self.leave_epoch()
        for went_back in self.hooks.went_back:
            went_back()

    def take_job(self, job: Job) -> None:
        """Continue with other settings around the same model, optimizer and average, from now on."""
        state = self.state
        state.given = job
        for adapt_job in self.hooks.adapt_job:
            job = adapt_job(job)
        state.job = job
        state.use(build_parts(job, self.warn, state.parts, state.steps_left()))
        self.hooks.refresh()
        for settings_changed in self.hooks.settings_changed:
            settings_changed()
