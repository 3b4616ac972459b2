"""Hooks: what acts at named moments of a run, beside the loop.

A hook is built with the run's `TrainContext` and overrides the moments that it needs. What it does not
override is not called, and neither is a hook that is inactive.
"""

from collections.abc import Callable, Sequence
from typing import Any

from mptui.engine.job import Job
from mptui.engine.reporting.device_buffer import StepRow

Recovery = Callable[[], None]
"""Makes the next try of something that failed work; called once the `except` block is left."""


class Hook:
    """Acts at the moments that it overrides; one that is `Stateful` is saved under its name."""

    @property
    def active(self) -> bool:
        """Whether the settings in force have it on; asked when a run begins and when settings change."""
        return True

    def run_begins(self) -> None:
        """The run begins, resumes, or was set to an earlier state; no step was taken since."""

    def step_begins(self) -> None:
        """A forward pass comes next. Must not wait for the device."""

    def gradients_ready(self) -> None:
        """The window's last backward pass is issued, and the weights have not moved. Must not wait."""

    def step_abandoned(self) -> None:
        """The step that began is given up: it was stopped, or failed."""

    def step_ends(self) -> None:
        """An optimizer step was issued, and the cursor is behind it. Must not wait, unless it rarely does."""

    def rows_read(self, rows: Sequence[StepRow]) -> None:
        """Figures of steps have reached the host: each step once, in order, some time after it was taken."""

    def report_due(self) -> None:
        """All that has reached the host was reported: act on it, between two steps."""

    def epoch_ends(self) -> None:
        """An epoch was trained and validated."""

    def failed(self, error: Exception, phase: str, rows: int) -> Recovery | None:
        """A batch failed; return what makes another try work, or None where this hook knows nothing.

        Args:
            error: What was raised.
            phase: training or validating.
            rows: Samples of the batch.
        """
        return None

    def adapt_job(self, job: Job) -> Job:
        """Other settings are about to come into force: return `job`, or a safer form of it."""
        return job

    def settings_changed(self) -> None:
        """Other settings are in force."""

    def went_back(self) -> None:
        """The run was set back to a snapshot."""

    def run_ends(self) -> None:
        """The last step was taken and validated."""


class Hooks:
    """The hooks of a run by name, and for each moment the methods of those that act at it."""

    run_begins: list[Callable[[], None]]
    step_begins: list[Callable[[], None]]
    gradients_ready: list[Callable[[], None]]
    step_abandoned: list[Callable[[], None]]
    step_ends: list[Callable[[], None]]
    rows_read: list[Callable[[Sequence[StepRow]], None]]
    report_due: list[Callable[[], None]]
    epoch_ends: list[Callable[[], None]]
    failed: list[Callable[[Exception, str, int], Recovery | None]]
    adapt_job: list[Callable[[Job], Job]]
    settings_changed: list[Callable[[], None]]
    went_back: list[Callable[[], None]]
    run_ends: list[Callable[[], None]]

    def __init__(self) -> None:
        self._by_name: dict[str, Hook] = {}
        self.refresh()

    def __getitem__(self, name: str) -> Hook:
        return self._by_name[name]

    def add(self, name: str, hook: Hook) -> None:
        """Let `hook` act after those that are there."""
        self._by_name[name] = hook
        self.refresh()

    def refresh(self) -> None:
        """Ask each hook whether it is active."""
        acting = [hook for hook in self._by_name.values() if hook.active]
        for moment in Hooks.__annotations__:
            own = [hook for hook in acting if getattr(type(hook), moment) is not getattr(Hook, moment)]
            setattr(self, moment, [getattr(hook, moment) for hook in own])

    def state_dict(self) -> dict[str, Any]:
        """The memory of the hooks that have one, under `guards`."""
        memory = {
            name: hook.state_dict() for name, hook in self._by_name.items() if hasattr(hook, "state_dict")
        }
        return {"guards": memory}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from `state_dict`; a hook that it does not know begins without memory."""
        saved = state_dict.get("guards", {})
        for name, hook in self._by_name.items():
            if name in saved and hasattr(hook, "load_state_dict"):
                hook.load_state_dict(saved[name])
