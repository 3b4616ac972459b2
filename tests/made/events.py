"""Events with what a test does not look at."""

from mptui.events import Step


def step_of(step: int = 1, *, loss: float = 1.0, **changes):
    """A step with this loss; `changes`: other fields of the event."""
    values = {
        "epoch": 1,
        "epoch_step": step,
        "steps": 1,
        "samples_seen": step,
        "loss_min": loss,
        "loss_max": loss,
        "lr": 0.1,
    }
    return Step(step=step, loss=loss, **{**values, **changes})
