"""Numerics monitor of a run: probes single steps, and reports what 16-bit formats lose in them.

Counts stay on the device, and are read at a later report. Probes never cost more than a fixed share of the
run: the cost of a probe, measured against the step before it, sets the time until the next one. It costs
nothing when off.
"""

import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

import torch

from mptui.config.base_tables import NumericsMode
from mptui.engine.compile.policy import eagerly
from mptui.engine.context import TrainContext
from mptui.engine.hooks import Hook
from mptui.engine.numerics.probe import Probe
from mptui.engine.numerics.ranking import rank
from mptui.engine.reporting.late_reads import HostCopy, Moment
from mptui.events import NUMERICS_BUDGET, Advice, Numerics, NumericsLayer
from mptui.registry.precisions import LOSS_SCALED

LAYERS_REPORTED = 12
"""Parts of layers listed in an event; the rest are summarized."""
SAMPLED = 1 << 14
"""Values counted per tensor in summary mode."""
EVERY_S = {"summary": 30.0, "full": 2.0}
"""Minimum seconds between two probes, by mode."""
_REPEATS, _REMEMBERED = 4, 16
"""Probes before their cost is a figure, and at most in its median: it is less than the noise of one step."""


class Span:
    """Duration of work on a device; read it once the device has finished."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._from = self._to = Moment(device)

    def end(self) -> None:
        """Mark the end of the work."""
        self._to = Moment(self._device)

    def seconds(self) -> float:
        """Return the duration in seconds."""
        return self._to.seconds_since(self._from)


@dataclass(slots=True)
class _UnderWay:
    """A probe whose counts are being copied to the host."""

    probe: Probe
    reading: HostCopy
    step: int
    precision: str
    mode: NumericsMode
    eager: bool
    plain: Span
    probed: Span


class NumericsMonitor(Hook):
    """Probes a step periodically."""

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        self._asked: NumericsMode | None = None
        self._next = 0.0
        self._plain: Span | None = None
        self._span: Span | None = None
        self._probe: Probe | None = None
        self._hooks = ExitStack()
        self._under_way: _UnderWay | None = None
        self._plain_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._probed_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._measured_mode: NumericsMode = "off"
        self._advised: set[str] = set()

    @property
    def mode(self) -> NumericsMode:
        """Mode in force: as requested during the run, else as configured."""
        return self._asked or self._context.job.config.guards.numerics

    @property
    def active(self) -> bool:
        """Whether this process probes steps: of several, the first one does."""
        return self.mode != "off" and self._context.ranks.is_first

    def ask(self, mode: NumericsMode | None) -> None:
        """Set the mode from the next step on; None: as configured."""
        self._asked = mode
        self._next = 0.0
        self._context.hooks.refresh()

    def step_begins(self) -> None:
        """When a probe is due, time one step without it, and probe the next one."""
        if self._under_way is not None or time.perf_counter() < self._next:
            return
        context = self._context
        if context.phase != "training" or context.parts.compiler.undecided:
            return
        self._span = Span(context.device)
        if self._plain is None:
            return
        full = self.mode == "full"
        self._probe = Probe(context.model, context.device, most=None if full else SAMPLED)
        if full or not context.parts.compiler.active:
            self._hooks.enter_context(self._probe.hooks())
            self._hooks.enter_context(eagerly(context.model))

    def gradients_ready(self) -> None:
        """End the timing, or count the weights' gradients and start copying the counts to the host."""
        span, probe = self._span, self._probe
        if span is None:
            return
        self.step_abandoned()
        if probe is None or self._plain is None:
            span.end()
            self._plain = span
            return
        context, mode = self._context, self.mode
        probe.add_weights()
        scale = context.parts.precision.loss_scale()
        reading = HostCopy([probe.rows] if scale is None else [probe.rows, scale])
        span.end()
        eager = context.parts.compiler.active and mode == "full"
        step, precision = context.state.step + 1, context.job.precision
        self._under_way = _UnderWay(probe, reading, step, precision, mode, eager, self._plain, span)
        self._plain = None

    def step_abandoned(self) -> None:
        """Remove the probe from the network."""
        self._hooks.close()
        self._span = self._probe = None

    def report_due(self) -> None:
        """Report the last probe, if its counts have reached the host."""
        way = self._under_way
        if way is None or not way.reading.arrived:
            return
        self._under_way = None
        cost = self._cost(way)
        every = max(EVERY_S[way.mode], cost / NUMERICS_BUDGET[way.mode])
        if self.mode == way.mode:
            self._next = time.perf_counter() + every
        rows, *scales = way.reading
        scale = float(scales[0]) if scales else None
        ranking = rank(way.probe.seen(rows), scale)
        others = ranking.layers[LAYERS_REPORTED:]
        event = Numerics(
            step=way.step,
            mode=way.mode,
            precision=way.precision,
            eager=way.eager,
            loss_scale=scale,
            best_scale=None if ranking.best is None else ranking.best.scale,
            lost=ranking.lost,
            lost_at_best=None if ranking.best is None else ranking.best.lost,
            cost_s=cost if len(self._probed_s) >= _REPEATS else None,
            every_s=every,
            layers=ranking.layers[:LAYERS_REPORTED],
            others=len(others),
            others_at_fault=sum(bool(layer.fault) for layer in others),
            others_lost=max((layer.lost for layer in others), default=0.0),
        )
        self._context.emit(event)
        self._advise(event)

    def _cost(self, way: _UnderWay) -> float:
        """Return the median seconds that probes of this mode add to a step, this one included."""
        if way.mode != self._measured_mode:
            self._measured_mode = way.mode
            self._plain_s.clear()
            self._probed_s.clear()
        self._plain_s.append(way.plain.seconds())
        self._probed_s.append(way.probed.seconds())
        return max(0.0, median(self._probed_s) - median(self._plain_s))

    def _advise(self, event: Numerics) -> None:
        """Advise on the worst layer, each kind of advice once per run."""
        if event.precision not in LOSS_SCALED or not event.layers or not event.layers[0].fault:
            return
        advice = advice_on(event, event.layers[0])
        if advice.code not in self._advised:
            self._advised.add(advice.code)
            self._context.emit(advice)


def advice_on(event: Numerics, layer: NumericsLayer) -> Advice:
    """Return advice on a layer with a fault, in an fp16 run."""
    where = {"forward": "its outputs", "gradient": "the gradients of its outputs"}.get(
        layer.part, "its weights' gradients"
    )
    if layer.fault == "underflow" and layer.part != "forward":
        now, best = event.loss_scale or 1.0, event.best_scale
        if best is not None and best > now:
            return Advice(
                step=event.step,
                code="numerics_scale",
                message=f"{layer.name} loses {layer.lost:.0%} of {where} in fp16 with a loss scale of "
                f"{now:,.0f}; {best:,.0f} is the largest that the gradients of this step allow",
                setting=f"precision.grad_scaler.init_scale={best}",
            )
    share = layer.overflow if layer.fault == "overflow" else layer.zeroed + layer.subnormal
    what = "beyond" if layer.fault == "overflow" else "below"
    return Advice(
        step=event.step,
        code=f"numerics_{layer.fault}",
        message=f"{layer.name}: {share:.1%} of {where} are {what} fp16's range with any loss scale; "
        "use bf16, or fp32 for this layer (mptui check-amp checks both)",
        setting="precision.mode=bf16",
    )
