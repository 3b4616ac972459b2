"""What a resumed run has in common with one that was not stopped."""

from mptui.engine.checkpoint import snapshots
from mptui.events import EpochFinished, Step, Validated


def each_step(event):
    return event.step if isinstance(event, Step) else None


def bits(tensors):
    return {name: t.detach().cpu().contiguous().numpy().tobytes() for name, t in tensors.items()}


def figures(events):
    """Return all measured values, without those that depend on the clock."""
    found: list[tuple[object, ...]] = []
    for event in events:
        if isinstance(event, Step):
            scale = (event.grad_norm, event.loss_scale, event.lr, event.skipped_steps, event.samples_seen)
            found.append((event.step, event.epoch, event.epoch_step, event.loss, scale, event.metrics))
        elif isinstance(event, Validated):
            found.append((event.epoch, event.loss, event.metrics, event.best))
        elif isinstance(event, EpochFinished):
            found.append((event.epoch, event.train_loss, event.train_metrics, event.val_loss, event.lr))
    return [repr(figure) for figure in found]  # NaN equals NaN here


def assert_the_same(one, other):
    trainer, events = one
    resumed, resumed_events = other
    assert figures(resumed_events) == figures(events)
    first, second = (snapshots.take(t.state) for t in (trainer, resumed))
    assert {g: bits(t) for g, t in second.tensors.items()} == {g: bits(t) for g, t in first.tensors.items()}
    assert repr(second.state) == repr(first.state)
