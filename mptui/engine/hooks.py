"""Hooks: objects whose methods are called at named moments of a run.

A hook is built with the run's `TrainContext` and overrides the moments that it needs. Moments that it does
not override are not called, nor is an inactive hook.
"""

from collections.abc import Callable, Sequence
from inspect import isfunction
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from mptui.data.batch import Batch, Window
from mptui.engine.evaluate import ValidationResult
from mptui.engine.job import Job
from mptui.engine.micro_batches import Recovery
from mptui.engine.reporting.reporter import StepRow

P = ParamSpec("P")
R = TypeVar("R")


class Hook:
    """Base class of hooks; a hook that is `Stateful` is saved under its name."""

    @property
    def active(self) -> bool:
        """Whether the hook is on; read when hooks are added and when settings change."""
        return True

    def run_begins(self) -> None:
        """Called when the run begins, resumes, or returns to an earlier state, before its next step."""

    def first_window(self, window: Window) -> None:
        """Called with the first window that this process reads, before its step. May wait."""

    def step_begins(self) -> None:
        """Called before the first forward pass of a step. Must not wait for the device."""

    def gradients_ready(self) -> None:
        """Called after the window's last backward pass is issued, before the update. Must not wait."""

    def step_abandoned(self) -> None:
        """Called when a step is abandoned, because it was stopped or failed."""

    def step_ends(self) -> None:
        """Called after an optimizer step is issued and the cursor is past it. May wait only rarely."""

    def rows_read(self, rows: Sequence[StepRow]) -> None:
        """Called with step figures that have reached the host: each step once, in order, with a delay."""

    def report_due(self) -> None:
        """Called between two steps, after the figures that have reached the host were reported."""

    def batch_validated(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Called in a validation, before a batch is counted; one that fails comes again. Must not wait.

        Args:
            outputs: What the network returned; those of a later batch may overwrite them.
            batch: The batch.
        """

    def validated(self, measured: ValidationResult, epoch: int, best: bool) -> None:
        """Called after a validation in an epoch, from 1, and whether it is the best so far; on all ranks."""

    def epoch_ends(self) -> None:
        """Called after an epoch was trained and validated."""

    def failed(self, error: Exception, phase: str, rows: int) -> Recovery | None:
        """Called when a batch failed; returns a recovery, or None if this hook has none.

        Args:
            error: The exception.
            phase: training or validating.
            rows: Samples of the batch.
        """
        return None

    def adapt_job(self, job: Job) -> Job:
        """Called before other settings take effect; returns `job`, or a safer form of it."""
        return job

    def settings_changed(self) -> None:
        """Called after other settings have taken effect."""

    def went_back(self) -> None:
        """Called after a rollback to a snapshot."""

    def run_ends(self) -> None:
        """Called after the last step was taken and validated."""

    def run_stops(self) -> None:
        """Called after a stop, once the run is saved; must not take long."""


class Hooks:
    """The hooks of a run by name, and for each moment the methods to call."""

    def __init__(self) -> None:
        self._by_name: dict[str, Hook] = {}
        self._methods: dict[str, list[Callable[..., Any]]] = {}
        self.refresh()

    def __getitem__(self, name: str) -> Hook:
        return self._by_name[name]

    def add(self, name: str, hook: Hook) -> None:
        """Append `hook` under `name`."""
        self._by_name[name] = hook
        self.refresh()

    def at(self, moment: Callable[Concatenate[Hook, P], R]) -> list[Callable[P, R]]:
        """Return the methods to call at a moment (`Hook.step_begins`), in the order of the hooks."""
        return self._methods[moment.__name__]

    def refresh(self) -> None:
        """Rebuild the lists of methods from the active hooks."""
        acting = [hook for hook in self._by_name.values() if hook.active]
        for moment in (name for name, value in vars(Hook).items() if isfunction(value)):
            own = [hook for hook in acting if getattr(type(hook), moment) is not getattr(Hook, moment)]
            self._methods[moment] = [getattr(hook, moment) for hook in own]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all stateful hooks, under `guards`."""
        memory = {
            name: hook.state_dict() for name, hook in self._by_name.items() if hasattr(hook, "state_dict")
        }
        return {"guards": memory}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore hooks from `state_dict`; those missing in it keep their initial state."""
        saved = state_dict.get("guards", {})
        for name, hook in self._by_name.items():
            if name in saved and hasattr(hook, "load_state_dict"):
                hook.load_state_dict(saved[name])
