"""Why the result of a validation is doubtful: an alert while the run trains, a phrase at its end."""

import math

from mptui import text as fmt

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
