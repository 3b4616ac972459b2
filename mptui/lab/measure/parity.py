"""The result of a comparison: metrics of both precisions, their difference, and a description."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from mptui.lab.parity.curves import Curves, Gap, largest_gaps, read_curves
from mptui.lab.parity.noise import TOLERANCE, Difference, Verdict, between_seeds, difference
from mptui.lab.parity.pieces import Piece

FORMAT_VERSION = 1
RESULT = "parity.json"


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of one training. `metric` is a fraction of 1, None without one; bytes, seconds."""

    precision: str
    seed: int
    run: str
    status: str
    metric: float | None
    val_loss: float | None
    samples_per_second: float | None
    peak_bytes: int | None
    seconds: float
    ended_in: str
    recoveries: tuple[str, ...]
    val_samples: int
    curves: Curves

    @property
    def trouble(self) -> str | None:
        """Why its metric can't count for its precision; None if it counts."""
        if self.status != "completed":
            return f"{self.precision} with seed {self.seed} ended as {self.status.replace('_', ' ')}"
        if self.metric is None:
            return f"{self.precision} with seed {self.seed} has no final metric"
        if self.ended_in != self.precision:
            return f"{self.precision} with seed {self.seed} fell back to {self.ended_in}"
        return None


def read_outcome(piece: Piece, summary: Mapping[str, Any]) -> TrainingResult:
    """Read the result of a training from its run directory."""
    curves = read_curves(piece.run)
    memory, final = summary.get("memory") or {}, summary.get("final") or {}
    return TrainingResult(
        precision=piece.precision,
        seed=piece.seed,
        run=str(piece.run),
        status=str(summary["status"]),
        metric=curves.final if curves.final is not None and isfinite(curves.final) else None,
        val_loss=_number(final.get("val_loss")),
        samples_per_second=_number(summary.get("samples_per_second")),
        peak_bytes=memory.get("peak_allocated_bytes") or memory.get("host_peak_bytes"),
        seconds=float((summary.get("time") or {}).get("total_s") or 0.0),
        ended_in=str((summary.get("precision") or {}).get("used")),
        recoveries=tuple(str(r.get("action")) for r in summary.get("recoveries") or ()),
        val_samples=int((summary.get("dataset") or {}).get("val_samples") or 0),
        curves=curves,
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True)
class ParityResult:
    """A complete comparison. `ours` and `fp32` are by seed; `difference` is None if a metric is missing."""

    folder: Path
    precision: str
    ours: tuple[TrainingResult, ...]
    fp32: tuple[TrainingResult, ...]
    difference: Difference | None
    gaps: tuple[Gap, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict; a precision that failed in a training differs."""
        if self.difference is None or any(outcome.trouble for outcome in self.ours):
            return "differs"
        return self.difference.verdict

    @property
    def metric(self) -> str:
        """The primary metric."""
        return self.fp32[0].curves.metric

    @property
    def speedup(self) -> float | None:
        """Speed relative to FP32's, median over the seeds."""
        return _ratio(self.ours, self.fp32, "samples_per_second")

    @property
    def memory(self) -> float | None:
        """Peak memory relative to FP32's, median over the seeds."""
        return _ratio(self.ours, self.fp32, "peak_bytes")


def pairs_of(outcomes: Sequence[TrainingResult]) -> list[tuple[TrainingResult, TrainingResult]]:
    """Return the results of the precision and of FP32, by seed."""
    fp32 = [outcome for outcome in outcomes if outcome.precision == "fp32"]
    ours = [outcome for outcome in outcomes if outcome.precision != "fp32"]
    return list(zip(ours, fp32, strict=True))


def compare(
    folder: Path,
    precision: str,
    outcomes: Sequence[TrainingResult],
    by_image_SN: npt.NDArray[np.float64] | None,
) -> ParityResult:
    """Compare the results of a precision with FP32's, seed by seed.

    Args:
        folder: Folder of the comparison.
        precision: The precision to compare with FP32.
        outcomes: Results of all trainings, in order.
        by_image_SN: As of `differences_by_image`.
    """
    ours, fp32 = zip(*pairs_of(outcomes), strict=True)
    metrics = [[o.metric for o in side if o.metric is not None] for side in (ours, fp32)]
    whole = len(metrics[0]) == len(metrics[1]) == len(fp32)
    return ParityResult(
        folder,
        precision,
        ours,
        fp32,
        difference(metrics[0], metrics[1], by_image_SN) if whole else None,
        tuple(largest_gaps([o.curves for o in ours], [o.curves for o in fp32])),
    )


def _ratio(ours: Sequence[TrainingResult], fp32: Sequence[TrainingResult], name: str) -> float | None:
    pairs = [(getattr(a, name), getattr(b, name)) for a, b in zip(ours, fp32, strict=True)]
    ratios = [a / b for a, b in pairs if a and b]
    return median(ratios) if ratios else None


def sentences(result: ParityResult) -> list[str]:
    """Describe the result in sentences, the verdict first."""
    return [
        _verdict(result),
        *(trouble for outcome in (*result.fp32, *result.ours) if (trouble := outcome.trouble)),
        *_noise(result),
        *(_gap(gap, result.metric) for gap in result.gaps),
        *_cost(result),
    ]


def _verdict(result: ParityResult) -> str:
    found, name, metric = result.difference, result.precision, result.metric
    if found is None:
        return f"{name} differs from FP32: no final {metric or 'metric'}"
    if any(outcome.trouble for outcome in result.ours):
        return f"{name} differs from FP32: not all of its trainings completed"
    by = f"{found.mean:+.2f} points of {metric}"
    if len(found.each) == 1:
        return f"undecided: one seed does not show the noise between seeds: {by}, {TOLERANCE:g} allowed"
    if found.low is None or found.high is None:
        return f"undecided: {metric} can't be compared image by image: {by}, {len(found.each)} seeds"
    by += f" on average, 95 % interval {found.low:+.2f} to {found.high:+.2f}, {len(found.each)} seeds"
    return {
        "agrees": f"{name} agrees with FP32 within {TOLERANCE:g} points: {by}",
        "differs": f"{name} differs from FP32 by more than {TOLERANCE:g} points: {by}",
        "undecided": f"undecided: the noise is larger than {TOLERANCE:g} points: {by}",
    }[result.verdict]


def _noise(result: ParityResult) -> list[str]:
    lines = []
    values = [[o.metric for o in side if o.metric is not None] for side in (result.fp32, result.ours)]
    if len(result.fp32) > 1:
        fp32, ours = (between_seeds(side) for side in values)
        spread = [
            f"FP32 {fp32:.2f}" if fp32 is not None else "",
            f"{result.precision} {ours:.2f}" if ours else "",
        ]
        lines.append(f"noise between seeds (standard deviation, points): {', '.join(s for s in spread if s)}")
    found = result.difference
    if found is not None and found.noise is not None:
        images, half = found.noise.images, found.noise.half(len(found.each), found.noise.images)
        lines.append(f"the {images:,} validation images alone leave {half:.2f} points either way open")
    return [*lines, *_would_decide(result)]


def _would_decide(result: ParityResult) -> list[str]:
    """Say what would decide an undecided comparison."""
    found = result.difference
    if found is None or result.verdict != "undecided":
        return []
    if len(found.each) == 1:
        return ["to decide: --seeds 3 or more"]
    if found.noise is None:
        return []
    now = (len(found.each), found.noise.images)
    ways = [
        " and ".join(
            text
            for text, is_more in (
                (f"--seeds {seeds}", seeds > now[0]),
                (f"{images:,} validation images", images > now[1]),
            )
            if is_more
        )
        for seeds, images in found.needed()
    ]
    if not ways:
        return [
            f"no practical number of seeds or images would decide: it is as large as {TOLERANCE:g} points"
        ]
    return [f"to decide, if the difference and its noise stay so: {', or '.join(ways)}"]


def _gap(gap: Gap, metric: str) -> str:
    if gap.curve == metric:
        return (
            f"{gap.curve} differs most in {gap.where}: {100 * gap.value:+.2f} points of {100 * gap.fp32:.2f}"
        )
    return f"{gap.curve} differs most in {gap.where}: {gap.value:+.4f} of {gap.fp32:.4f}"


def _cost(result: ParityResult) -> list[str]:
    lines = []
    if result.speedup is not None:
        lines.append(f"speed: {result.speedup:.2f} times FP32's")
    if result.memory is not None:
        lines.append(f"peak memory: {100 * result.memory:.0f} % of FP32's")
    return lines


def to_document(result: ParityResult) -> dict[str, Any]:
    """Return the result for JSON; points are hundredths of the metric, the metric a fraction of 1."""
    return {
        "version": FORMAT_VERSION,
        "directory": str(result.folder),
        "precision": result.precision,
        "metric": result.metric,
        "tolerance_points": TOLERANCE,
        "verdict": result.verdict,
        "difference_points": result.difference.document if result.difference else None,
        "noise_points": {
            "fp32": between_seeds([o.metric for o in result.fp32 if o.metric is not None]),
            result.precision: between_seeds([o.metric for o in result.ours if o.metric is not None]),
        },
        "largest_gaps": [asdict(gap) for gap in result.gaps],
        "speedup": result.speedup,
        "memory_ratio": result.memory,
        "runs": [_outcome(outcome) for outcome in (*result.fp32, *result.ours)],
        "sentences": sentences(result),
    }


def _outcome(outcome: TrainingResult) -> dict[str, Any]:
    document = asdict(outcome)
    del document["curves"]
    return document
