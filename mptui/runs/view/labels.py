"""What metrics and phases are called on a screen."""

from dataclasses import dataclass

TRAIN, VALIDATION = "train", "validation"
LOSS = "loss"


@dataclass(frozen=True, slots=True)
class Shown:
    """Where a metric is drawn: the chart it belongs to, its word there, and whether it is a fraction of 1."""

    chart: str
    word: str = ""
    fraction: bool = False


METRICS: dict[str, Shown] = {
    "acc1": Shown("accuracy", "top-1", fraction=True),
    "acc5": Shown("accuracy", "top-5", fraction=True),
    "iou": Shown("overlap", "IoU", fraction=True),
    "dice": Shown("overlap", "Dice", fraction=True),
    "r2": Shown("noise explained", "R²", fraction=True),
}

PHASE_WORDS = {
    "warming_up": "warming up",
}

BUSY_PHASES = frozenset({"starting", "scanning", "preparing", "warming_up", "compiling", "saving"})
"""Phases in which no figure moves, so that the screen counts their seconds instead."""


def shown(metric: str) -> Shown:
    """Say where `metric` is drawn; one that nobody named has a chart of its own."""
    return METRICS.get(metric) or Shown(metric)
