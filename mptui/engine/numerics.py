"""Numerics monitor of a run: probes single steps, and reports what 16-bit formats lose in them."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from mptui.engine import spectrum
from mptui.engine.compile import eagerly
from mptui.engine.context import TrainContext
from mptui.engine.hooks import Hook
from mptui.engine.ranks.group import shard_of
from mptui.engine.reporting.step_time import HostCopy, Moment
from mptui.engine.spectrum import Part, PartStatistics, Spectrum, rank
from mptui.events import NUMERICS_BUDGET, Advice, Numerics, NumericsLayer
from mptui.models.layers import recomputing
from mptui.registry.names import LOSS_SCALED, NumericsMode
from mptui.torch_private import DropoutNd, floats_in

# A probe of one step: module hooks that count values, and are removed when the step ends
# ---------------------------------------------------------------------------------------

WHOLE = "the network"
"""Name of a network that is a single layer."""

# modules that return their input, or a part of it
_PASSED_ON = (torch.nn.Identity, torch.nn.Flatten, DropoutNd)
# modules whose exact zeros are small values that underflowed
_NEVER_ZERO = (torch.nn.Softmax, torch.nn.Softmax2d, torch.nn.Softmin, torch.nn.Sigmoid)


class Probe:
    """Counts outputs, their gradients and the weights' gradients of every layer used in a step.

    A layer is a module without submodules, or with weights of its own.

    Args:
        model: Must run eagerly while it is probed: compiled code calls no hooks.
        most: Maximum number of values counted per tensor; None: all.
    """

    def __init__(self, model: torch.nn.Module, device: torch.device, *, most: int | None = None) -> None:
        self._layers = [
            (name or WHOLE, module)
            for name, module in model.named_modules()
            if _is_layer(module) and not isinstance(module, _PASSED_ON)
        ]
        self._most = most
        self._rows = spectrum.new_rows(3 * len(self._layers), device)
        self._taken: dict[tuple[int, Part], int] = {}

    @property
    def rows(self) -> torch.Tensor:
        """Counts so far, on the device: a row for each item of `seen`, in the same order."""
        return self._rows[: len(self._taken)]

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Count outputs and their gradients of the passes inside this context."""
        with ExitStack() as stack:
            for number, (_, module) in enumerate(self._layers):
                stack.callback(module.register_forward_hook(self._passing(number)).remove)
            yield

    def add_weights(self) -> None:
        """Count the current gradients of the weights, last layer first."""
        for number, (_, module) in reversed(list(enumerate(self._layers))):
            for weight in module.parameters(recurse=False):
                if weight.grad is not None and (own := shard_of(weight.grad)).numel():
                    self._add(number, "weights", own)

    def seen(self, rows: torch.Tensor) -> list[PartStatistics]:
        """Return the statistics of `rows`, which must be on the host, in order of execution."""
        counts = rows.numpy()
        return [
            PartStatistics(
                self._layers[number][0],
                part,
                Spectrum(
                    counts[row],
                    zeros_lost=part == "forward" and isinstance(self._layers[number][1], _NEVER_ZERO),
                ),
            )
            for (number, part), row in self._taken.items()
        ]

    def _passing(self, number: int) -> Callable[[torch.nn.Module, Any, Any], None]:
        def passing(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:  # noqa: ANN401 - a hook
            if recomputing():
                return
            for value in floats_in(outputs):
                self._add(number, "forward", value)
                if value.requires_grad:
                    count = partial(self._add, number, "gradient")
                    value.register_hook(count)  # type: ignore[no-untyped-call]

        return passing

    def _add(self, number: int, part: Part, values: torch.Tensor) -> None:
        row = self._taken.setdefault((number, part), len(self._taken))
        with torch.no_grad():
            spectrum.add(self._rows[row], values, most=self._most)


def _is_layer(module: torch.nn.Module) -> bool:
    has_weights = next(module.parameters(recurse=False), None) is not None
    return has_weights or not any(module.children())


# Numerics monitor of a run: probes single steps, and reports what 16-bit formats lose in them
# --------------------------------------------------------------------------------------------
# Counts stay on the device, and are read at a later report. Probes never cost more than a fixed share of
# the run: the cost of a probe, measured against the step before it, sets the time until the next one. It
# costs nothing when off.

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
        is_faulty = event.layers and event.layers[0].fault
        if not is_faulty or event.precision not in LOSS_SCALED:
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
