"""The numerics lens of a run: looks at one step now and then, and tells what 16 bits do to its numbers.

What a look counts stays on the device, and is read at a later report. A look never costs more than a fixed
share of the run: what it took is measured against the step before it, and the next one waits accordingly.
Off, it costs a comparison a step.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mptui.config.schema import NumericsMode
from mptui.engine.compile.policy import eagerly
from mptui.engine.numerics.probe import Look
from mptui.engine.numerics.ranking import rank
from mptui.engine.numerics.tally import Reading
from mptui.events import NUMERICS_BUDGET, Advice, Numerics, NumericsLayer

if TYPE_CHECKING:
    from mptui.engine.trainer import Trainer

LAYERS_TOLD = 12
"""Parts of layers that an event tells in full; of the rest it tells the sum, however many there are."""
SAMPLED = 1 << 14
"""Values of each tensor that a summary looks at."""
EVERY_S = {"summary": 30.0, "full": 2.0}
"""Seconds between two looks, at least."""

_NOTHING: AbstractContextManager[None] = nullcontext()


class Span:
    """The time of some work, measured where it is done: read it when the device is through."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._from, self._to = self._now(), self._now()

    def end(self) -> None:
        """The work is over."""
        self._to = self._now()

    def seconds(self) -> float:
        """How long it took."""
        if self._cuda:
            return float(self._from.elapsed_time(self._to)) / 1e3
        return float(self._to - self._from)

    def _now(self) -> Any:  # noqa: ANN401 - seconds, or an event of the device
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


@dataclass(slots=True)
class _UnderWay:
    """A look whose counts are on their way to the host."""

    look: Look
    reading: Reading
    step: int
    precision: str
    mode: NumericsMode
    eager: bool
    plain: Span
    looked: Span


class Lens:
    """Looks at the steps of one trainer."""

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        self._asked: NumericsMode | None = None
        self._next = 0.0
        self._plain: Span | None = None
        self._under_way: _UnderWay | None = None
        self._advised: set[str] = set()

    @property
    def mode(self) -> NumericsMode:
        """What is looked at: as asked for while the run goes, else as configured."""
        return self._asked or self._trainer.job.config.guards.numerics

    def ask(self, mode: NumericsMode | None) -> None:
        """Look in another mode from the next step on; None: as configured."""
        self._asked = mode
        self._next = 0.0

    def watching(self) -> AbstractContextManager[None]:
        """The context of a window's forward and backward passes; mostly one that does nothing."""
        if self.mode == "off" or self._under_way is not None or time.perf_counter() < self._next:
            return _NOTHING
        if self._trainer.phase != "training" or self._trainer.parts.compiler.undecided:
            return _NOTHING
        return self._time() if self._plain is None else self._look(self._plain)

    def tell(self) -> None:
        """Tell what the last look has found, if it has reached the host."""
        way = self._under_way
        if way is None or not way.reading.arrived:
            return
        self._under_way = None
        cost = max(0.0, way.looked.seconds() - way.plain.seconds())
        every = max(EVERY_S[way.mode], cost / NUMERICS_BUDGET[way.mode])
        if self.mode == way.mode:
            self._next = time.perf_counter() + every
        rows, *scales = way.reading
        scale = float(scales[0]) if scales else None
        ranking = rank(way.look.seen(rows), scale)
        event = Numerics(
            step=way.step,
            mode=way.mode,
            precision=way.precision,
            eager=way.eager,
            loss_scale=scale,
            best_scale=None if ranking.best is None else ranking.best.scale,
            lost=ranking.lost,
            lost_at_best=None if ranking.best is None else ranking.best.lost,
            cost_s=cost,
            every_s=every,
            layers=ranking.layers[:LAYERS_TOLD],
            others=len(ranking.layers[LAYERS_TOLD:]),
            others_at_fault=sum(bool(layer.fault) for layer in ranking.layers[LAYERS_TOLD:]),
            others_lost=max((layer.lost for layer in ranking.layers[LAYERS_TOLD:]), default=0.0),
        )
        self._trainer.emit(event)
        self._advise(event)

    @contextmanager
    def _time(self) -> Iterator[None]:
        """Measure a step that nobody looks at."""
        span = Span(self._trainer.device)
        yield
        span.end()
        self._plain = span

    @contextmanager
    def _look(self, plain: Span) -> Iterator[None]:
        trainer, mode = self._trainer, self.mode
        compiled = trainer.parts.compiler.active
        full = mode == "full"
        span = Span(trainer.device)
        look = Look(trainer.model, trainer.device, most=None if full else SAMPLED)
        if full or not compiled:
            with look.hooks(), eagerly(trainer.model):
                yield
        else:
            yield
        look.add_weights()
        scale = trainer.parts.precision.loss_scale()
        reading = Reading([look.rows] if scale is None else [look.rows, scale])
        span.end()
        self._plain = None
        self._under_way = _UnderWay(
            look, reading, trainer.step + 1, trainer.job.precision, mode, compiled and full, plain, span
        )

    def _advise(self, event: Numerics) -> None:
        """What to do about the worst layer, each kind once a run."""
        if event.precision != "fp16" or not event.layers or not event.layers[0].fault:
            return
        advice = advice_on(event, event.layers[0])
        if advice.code not in self._advised:
            self._advised.add(advice.code)
            self._trainer.emit(advice)


def advice_on(event: Numerics, layer: NumericsLayer) -> Advice:
    """What to do about a layer at fault, in a run that computes in fp16."""
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
                f"{now:,.0f}; one of {best:,.0f} would lose {event.lost_at_best or 0:.1%} over all layers",
                setting=f"precision.grad_scaler.init_scale={best}",
            )
    share = layer.overflow if layer.fault == "overflow" else layer.zeroed + layer.subnormal
    what = "beyond" if layer.fault == "overflow" else "below"
    return Advice(
        step=event.step,
        code=f"numerics_{layer.fault}",
        message=f"{layer.name}: {share:.1%} of {where} are {what} fp16's range, whatever the loss scale; "
        "bf16 has the range, or let this layer compute in fp32 (mptui check-amp tries both)",
        setting="precision.mode=bf16",
    )
