"""Ring on the device, copies, `Step` events."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mptui.data.batch import Batch
from mptui.engine.evaluate import SCORES
from mptui.engine.ranks.beats import StepTimes
from mptui.engine.reporting.step_time import HostCopy, StepClock, Throughput, Verdict
from mptui.events import Event, Step, StepSkipped
from mptui.tasks.base import Metrics, WindowMetrics

# Training metrics of the steps that were applied: one that is refused or taken anew adds nothing
# -----------------------------------------------------------------------------------------------

MOST_NUMBERS = 1 << 20
"""Numbers of the outputs of a window that are kept until its step is applied: 4 MB."""


class AppliedMetrics:
    """Updates metrics with the micro-batches of a window, if its step is applied. Never syncs.

    Args:
        metrics: The training metrics of this process.
        make: Makes metrics of the same kind, for one window.
    """

    def __init__(self, metrics: Metrics, make: Callable[[], Metrics]) -> None:
        self._metrics = metrics
        self._whole = metrics if isinstance(metrics, WindowMetrics) else None
        self._make = make
        self.begin()

    def begin(self) -> None:
        """Start a window, or start it over."""
        self._kept: list[Any] = []
        self._numbers = 0  # of the outputs
        self._apart: Metrics | None = None

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Add the window's next micro-batch."""
        self._numbers += outputs.numel()
        if self._whole is not None and self._numbers <= MOST_NUMBERS:
            self._kept.append(self._whole.kept_of(outputs, batch))
            return
        if self._apart is None:
            self._apart = self._make()
        self._apart.update(outputs, batch)

    def end(self, good: torch.Tensor) -> None:
        """Count the window if its step is `good` (0-dim bool on the device): it is applied."""
        if self._apart is not None:
            add_if(self._metrics, self._apart.state_dict(), good)
        if self._kept and self._whole is not None:  # after the sums: then this can't run out of memory
            self._whole.update_window(self._kept, good)


def add_if(metrics: Metrics, state: dict[str, torch.Tensor], applied: torch.Tensor) -> None:
    """Add the `state` of other metrics to `metrics` if `applied` (0-dim bool on the device).

    Sums on the device are added without a sync.
    """
    sums = metrics.state_dict()
    for name, value in state.items():
        counts = applied.to(value.device)
        if name == SCORES:  # a row for each sample
            sums[name] = torch.cat([sums[name], value]) if counts else sums[name]
        else:
            added = torch.where(counts, value, torch.zeros_like(value))
            sums[name] = sums[name] + added if name in sums else added
    metrics.load_state_dict(sums)


# Buffers the figures of each step on the device and reads them later, so that no step synchronizes
# -------------------------------------------------------------------------------------------------
# A step writes one row (loss, gradient norm, refused, loss scale, learning rate) into a ring buffer on the
# device. At each log interval the new rows are copied asynchronously to pinned host memory; they are read
# at the next interval, when the copy has finished. On a CPU they are read at once.

COLUMNS = ("loss", "grad_norm", "refused", "loss_scale", "lr")
CAPACITY = 4096
_VIEWS = 64
"""Rows whose views are made at a time: those of the whole ring would cost each start 20 ms."""

About = tuple[int, int, int, int, int]


@dataclass(slots=True)
class StepRow:
    """Figures of one optimizer step."""

    step: int
    epoch: int
    epoch_step: int
    samples: int
    sample: int
    loss: float
    grad_norm: float
    refused: bool
    loss_scale: float
    lr: float


@dataclass(slots=True)
class ReceivedRows:
    """Rows copied to the host, and the metrics' sums after the last of them."""

    rows: list[StepRow]
    sums: dict[str, torch.Tensor]


