"""Runs with activation checkpointing, beside the same runs without it."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mptui.config.schema import ModelConfig, RunConfig
from mptui.engine.checkpoint import snapshots
from mptui.engine.memory.ledger import footprint
from mptui.engine.precision import Fp32Region
from mptui.events import Numerics
from mptui.models.unet import UNet
from mptui.models.zoo import build
from tests.engine.blots import SIDE, Scene
from tests.engine.small import build_trainer, config, diffusion_net, end, losses, of


def resnet():
    torch.manual_seed(0)
    return build(ModelConfig(name="resnet18"), num_classes=3, task="classification", side=SIDE)


def unet():
    torch.manual_seed(0)
    return UNet(2, width=4, depth=2)


NETS: dict[str, Any] = {
    "resnet18": (resnet, {}),
    "unet": (unet, {"kind": Scene}),
    "diffusion_unet": (diffusion_net, {"task": "diffusion"}),
}


def trainer_of(folder, net, checkpointed, precision="fp32", train=40, **tables):
    make, settings = NETS[net]
    run = config(
        training={"epochs": 1, "lr": 0.01, "ema_decay": 0.9},
        memory={"activation_checkpointing": checkpointed},
        **tables,
    )
    return build_trainer(run, folder, model=make(), precision=precision, train=train, val=8, **settings)


@pytest.mark.parametrize(
    ("net", "precision"),
    [
        pytest.param("resnet18", "fp32", marks=pytest.mark.slow),
        pytest.param("resnet18", "bf16", marks=pytest.mark.slow),
        pytest.param("unet", "fp32", marks=pytest.mark.slow),
        ("unet", "bf16"),
        ("diffusion_unet", "fp32"),
        pytest.param("diffusion_unet", "bf16", marks=pytest.mark.slow),
    ],
)
def test_losses_weights_and_averages_are_those_without_it_to_the_bit(tmp_path, net, precision):
    ended = []
    for checkpointed in (False, True):
        trainer, events = trainer_of(tmp_path / str(checkpointed), net, checkpointed, precision, train=16)
        trainer.train()
        end(trainer)
        ended.append((losses(events), snapshots.take(trainer.state)))
    (plain_losses, before), (their_losses, after) = ended
    assert len(plain_losses) == 2
    assert plain_losses == their_losses
    assert {name: list(group) for name, group in before.tensors.items()} == {
        name: list(group) for name, group in after.tensors.items()
    }
    for name, group in before.tensors.items():
        for key, tensor in group.items():
            assert torch.equal(tensor, after.tensors[name][key]), key


@pytest.mark.slow
def test_a_switch_turns_it_on_and_off_beside_fp32_layers(tmp_path):
    trainer, _ = trainer_of(tmp_path, "resnet18", checkpointed=False, precision="bf16")
    context = trainer.context
    region = Fp32Region(context.model, "layer1.0", context.device)
    for checkpointed in (True, False, True):
        memory = context.job.config.memory.model_copy(update={"activation_checkpointing": checkpointed})
        context.take_job(
            replace(context.job, config=context.job.config.model_copy(update={"memory": memory}))
        )
        wrapped = vars(context.model.get_submodule("layer2.0"))
        assert ("forward" in wrapped) == checkpointed
    region.remove()
    assert "forward" in vars(context.model.get_submodule("layer1.0"))
    trainer.train()
    end(trainer)


def test_the_numerics_monitor_counts_each_value_once(tmp_path):
    counted = []
    for checkpointed in (False, True):
        guards = {"numerics": "full"}
        trainer, events = trainer_of(
            tmp_path / str(checkpointed), "unet", checkpointed, "fp16", train=24, guards=guards
        )
        trainer.train()
        end(trainer)
        first = of(events, Numerics)[0]
        counted.append((first.lost, first.layers))
    assert counted[0] == counted[1]


@pytest.mark.slow
def test_the_estimate_knows_what_is_kept():
    def estimate(checkpointed, batch):
        run = RunConfig.model_validate(
            {
                "model": {"name": "resnet18"},
                "training": {"batch_size": batch},
                "data": {"image_size": 64},
                "memory": {"activation_checkpointing": checkpointed},
            }
        )
        return footprint(run, "classification", device="cpu", precision="fp32", classes=10)

    plain, less = estimate(False, 64), estimate(True, 64)
    assert less.activations < 0.7 * plain.activations
    assert (less.weights, less.gradients, less.optimizer) == (plain.weights, plain.gradients, plain.optimizer)
    assert estimate(True, 128).total - less.total == pytest.approx(64 * less.per_sample, rel=0.01)
