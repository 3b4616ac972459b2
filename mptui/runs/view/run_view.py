"""`RunView`: an event to its spec."""

from mptui.events import Event, Forked, PhaseChanged, RunStarted, Suspended
from mptui.runs.view.history import State
from mptui.runs.view.specs import EVENTS
from mptui.runs.view.state import ViewState
from mptui.runs.view.words import LOSS, cleaned

# The view of a run for the live screen, updated by events
# --------------------------------------------------------
# The same view serves a run of this process, a run of another one, and a journal.

_STATES: dict[str, State] = {
    "compiling": "compiling",
    "training": "training",
    "validating": "validating",
    "sampling": "validating",
    "saving": "saving",
    "paused": "paused",
}


class RunView(ViewState):
    """The state of a run on screens: `handle` updates it by an event; screens read its attributes.

    Invariant: the state follows from the events, in their order, and from nothing else: no clock, no file,
    no width of a screen. So the live screen, a replay and an index at any position agree.

    Attributes:
        is_past: Whether it is that of an earlier moment, which stays as it is.
    """

    is_past = False

    def handle(self, event: Event) -> None:
        """Update the state and the log."""
        event = cleaned(event)
        spec = EVENTS[event.kind]
        self.version += 1
        self._pass_time(event)
        self.time = event.time
        if event.clock is not None:
            self.sign_time, self.sign_clock = event.time, event.clock
        if spec.moves_step and event.step:  # a validation's progress has no step
            self.step = event.step
        spec.handle(self, event)
        self.last_step = max(self.last_step, self.step)
        self.write_log(event, spec.log_lines(event))
        self.timeline.reached(self.step, self.precision, self.profile)

    def _pass_time(self, event: Event) -> None:
        """Add the time since the event before to what the run did, unless nothing ran then."""
        is_starting = isinstance(event, PhaseChanged) and event.phase == "starting"
        starts = is_starting or isinstance(event, RunStarted | Forked)
        if starts or self.finished is not None:
            self.timeline.skip_to(event.time, event.clock)
            return
        if isinstance(event, Suspended):
            self.timeline.lose(event.seconds, event.time, self._state, event.clock)
            return
        waiting = self.latest.data_wait_fraction if self.latest is not None else None
        self.timeline.advance(event.time, self._state, waiting or 0.0, event.clock)

    @property
    def _state(self) -> State:
        return "paused" if self.paused else _STATES.get(self.phase, "preparing")

    def title_of(self, chart: str, title: str = "") -> str:
        """Return the title of a chart, or of a curve in it: of a loss with its `Validated.loss_terms`."""
        terms = self.validation.loss_terms if self.validation is not None and chart == LOSS else []
        return f"{title or chart} with {', '.join(terms)}" if terms else title or chart

    @property
    def fraction_done(self) -> float:
        """Completed fraction of the run, by its samples: earlier steps count as of the batch in force."""
        total = self.total_steps + self.steps_offset
        return min(1.0, max(0.0, (self.step + self.steps_offset) / total)) if total > 0 else 0.0

    def remaining_s(self) -> float | None:
        """Return the seconds until the end of the run, with the ends of its epochs; None while unknown."""
        run = self.started if self.finished is None else None
        if run is None or not self.total_steps:
            return None
        steps = max(0, self.total_steps - self.step)
        seconds = self.pace.remaining(steps, self.steps_per_epoch, run.val_batches)
        end_s = self.pace.epoch_end_s(run.val_batches) if self.phase == "validating" else None
        if seconds is not None and end_s is not None:
            left = 1 - self.progress.done / self.progress.total if self.progress else 1.0
            seconds += left * end_s
        return seconds
