"""Loss scaling on real gradients: their exponents, and what fp16 loses of them at each scale.

A network takes one batch forward and backward in fp32. The gradients counted are those that fp16 training
computes in fp16: of the outputs of all layers and of their weights. Scales are powers of two, so that all
shares are exact (`mptui.engine.numerics.spectrum`), as if each gradient had been cast.
"""

from dataclasses import dataclass
from typing import Any

import torch

from mptui import format as fmt
from mptui.engine.numerics.probe import Probe
from mptui.engine.numerics.spectrum import Shares, Spectrum
from mptui.engine.numerics.tally import BINS
from mptui.engine.torch_setup import StepSeeds
from mptui.lab.learn.lesson import Lesson, Line, Tone, power, quiet
from mptui.lab.learn.small_runs import SmallRun
from mptui.runs.planning.plan import Request

DOUBLINGS = range(0, 25, 3)
"""Scales of the table, as exponents of 2."""
_HEIGHT = 5
_LEVELS = " ▁▂▃▄▅▆▇█"
_SUBNORMAL, _NORMAL, _TOP = -24, -14, 15
_FROM, _TO = -44, 16
"""Exponents of the histogram; those outside are added to its ends."""


@dataclass(frozen=True, slots=True)
class ScalingLesson(Lesson):
    """The gradients of one batch of a network."""

    model: str
    dataset: str
    gradients: int
    zeros: float
    """Share of gradients that are zero in fp32 already; other shares are of the rest."""
    first_exponent: int
    exponents: list[int]
    """Shares per mille of the gradients in [2^e, 2^(e+1)), from `first_exponent` on."""
    at_scale: dict[int, Shares]
    """Exponent of 2 of the loss scale -> shares lost."""

    @property
    def best(self) -> int:
        """Exponent of the scale that loses least; of equal ones the smallest."""
        return min(self.at_scale, key=lambda doublings: (_loss(self.at_scale[doublings]), doublings))

    def lines(self, width: int, focus: int) -> list[Line]:
        """Lay out the histogram at the best scale times 2^(3 focus), and the table of scales."""
        chosen = self.best + DOUBLINGS.step * focus
        named = f"{self.gradients:,} gradients of {self.model} on {self.dataset}"
        under = f"; exponents under a loss scale of 2^{chosen}"
        table = [self._row(doublings, doublings == chosen) for doublings in DOUBLINGS]
        return [
            [(named, ""), (under, "quiet")],
            *self._histogram(chosen, width),
            quiet(f"{'loss scale':<20}{'to zero':>10}{'lose bits':>11}{'overflow':>10}"),
            *table,
        ]

    def _row(self, doublings: int, chosen: bool) -> Line:
        shares = self.at_scale[doublings]
        best = "  loses least" if doublings == self.best else ""
        tone: Tone = "good" if doublings == self.best else "bad" if shares.overflow else ""
        zeroed, lost, over = (_percent(s) for s in (shares.zeroed, shares.subnormal, shares.overflow))
        skipped = "  the step is skipped" if shares.overflow and not best else ""
        figures = f"{zeroed:>10}{lost:>11}{over:>10}"
        mark: tuple[str, Tone] = ("▸ " if chosen else "  ", "accent")
        return [mark, (f"{power(doublings):<18}", ""), (figures, tone), (best or skipped, "quiet")]

    def _histogram(self, doublings: int, width: int) -> list[Line]:
        heights = [0] * (_TO - _FROM + 1)
        for number, share in enumerate(self.exponents):
            place = self.first_exponent + number + doublings - _FROM
            heights[min(max(place, 0), len(heights) - 1)] += share
        most = max(1, *heights)
        lines: list[Line] = []
        for row in range(_HEIGHT):
            spans: list[tuple[str, Tone]] = [("  ", "")]
            for place, share in enumerate(heights):
                eighths = -(-share * _HEIGHT * 8 // most) - 8 * (_HEIGHT - 1 - row)
                spans.append((_LEVELS[min(max(eighths, 0), 8)], _tone(place + _FROM)))
            lines.append(spans)
        normal = "━" * (_TOP - _NORMAL + 1)
        ruler = f"  {'zero':<{_SUBNORMAL - _FROM}}{'╌' * (_NORMAL - _SUBNORMAL)}{normal}"
        ticks = (
            f"  {'':<{_SUBNORMAL - _FROM}}{'2^-24':<{_NORMAL - _SUBNORMAL}}{'2^-14  fp16, all bits':<26}2^15"
        )
        return [*lines, quiet(ruler), quiet(ticks[:width])]

    def limited(self, focus: int) -> int:
        """Return the steps from the best scale that stay in the table."""
        step = DOUBLINGS.step
        return min(max(focus, (DOUBLINGS[0] - self.best) // step), (DOUBLINGS[-1] - self.best) // step)

    def document(self) -> dict[str, Any]:
        """Return the histogram and the shares at each scale."""
        return {
            "model": self.model,
            "dataset": self.dataset,
            "gradients": self.gradients,
            "zeros": self.zeros,
            "first_exponent": self.first_exponent,
            "exponents_per_mille": self.exponents,
            "scales": [
                {
                    "scale": 2.0**doublings,
                    "to_zero": shares.zeroed,
                    "subnormal": shares.subnormal,
                    "overflow": shares.overflow,
                }
                for doublings, shares in self.at_scale.items()
            ],
            "best_scale": 2.0**self.best,
        }


def _tone(exponent: int) -> Tone:
    if exponent < _SUBNORMAL or exponent > _TOP:
        return "bad"
    return "warn" if exponent < _NORMAL else "accent"


def _percent(share: float) -> str:
    return "< 0.1 %" if 0 < share < 0.0005 else fmt.percent(share)


def _loss(shares: Shares) -> float:
    """Return the share that a scale loses; 1 if any gradient overflows, which skips the step."""
    return 1.0 if shares.overflow else shares.lost


def scaling_lesson(request: Request) -> ScalingLesson:
    """Count the gradients of the first batch of a run.

    Raises:
        ConfigError: The model does not exist, or not for this data.
        DataError: The data is missing or unreadable.
    """
    with SmallRun(request, {"precision.mode": "fp32"}) as run:
        job = run.job
        probe = Probe(job.model, job.device)
        StepSeeds(job.config.training.seed, job.device).set(0, 0)
        job.model.train()
        (batch,) = run.batches(1)
        with probe.hooks():
            outputs = job.model(*batch.inputs)
            torch.autograd.backward(job.task.loss(outputs, batch, batch.valid, batch.size))
        probe.add_weights()
        rows = probe.rows.cpu()
        parts = [seen.part for seen in probe.seen(rows)]
        gradients = [row for row, part in zip(rows, parts, strict=True) if part != "forward"]
        spectrum = Spectrum(_sum(gradients).numpy())
        first, bars = spectrum.bars()
        return ScalingLesson(
            model=str(job.config.model.name),
            dataset=run.dataset,
            gradients=spectrum.values,
            zeros=spectrum.zeros / max(spectrum.values, 1),
            first_exponent=first,
            exponents=bars,
            at_scale={doublings: spectrum.shares(doublings) for doublings in DOUBLINGS},
        )


def _sum(rows: list[torch.Tensor]) -> torch.Tensor:
    """Return one row for the values of all: counts add up, of the extremes the outermost remains."""
    every = torch.stack(rows)
    whole = every.sum(dim=0)
    whole[BINS], whole[BINS + 1] = every[:, BINS].min(), every[:, BINS + 1].max()
    return whole
