"""Why the result of a run is doubtful, while it trains and at its end, and what would make it better."""

import math
from collections.abc import Mapping
from typing import Any

from mptui import text as fmt
from mptui.registry.names import BUILT_IN
from mptui.registry.tasks import FEW_IMAGES

EXPLODED = 10.0
"""Factor of a validation loss over the lowest above which it has exploded."""

CHANCE_EPOCHS = 3
"""Epochs after which a network that has learned anything is better than guesses."""

VAL_LOSS, CHANCE = "val_loss", "chance"
"""Codes of the alerts."""

REMEDIES = {
    VAL_LOSS: "try a lower learning rate",
    CHANCE: "try another learning rate, --weights pretrained, or look at the labels",
}


def exploded(loss: float, lowest: float | None) -> str:
    """Return a phrase if a validation loss is far above the lowest one of the run; "": it is not."""
    if not math.isfinite(loss):
        return "its validation loss is not finite"
    if lowest is None or not loss > EXPLODED * lowest > 0:
        return ""
    return f"its validation loss went from {fmt.figure(lowest)} up to {fmt.figure(loss)}"


_GOOD = 0.95
"""Accuracy or overlap from which nothing is said of more of it."""
_LEAST_EPOCHS = 3
"""Epochs from which losses tell whether a run has learnt all that it can."""


def what_helps(summary: Mapping[str, Any], *, is_random: bool) -> str:
    """Return what would make the result of a completed run better than anything else, and how; "": nothing.

    Weights that were trained on many images need few of others (Kornblith et al. 2019); a network whose loss
    is no lower in training than in validation has not learnt its images by heart, and learns from more of
    the same.

    Args:
        summary: Its summary.
        is_random: Whether it began with random weights.
    """
    best, data, last, epochs = (summary[key] for key in ("best", "dataset", "final", "epochs"))
    is_share = best["metric"] in {"acc1", "iou"}
    if not is_share or best["value"] is None or best["value"] >= _GOOD or epochs < _LEAST_EPOCHS:
        return ""
    count = data["train_samples"] or 0
    if is_random and best["metric"] == "acc1" and data["name"] != BUILT_IN and count <= FEW_IMAGES:
        return (
            f"trained weights: random ones saw {fmt.counted(count, 'image')} "
            "(mptui run --profile finetune --weights pretrained, docs/fine_tuning.md)"
        )
    train, val = last.get("train_loss"), last.get("val_loss")
    if train is not None and val is not None and val <= train:
        run = fmt.shell_word(summary["directory"])
        return (
            f"more epochs: it fits new images as well as its own (mptui resume {run} --epochs {2 * epochs})"
        )
    return ""


def at_chance(metric: str, value: float | None, *, classes: int, samples: int) -> str:
    """Return a phrase if an accuracy is one that guesses of equally many classes have, too; "": it is not.

    Args:
        metric: The primary metric; only top-1 accuracy is judged.
        value: Its best value.
        classes: Number of classes.
        samples: Number of validation samples.
    """
    if metric != "acc1" or value is None or classes < 2 or not samples:
        return ""
    chance = 1 / classes
    likely = chance + 2 * math.sqrt(chance * (1 - chance) / samples)  # 97.7 % of guesses are below
    if value > likely:
        return ""
    return f"its best top-1 accuracy is {fmt.percent(value)}, where guesses have {fmt.percent(chance)}"
