"""The difference between a run and its fork in words: whose steps are faster, whose loss is lower."""

from mptui import format as fmt
from mptui.runs.view.labels import LOSS, TRAIN
from mptui.runs.view.run_view import RunView

_FEW = 8
"""Parts of a curve that are averaged, as the loss of a step is noisy."""


def difference_words(parent: RunView, fork: RunView) -> str:
    """Describe how the fork differs from its parent: `bf16 is 1.9x ahead of fp32, loss +0.002 at step 3,120`.

    The losses are compared at the last step that both have; "" before the fork has any.
    """
    speeds = [view.latest.samples_per_second if view.latest else None for view in (parent, fork)]
    words = []
    if speeds[0] and speeds[1]:
        ratio = speeds[1] / speeds[0]
        far = "as fast as" if 0.95 < ratio < 1.05 else _far(ratio)
        differ = parent.precision != fork.precision
        names = (fork.precision, parent.precision) if differ else ("the fork", "its parent")
        words.append(f"{names[0]} is {far} {names[1]}")
    one, other = (view.histories.get(LOSS, {}).get(TRAIN) for view in (parent, fork))
    if one is not None and other is not None and one.version and other.version:
        step = min(one.end_x, other.end_x)
        losses = one.mean_before(step, _FEW), other.mean_before(step, _FEW)
        if losses[0] is not None and losses[1] is not None:
            words.append(f"loss {losses[1] - losses[0]:+.3g} at step {fmt.count(step)}")
    return ", ".join(words)


def _far(ratio: float) -> str:
    return f"{ratio:.1f}x ahead of" if ratio > 1 else f"{1 / ratio:.1f}x behind"
