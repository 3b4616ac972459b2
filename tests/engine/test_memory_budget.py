"""A run within `memory.budget_gib`: what is chosen, and that it keeps to it."""

import os

import pytest
import torch

from mptui.config.resolve import resolve
from mptui.config.schema import RunConfig
from mptui.engine.memory.ledger import footprint, kept_within
from mptui.engine.memory.tape import no_storage
from mptui.errors import ConfigError
from mptui.registry.models import MODELS, ModelSpec
from tests.engine.real_memory import really_alive

GIB = 1 << 30


class Block(torch.nn.Module):
    """A part that activation checkpointing recomputes."""

    def __init__(self, inputs, norm):
        super().__init__()
        self.conv = torch.nn.Conv2d(inputs, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8) if norm == "batch" else torch.nn.GroupNorm(2, 8)

    def forward(self, images):
        return torch.relu(self.norm(self.conv(images)))


def of_two_blocks(num_classes, side, norm):
    """Return a network of masks."""
    return torch.nn.Sequential(Block(3, norm), Block(8, norm), torch.nn.Conv2d(8, num_classes, 1))


@pytest.fixture(autouse=True)
def _of_two_blocks(monkeypatch):
    spec = ModelSpec(task="segmentation", build=of_two_blocks, settings=("norm",))
    monkeypatch.setitem(MODELS, "of_two_blocks", spec)


def small(norm="batch", **memory):
    return RunConfig.model_validate(
        {
            "model": {"name": "of_two_blocks", "norm": norm},
            "training": {"batch_size": 64},
            "data": {"image_size": 64},
            "memory": memory,
        }
    )


def kept(config, **more):
    return kept_within(config, "segmentation", device="cuda", precision="fp32", classes=10, **more)


def total(config, **memory):
    changed = config.model_copy(update={"memory": config.memory.model_copy(update=memory)})
    return footprint(changed, "segmentation", device="cuda", precision="fp32", classes=10).total


def within(config, share, **memory):
    """The configuration with a budget of a share of what it takes, with these settings."""
    budget = total(config, **memory) / 0.9 / GIB * share
    return config.model_copy(update={"memory": config.memory.model_copy(update={"budget_gib": budget})})


def test_nothing_is_changed_without_a_limit_or_within_it():
    assert kept(small()) == small()
    roomy = within(small(), 1.01)
    assert kept(roomy) == roomy


def test_batch_norm_keeps_its_batch_by_checkpointing_and_other_networks_their_speed_by_splitting():
    chosen = {norm: kept(within(small(norm), 0.985)).memory for norm in ("batch", "group")}
    assert (chosen["batch"].activation_checkpointing, chosen["batch"].micro_batch) == (True, None)
    assert not chosen["group"].activation_checkpointing
    assert 1 < chosen["group"].micro_batch < 64


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_as_many_samples_as_fit_pass_at_once(norm):
    used = {"activation_checkpointing": norm == "batch"}
    config = within(small(norm), 0.98, **used)
    memory = kept(config).memory
    assert memory.activation_checkpointing is used["activation_checkpointing"]
    room = int(config.memory.budget_gib * 0.9 * GIB)
    assert total(config, micro_batch=memory.micro_batch, **used) <= room
    assert total(config, micro_batch=memory.micro_batch + 1, **used) > room


def test_a_number_of_micro_batches_is_the_most_and_auto_is_what_fits():
    assert kept(within(small(micro_batch=8), 2.0)).memory.micro_batch == 8
    assert kept(within(small("group", micro_batch="auto"), 2.0)).memory.micro_batch is None


def test_processes_that_share_a_batch_have_a_part_of_it_each():
    alone = kept(within(small("group"), 0.95))
    assert alone.memory.micro_batch is not None
    assert kept(within(small("group"), 0.95), ranks=8).memory.micro_batch is None


def test_what_fits_in_no_way_is_refused_with_what_one_image_takes():
    with pytest.raises(ConfigError, match=r"one image at 64 px takes \d+ MiB in fp32") as refused:
        kept(within(small(), 0.1))
    assert "mptui memory --card" in refused.value.hint


def test_what_can_not_be_counted_is_refused_where_nothing_else_holds_it():
    settings = {
        "model": {"name": "timm/regnetx_002"},
        "data": {"image_size": 64},
        "memory": {"budget_gib": 1},
    }
    config = RunConfig.model_validate(settings)
    assert kept_within(config, "classification", device="cuda", precision="fp32", classes=10) == config
    with pytest.raises(ConfigError, match="timm/regnetx_002 can't be counted"):
        kept_within(config, "classification", device="cpu", precision="fp32", classes=10)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_classic_unet_at_512_trains_inside_4_gib_by_counted_storages(device):
    flags = {"model.name": ("test", "unet"), "data.image_size": ("test", 512)}
    config = resolve("memory-limited", task=None, flags=flags, sets=(), environ=os.environ).config
    assert (config.model.width, config.model.depth, config.memory.budget_gib) == (64, 4, 4.0)
    chosen = kept_within(config, "segmentation", device=device, precision="fp32", classes=10)
    counted = footprint(chosen, "segmentation", device=device, precision="fp32", classes=10)
    assert counted.total < 0.9 * 4 * GIB
    # the whole batch of the profile is too much in fp32, also with checkpointing
    assert footprint(config, "segmentation", device=device, precision="fp32", classes=10).total > 4 * GIB
    part = config.training.model_copy(update={"batch_size": chosen.memory.micro_batch})
    with no_storage():  # torch's own engine
        alive = really_alive(chosen.model_copy(update={"training": part}), "segmentation", None)
    lasting = counted.weights + counted.gradients + counted.optimizer
    assert alive + lasting < 4 * GIB
