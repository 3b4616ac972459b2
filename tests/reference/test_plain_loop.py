"""A run is the plain loop over the batches that its network saw, to rounding, in all that it tells.

A loss with parameters to learn is none of the cases, as it is refused before a run begins
(`tests/tasks/test_own.py`).
"""

import contextlib
import itertools
from functools import partial
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import read_newest
from mptui.engine.mailbox import Stopped
from mptui.events import EpochFinished, Event, Step
from tests.engine.guards.sick import poison
from tests.engine.small import build_trainer, config, end, of
from tests.reference.networks import NETWORKS
from tests.reference.plain_loop import CLIP, DECAY, RATE, SMOOTHING, train

EPOCHS, BATCH, TRAIN, VAL = 3, 8, 37, 11
EMA = 0.8
BAD = {(0, 8), (1, 24)}
SCALE = 2.0**20
"""So large that the first steps of fp16 overflow."""
DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Case(NamedTuple):
    optimizer: str
    precision: str
    accumulate: int
    network: str
    ema: bool
    stops: bool


CHOICES = (["sgd", "adamw", "muon"], list(DTYPES), [1, 3], list(NETWORKS), [False, True], [False, True])


def compare(folder, case):
    """Train both ways, and compare them."""
    net = NETWORKS[case.network]()
    # Muon's iteration is in bfloat16: it would enlarge the last bits of a norm
    clip = None if case.optimizer == "muon" else CLIP
    run = config(
        training={
            "epochs": EPOCHS, "batch_size": BATCH, "lr": RATE, "lr_scaling": "off", "schedule": "cosine",
            "optimizer": case.optimizer, "weight_decay": DECAY, "clip_grad_norm": clip,
            "warmup_epochs": 1.0, "warmup_max_fraction": 0.5, "label_smoothing": SMOOTHING,
            **({"nesterov": True} if case.optimizer == "sgd" else {}),
            "accumulate": case.accumulate, "ema_decay": EMA if case.ema else None,
            "freeze": list(net.freeze) or None,
        },
        precision={"grad_scaler": {"init_scale": SCALE, "growth_interval": 4}},
        guards={"on_nan": "ignore"},
    )  # fmt: skip
    seen: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
    events: list[Event] = []
    steps_per_epoch = -(-TRAIN // (BATCH * case.accumulate))
    for stop_at in [*([2, steps_per_epoch + 1] if case.stops else []), None]:
        trainer, told = build_trainer(
            run, folder, precision=case.precision, model=NETWORKS[case.network](), train=TRAIN, val=VAL
        )
        poison(trainer.context.job.train_loader, BAD, value=torch.inf)
        record(trainer.context.job.train_loader, seen)
        if events:
            snapshots.restore(trainer.state, read_newest(folder)[0])
        told.then = lambda event, trainer=trainer, at=stop_at: (
            trainer.context.mailbox.stop(None) if isinstance(event, Step) and event.step == at else None
        )
        with contextlib.suppress(Stopped):
            trainer.train()
        images_and_targets = validation(trainer)
        end(trainer)
        events += told
    net.train()
    for name in net.freeze:
        net.get_submodule(name).requires_grad_(False)
        net.get_submodule(name).train(not isinstance(net.get_submodule(name), torch.nn.BatchNorm2d))
    plain = train(
        net, windows_of(seen, case.accumulate), case.optimizer, clip=clip,
        dtype=DTYPES[case.precision], scale=SCALE if case.precision == "fp16" else None,
        ema=EMA if case.ema else None,
    )  # fmt: skip
    check(trainer, events, net, plain, images_and_targets, case)


def record(loader, seen):
    make = loader._batch

    def recorded(images, targets, indices, valid, *, place):
        batch = make(images, targets, indices, valid, place=place)
        seen[place] = batch.images_BCHW.clone(), batch.targets.clone()
        return batch

    loader._batch = recorded


def windows_of(seen, accumulate):
    """Return the epochs of windows of batches, in their order."""
    epochs = [[seen[place] for place in sorted(seen) if place[0] == epoch] for epoch in range(EPOCHS)]
    return [
        [batches[first : first + accumulate] for first in range(0, len(batches), accumulate)]
        for batches in epochs
    ]


def check(trainer, events, net, plain, images_and_targets, case):
    steps, figures, average, optimizers, views = plain
    # Newton and Schulz's iteration of Muon is in bfloat16, where rounding grows
    rtol, atol = (5e-2, 5e-3) if case.optimizer == "muon" else (1e-3, 2e-5)
    assert_close = partial(torch.testing.assert_close, rtol=rtol, atol=atol)
    ours = trainer.context.model.state_dict()
    for name, value in net.state_dict().items():
        assert_close(ours[name], value, msg=name)
    if case.ema:
        for name, value in trainer.context.parts.average.state_dict().items():
            assert_close(value, average[name])
    names = {p: name for name, p in net.named_parameters()}
    held = {names[views.get(p, p)]: s for optimizer in optimizers for p, s in optimizer.state.items()}
    for name, parameter in trainer.context.model.named_parameters():
        if not parameter.requires_grad:
            continue
        for key, value in trainer.context.parts.optimizer.state[parameter].items():
            assert_close(value.reshape(-1), held[name][key].reshape(-1).float())
    told = {event.step: event for event in of(events, Step)}
    assert len(told) == len(steps)
    refused = 0
    for number, (loss, rate, norm, is_refused) in enumerate(steps, start=1):
        refused += is_refused
        assert told[number].skipped_steps == refused
        assert told[number].lr == pytest.approx(rate, rel=1e-5)
        if not is_refused:
            assert told[number].loss == pytest.approx(loss, rel=rtol)
            assert told[number].grad_norm == pytest.approx(norm, rel=10 * rtol)
    assert refused > (2 if case.precision == "fp16" else 0)
    for epoch, (loss, accuracy) in zip(of(events, EpochFinished), figures, strict=True):
        assert epoch.train_loss == pytest.approx(loss, rel=rtol, nan_ok=True)
        assert epoch.train_metrics["acc1"] == pytest.approx(
            accuracy, abs=0.07 if case.optimizer == "muon" else 1e-9, nan_ok=True
        )
    net.load_state_dict(average if case.ema else net.state_dict())
    images, targets = images_and_targets
    with torch.no_grad(), torch.autocast("cpu", DTYPES[case.precision], enabled=case.precision != "fp32"):
        outputs = net.eval()(images)
    expected = float(F.cross_entropy(outputs.float(), targets, label_smoothing=SMOOTHING))
    # batches of another size are summed in another order
    assert of(events, EpochFinished)[-1].val_loss == pytest.approx(expected, rel=max(rtol, 1e-2))


def validation(trainer):
    batches = [batch for window in trainer.context.job.val_loader.windows(0, 1) for batch in window]
    return (
        torch.cat([batch.images_BCHW[: batch.size].clone() for batch in batches]),
        torch.cat([batch.targets[: batch.size].clone() for batch in batches]),
    )


@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.tuples(*(st.sampled_from(values) for values in CHOICES)))
def test_a_run_is_the_plain_loop(tmp_path_factory, values):
    compare(tmp_path_factory.mktemp("run") / "checkpoints", Case(*values))


@pytest.mark.slow
@pytest.mark.parametrize("case", [Case(*values) for values in itertools.product(*CHOICES)], ids=str)
def test_every_run_is_the_plain_loop(tmp_path, case):
    compare(tmp_path / "checkpoints", case)