class Meter:
    """Ring buffer of step rows with pending copies to the host. Returns rows in order, each once.

    With `in_step` the rows that `read` returns don't depend on how fast a device is: on other devices than a
    CPU, all but those sent last.
    """

    def __init__(self, device: torch.device, *, in_step: bool = False) -> None:
        self._held = int(in_step and device.type != "cpu")
        self._in_step = in_step
        self._ring = torch.zeros(CAPACITY, len(COLUMNS), device=device)
        self._rows: list[torch.Tensor] = []
        self._about: list[About] = []
        self._start = 0
        self._pending: deque[tuple[list[About], list[str], HostCopy]] = deque()

    def write(self, values: tuple[torch.Tensor, ...], about: About) -> None:
        """Write the row of a step.

        Args:
            values: 0-dim float32 tensors on the device, in the order of COLUMNS.
            about: Step, epoch, step in the epoch (all from 1), samples, and the index (from 0) of the first
                sample in the epoch's order.
        """
        row = self._start + len(self._about)
        if row == len(self._rows):
            self._rows += self._ring[row : row + _VIEWS].unbind(0)
        torch.stack(values, out=self._rows[row])
        self._about.append(about)

    @property
    def full(self) -> bool:
        """Whether rows must be sent before another can be written."""
        return self._start + len(self._about) >= CAPACITY

    def send(self, sums: dict[str, torch.Tensor]) -> None:
        """Start copying all new rows and the metrics' `sums` to the host."""
        if not self._about:
            return
        end = self._start + len(self._about)
        copy = HostCopy([self._ring[self._start : end], *sums.values()])
        self._pending.append((self._about, list(sums), copy))
        self._about = []
        # the ring starts over once it is full: the stream orders those writes after the copies
        self._start = 0 if end >= CAPACITY else end

    def read(self, *, wait: bool = False) -> list[ReceivedRows]:
        """Return the rows that have reached the host; with `wait`, all that were sent."""
        arrived: list[ReceivedRows] = []
        while self._pending:
            about, names, copy = self._pending[0]
            if not wait and len(self._pending) <= self._held:
                break
            if not copy.arrived:
                if not wait and not self._in_step:
                    break
                copy.wait()
            self._pending.popleft()
            rows, *sums = copy
            steps = [
                StepRow(*of, loss, norm, refused > 0, scale, lr)
                for of, (loss, norm, refused, scale, lr) in zip(about, rows.tolist(), strict=True)
            ]
            arrived.append(ReceivedRows(steps, dict(zip(names, sums, strict=True))))
        return arrived


# Aggregates step rows into events a few times a second, independent of the step rate
# -----------------------------------------------------------------------------------

Emit = Callable[[Event], None]


@dataclass(slots=True)
class EpochSums:
    """Sums over the applied steps of the epoch so far."""

    loss: float = 0.0
    samples: int = 0

    def mean_loss(self) -> float:
        """Return the mean loss per sample; NaN if no step was applied."""
        return self.loss / self.samples if self.samples else math.nan


@dataclass(slots=True)
class Totals:
    """Counts of the whole run, resumes included."""

    tried: int = 0
    skipped: int = 0
    samples_seen: int = 0
    streak: int = 0

    @property
    def applied(self) -> int:
        """Optimizer steps that updated the weights."""
        return self.tried - self.skipped


@dataclass(slots=True)
class _Interval:
    """Host time spent in training steps since the last event."""

    started: float = field(default_factory=time.perf_counter)
    waited: float = 0.0
    others: float = 0.0
    logging: float = 0.0
    saving: float = 0.0
    samples: int = 0
    steps: int = 0


