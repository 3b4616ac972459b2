"""A diffusion U-Net in the trainer: it learns, and the split of a batch changes only rounding."""

import pytest
import torch

from mptui.engine.guards import memory as guards_memory
from mptui.events import EpochFinished, Recovered
from tests.engine.small import NoiseNet, build_trainer, config, diffusion_net, end, losses, of

TRAINING = {"optimizer": "adamw", "lr": 2e-3, "epochs": 1, "batch_size": 8, "schedule": "constant"}


def build(folder, precision="fp32", net=None, train=24, guards=None, memory=None, **training):
    run = config(
        training={**TRAINING, **training},
        guards=guards or {},
        memory=memory or {},
        speed={"channels_last": True},
    )
    model = (net or NoiseNet()).to(memory_format=torch.channels_last)
    return build_trainer(run, folder, model=model, task="diffusion", precision=precision, train=train)


def trained(folder, **settings):
    trainer, events = build(folder, **settings)
    trainer.train()
    end(trainer)
    return trainer, events


@pytest.fixture(scope="module", params=["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
def learnt(request, tmp_path_factory):
    """The events of a run that learns."""
    folder = tmp_path_factory.mktemp("learnt")
    net = diffusion_net()
    return trained(folder, precision=request.param, net=net, epochs=4, lr=1e-2, ema_decay=0.99, train=40)[1]


def test_it_learns_to_tell_the_noise(learnt):
    told = losses(learnt)
    assert told[0] == pytest.approx(1, abs=0.1)  # loss of an all-zero output
    assert sum(told[-8:]) / 8 < 0.6


def test_the_averaged_weights_have_learnt_it_too(learnt):
    last = of(learnt, EpochFinished)[-1]
    assert last.val_loss is not None
    assert last.val_loss < 0.6
    assert last.val_metrics["r2"] == pytest.approx(1 - last.val_loss, abs=0.05)
    assert last.best


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run whose batches are steps."""
    return trained(tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.parametrize(
    "cut",
    [{"batch_size": 4, "accumulate": 2}, {"memory": {"micro_batch": 3}}],
    ids=["accumulated", "in pieces"],
)
def test_a_batch_in_pieces_is_the_step_of_the_whole(tmp_path, cut, whole):
    whole, events = whole
    pieces, events_pieces = trained(tmp_path / "pieces", **cut)
    assert losses(events_pieces) == pytest.approx(losses(events), rel=1e-4)
    for one, other in zip(pieces.context.model.parameters(), whole.context.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=5e-4)


def test_a_step_that_did_not_fit_is_taken_again_on_the_same_noise(tmp_path, whole):
    _, undisturbed = whole
    trainer, events = build(tmp_path / "two")
    forward, calls = trainer.context.model.forward, []

    def full(images, timesteps):
        calls.append(len(images))
        if len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(images, timesteps)

    trainer.context.model.forward = full
    trainer.train()
    end(trainer)
    assert calls[:5] == [8, 8, 8, 4, 4]
    assert [e.problem for e in of(events, Recovered)] == ["out of memory"]
    assert losses(events) == pytest.approx(losses(undisturbed), rel=1e-4)


def test_the_micro_batch_is_found_with_the_timesteps(tmp_path):
    trainer, _ = build(tmp_path)
    assert guards_memory.find_micro_batch(trainer.context) is None
    end(trainer)


def test_noise_is_no_label_out_of_range(tmp_path):
    trainer, events = trained(tmp_path, guards={"check_batches": True})
    assert trainer.state.step == len(losses(events)) == 3
