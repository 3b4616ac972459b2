"""What full memory belongs to, by snapshots in the form of torch's, and the setting that would be enough."""

from types import SimpleNamespace

import pytest
import torch

from mptui.config.schema import RunConfig
from mptui.engine.memory.ledger import GAPS, REST, enough, footprint, kept_tensors, owners
from mptui.engine.optim.averages import WeightAverage
from mptui.hardware.devices import USABLE

GIB = 1 << 30


def segment(address, *blocks):
    return {"address": address, "blocks": [{"size": size, "state": state} for size, state in blocks]}


def tensor_at(address):
    return SimpleNamespace(untyped_storage=lambda: SimpleNamespace(data_ptr=lambda: address))


def test_each_block_belongs_to_what_begins_in_it_and_the_rest_to_the_step():
    segments = [
        segment(
            9000, (512, "active_allocated"), (4096, "active_allocated"), (1024, "inactive"), (700, "active_x")
        ),
        segment(1000, (2048, "active_awaiting_free")),
    ]
    kept = {"weights": [tensor_at(9512), tensor_at(9600)], "gradients": [tensor_at(1000), tensor_at(5)]}
    found = owners(segments, kept)
    assert dict(found) == {"weights": 4096, "gradients": 2048, REST: 512 + 700, GAPS: 1024}
    assert found[0][0] == "weights"


def test_what_a_run_keeps_is_told_apart():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model(torch.ones(2, 4)).sum().backward()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.step()
    average = WeightAverage(model, 0.9)
    kept = kept_tensors(model, SimpleNamespace(optimizer=optimizer, average=average))  # type: ignore[arg-type]
    assert {name: len(tensors) for name, tensors in kept.items()} == {
        "weights": 4 + 3,
        "gradients": 4,
        "optimizer states": 3 * 4,
        "averaged weights": 4,
    }


def run_of(**memory):
    return RunConfig.model_validate(
        {
            "model": {"name": "small_cnn"},
            "training": {"batch_size": 16, "optimizer": "adamw"},
            "data": {"image_size": 64},
            "memory": memory,
        }
    )


def total(config, precision="fp32"):
    return footprint(config, "classification", device="cpu", precision=precision, classes=10).total


def found(room):
    return enough(run_of(), "classification", device="cpu", precision="fp32", classes=10, room=room)


@pytest.mark.parametrize("share", [pytest.param(0.5, marks=pytest.mark.slow), 0.9])
def test_the_first_setting_with_which_it_fits_is_named(share):
    whole, half = total(run_of()), total(run_of(), "bf16")
    between = half + share * (whole - half)
    assert found(between / USABLE).setting == "precision.mode=bf16"
    assert found(total(run_of(micro_batch=4)) / USABLE + 1).setting != "precision.mode=bf16"
    assert found(whole / USABLE + 1) is None


def test_no_setting_is_named_where_none_is_enough():
    assert found(GIB // 100) is None