class Reporter:
    """Records a row for each step, reads the rows asynchronously, and reports them as events.

    Args:
        emit: Called with each event.
        device: Device of the recorded tensors.
        interval_s: Seconds between two Step events.
        metrics: The training metrics, on the device.
        host_metrics: The same metrics on the host, computed from copies of the sums.
        in_step: Read the same rows at the same step in all processes that train together.

    Attributes:
        interval_s: Seconds between two Step events, by the settings in force; 0 reads each step at once.
        scaled: Whether the loss is scaled, so that the rows' loss scale is valid.
        on_rows: Called with the rows as they are read, each once, in order.
        clock: Measures one step in each interval.
        verdict: Finds the bottleneck of the steps.
        layers: Leaf modules of the network.
        reading: Returns the unthrottled rate of the loader, in samples per second.
        times: Times of the last measured step.
        run_throughput: Of this process, without the first interval as soon as there is another.
        epoch_throughput: Of the epoch, as far as this process has trained it.
    """

    def __init__(
        self,
        emit: Emit,
        device: torch.device,
        interval_s: float,
        *,
        metrics: Metrics,
        host_metrics: Metrics,
        in_step: bool = False,
    ) -> None:
        self._emit = emit
        self._metrics = metrics
        self._host_metrics = host_metrics
        self._meter = Meter(device, in_step=in_step)
        self.interval_s = interval_s
        self._interval = _Interval()
        self._flushed = self._interval.started
        self._intervals = 0
        self.scaled = False
        self.on_rows: Callable[[Sequence[StepRow]], None] | None = None
        self.totals = Totals()
        self.epoch = EpochSums()
        self.run_throughput = Throughput()
        self.epoch_throughput = Throughput()
        self.waited = 0.0
        self.trained = 0.0
        self.clock = StepClock(device)
        self.verdict = Verdict()
        self.layers = 0
        self.reading: Callable[[], float | None] = lambda: None
        self.times: StepTimes | None = None
        self._ceilings: dict[str, float] = {}
        self._unreported: list[StepRow] = []
        self._unreported_refused = 0

    def restart_clock(self) -> None:
        """Start a new interval after a validation or pause, whose time is not part of a step."""
        self._interval = _Interval()
        self._flushed = self._interval.started

    def begin_epoch(self) -> None:
        """Begin the sums of an epoch."""
        self.epoch = EpochSums()
        self.epoch_throughput = Throughput()

    def record(self, values: tuple[torch.Tensor, ...], about: About, waited: float) -> None:
        """Record the step that just ended; cheap, never syncs."""
        self._meter.write(values, about)
        interval = self._interval
        interval.samples += about[3]
        interval.steps += 1
        interval.waited += waited

    def due(self, now: float) -> bool:
        """Whether it is time for `flush`, by the clock of this process, or there is no room for a step."""
        return now - self._flushed >= self.interval_s or self._meter.full

    @property
    def full(self) -> bool:
        """Whether there is no room for another step before `flush`: in all ranks after the same step."""
        return self._meter.full

    def flush(self, *, wait: bool = False) -> None:
        """Start copying the new rows to the host, and report those that have arrived; with `wait`, all."""
        self._flushed = started = time.perf_counter()
        self._meter.send(self._metrics.state_dict())
        self._report(self._meter.read(wait=wait or self.interval_s == 0))
        self._interval.logging += time.perf_counter() - started

    def catch_up(self) -> None:
        """Read all rows, waiting for the device, and count them; they are reported with the next ones."""
        if self.interval_s == 0:  # each step has an event of its own, with the counts as they were then
            self.flush(wait=True)
            return
        started = time.perf_counter()
        self._meter.send(self._metrics.state_dict())
        for part in self._meter.read(wait=True):
            self._host_metrics.load_state_dict(part.sums)
            self._count(part.rows)
        self._interval.logging += time.perf_counter() - started

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Count the time inside this context as time spent saving."""
        started = time.perf_counter()
        yield
        self._interval.saving += time.perf_counter() - started

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside this context as time spent waiting for other processes."""
        started = time.perf_counter()
        yield
        self._interval.others += time.perf_counter() - started

    def wait_fraction(self) -> float:
        """Return the share of the training time that was spent waiting for data."""
        return self.waited / self.trained if self.trained else 0.0

    def _report(self, received: list[ReceivedRows]) -> None:
        rows = [row for part in received for row in part.rows]
        if not rows and not self._unreported:
            return  # the interval goes on: no time is left out
        now = time.perf_counter()
        interval, self._interval = self._interval, _Interval(now)
        elapsed = max(now - interval.started, 1e-9)
        self.trained += elapsed
        self.waited += interval.waited
        if interval.steps:
            self._count_interval(interval, elapsed)
            self._record_split(interval, elapsed)
        if received:
            self._host_metrics.load_state_dict(received[-1].sums)
        metrics = self._host_metrics.compute()
        for group in [[row] for row in rows] if self.interval_s == 0 else [rows]:
            self._count(group)
            self._emit_step(interval, elapsed, metrics)

    def _count_interval(self, interval: _Interval, elapsed: float) -> None:
        """Count the throughput; the first interval, with the warm-up of the device, only until the next."""
        self._intervals += 1
        if self._intervals == 2:
            self.run_throughput = Throughput()
        self.run_throughput.add(interval.samples, elapsed)
        self.epoch_throughput.add(interval.samples, elapsed)

    def _record_split(self, interval: _Interval, elapsed: float) -> None:
        """Record the time breakdown of an interval, extrapolated from its one measured step."""
        measured = self.clock.read()
        if measured is not None:
            of_interval = {"data": interval.waited, "logging": interval.logging, "saving": interval.saving}
            each = {part: seconds / interval.steps for part, seconds in of_interval.items()}
            others = interval.others / interval.steps
            rest = max(0.0, elapsed / interval.steps - sum(each.values()) - others)
            scale = rest / (sum(measured.seconds.values()) or 1.0)
            parts = {part: seconds * scale for part, seconds in measured.seconds.items()}
            parts["wait"] += others
            own = measured.seconds
            self.times = StepTimes(each["data"], own["forward"], own["backward"], own["wait"] + others)
            self.verdict.record({**each, **parts}, measured.starved, interval.steps, interval.samples)
            self._ceilings = self._ceilings_of(interval.samples / interval.steps)
        self.clock.arm()

    def _ceilings_of(self, samples: float) -> dict[str, float]:
        """Return the samples per second of steps of `samples` that never wait, and of the loader alone."""
        split = self.verdict.usual()
        working = sum(seconds for part, seconds in split.items() if part not in {"data", "copy", "saving"})
        found = {"steps": samples / working if working else None, "data": self.reading()}
        return {what: round(rate, 1) for what, rate in found.items() if rate is not None}

    def _emit_step(self, interval: _Interval, elapsed: float, metrics: dict[str, float]) -> None:
        """Report the rows counted since the last report."""
        rows, self._unreported = self._unreported, []
        refused, self._unreported_refused = self._unreported_refused, 0
        finite = [row.loss for row in rows if math.isfinite(row.loss)]
        last = rows[-1]
        self._emit(
            Step(
                step=last.step,
                epoch=last.epoch,
                epoch_step=last.epoch_step,
                steps=len(rows),
                samples_seen=self.totals.samples_seen,
                loss=sum(finite) / len(finite) if finite else math.nan,
                loss_min=min(finite, default=math.nan),
                loss_max=max(finite, default=math.nan),
                nonfinite=len(rows) - len(finite),
                lr=last.lr,
                grad_norm=last.grad_norm,
                loss_scale=last.loss_scale if self.scaled else None,
                skipped_steps=self.totals.skipped,
                samples_per_second=interval.samples / elapsed if interval.steps else None,
                step_time_s=elapsed / interval.steps if interval.steps else None,
                data_wait_fraction=min(1.0, interval.waited / elapsed),
                split={part: round(seconds, 6) for part, seconds in self.verdict.split().items()},
                bound_by=self.verdict.bound_by(self.layers),
                ceilings=self._ceilings,
                metrics=metrics,
            )
        )
        if refused:
            self._emit(
                StepSkipped(
                    step=last.step,
                    count=refused,
                    total=self.totals.skipped,
                    streak=self.totals.streak,
                    loss_scale=last.loss_scale if self.scaled else None,
                )
            )

    def _count(self, rows: Sequence[StepRow]) -> None:
        refused = 0
        for row in rows:
            self.totals.tried = row.step
            self.totals.samples_seen += row.samples
            if row.refused:
                refused += 1
                self.totals.streak += 1
            else:
                self.totals.streak = 0
                self.epoch.loss += row.loss * row.samples
                self.epoch.samples += row.samples
        self.totals.skipped += refused
        self._unreported += rows
        self._unreported_refused += refused
        if self.on_rows is not None:
            self.on_rows(rows)

    def state_dict(self) -> dict[str, Any]:
        """Return counts and sums for a checkpoint; call `catch_up` first."""
        totals = self.totals
        return {
            "tried": totals.tried,
            "skipped": totals.skipped,
            "samples_seen": totals.samples_seen,
            "streak": totals.streak,
            "epoch_loss": self.epoch.loss,
            "epoch_samples": self.epoch.samples,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore counts and sums from `state`."""
        self.totals = Totals(*(int(state[k]) for k in ("tried", "skipped", "samples_seen", "streak")))
        self.epoch = EpochSums(float(state["epoch_loss"]), int(state["epoch_samples"]))
