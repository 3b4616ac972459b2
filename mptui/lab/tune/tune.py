"""Searches the settings of a run within a time limit, from a start that fits into memory."""

import time
from collections.abc import Callable

from mptui.errors import (
    ConfigError,
    DataError,
    DiskError,
    DivergedError,
    MemoryExhaustedError,
    MptuiError,
)
from mptui.lab.bench.measure import Effort, MeasureError, Measurer, ShortRunResult, StoppedError, endless
from mptui.lab.bench.run_listener import LOSS_AT
from mptui.lab.tune.search import Patience, Search, Settings
from mptui.lab.tune.tunables import BATCH, MICRO_BATCH, Tunable
from mptui.runs.planning.plan import Plan

_ERRORS = {e.exit_code: e for e in (ConfigError, DataError, DivergedError, MemoryExhaustedError, DiskError)}
_RUNS = 100
"""Number of runs that the time should suffice for."""
_FEWEST = 4
"""Steps after which losses are compared if `LOSS_AT` steps would take too long."""
_SHORTEST_S, _LONGEST_S = 0.5, 3.0


class Deadline:
    """The end of the time that was given."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds until then, at least 0."""
        return max(0.0, self._until - time.monotonic())


class Tuning:
    """A search that measures real runs.

    Args:
        plan: Plan of the requested run.
        measurer: Measures runs.
        seconds: Time limit.
        cpus: CPUs that the run may use.
        tell: Called with lines about the progress.
    """

    def __init__(
        self, plan: Plan, measurer: Measurer, *, seconds: float, cpus: int, tell: Callable[[str], None]
    ) -> None:
        self.clock = Deadline(seconds)
        self.runs = 0
        self.search: Search | None = None
        self._given_s, self._began, self._loss_at = seconds, time.monotonic(), LOSS_AT
        self._plan, self._measurer, self._tell = plan, measurer, tell
        self._request = endless(plan.request, plan)
        self._timed_s = min(_LONGEST_S, max(_SHORTEST_S, seconds / _RUNS))
        self._tunable = Tunable(plan, cpus, _free_bytes(plan))

    @property
    def seconds(self) -> float:
        """Seconds taken so far."""
        return time.monotonic() - self._began

    def go(self) -> None:
        """Search until all settings are measured or the time is over; sets `search` after the start.

        Raises:
            MptuiError: The start could not be measured.
            StoppedError: A stop was requested, or the time is over; `search` is valid.
        """
        start, first = self._fitting_start()
        self._tell(f"the start: {first.samples_per_second:,.1f} images/s")
        step_s = self._plan.config.training.batch_size / first.samples_per_second
        self._loss_at = int(max(_FEWEST, min(LOSS_AT, self._given_s / _RUNS * 3 / step_s)))
        self.search = Search(
            start,
            first,
            first_s=first.run_s or self.seconds,
            propose=self._tunable.axes,
            run=self._run,
            clock=self.clock,
            tell=self._tell,
        )
        self.search.go()

    def _fitting_start(self) -> tuple[dict[str, object], ShortRunResult]:
        """Return the start and its measurement, with smaller micro-batches if it doesn't fit into memory."""
        start = self._tunable.start()
        pieces = batch = self._plan.config.training.batch_size
        while True:
            try:
                return start, self._run(start, False, Patience(self.clock.left()))
            except MeasureError as error:
                if not error.out_of_memory or pieces == 1:
                    raise _as_ours(error) from error
                pieces = (pieces + 1) // 2
                start[MICRO_BATCH] = pieces
                self._tell(f"{BATCH} = {batch} does not fit; tries {MICRO_BATCH} = {pieces}")

    def _run(self, settings: Settings, loss: bool, patience: Patience) -> ShortRunResult:
        if not self.clock.left():
            raise StoppedError
        self.runs += 1
        left = self.clock.left()
        loss_at = self._loss_at if loss else 0
        effort = Effort(self._timed_s, loss_at, min(left, patience.run_s), patience.first_step_s)
        try:
            return self._measurer.measure(self._request, settings, effort)
        except MeasureError:
            if not self.clock.left():  # it was not slow: it was the last
                raise StoppedError from None
            raise


def _as_ours(error: MeasureError) -> MptuiError:
    """Convert the error of the first run to an `MptuiError` with its exit code."""
    kind = _ERRORS.get(error.exit_code, MptuiError)
    return kind(str(error), hint="check that it trains: the same with mptui run --max-steps 20")


def _free_bytes(plan: Plan) -> int | None:
    if plan.device.kind == "cpu":
        from mptui.hardware.host import host_memory

        return host_memory()[1]
    return plan.device.memory_free
