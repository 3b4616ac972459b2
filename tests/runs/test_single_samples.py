"""BatchNorm over feature maps of 1 x 1 is not trained on a single sample: refused, with what to set."""

import pytest
import torch

from mptui.errors import ConfigError
from mptui.runs.planning.build import check_single_samples
from mptui.tasks.build_task import build_task
from tests.engine.small import config


def check(*, batch_size, processes=1, micro_batch=None, count=20, pooled=True, norm=True):
    layers: list[torch.nn.Module] = [torch.nn.Conv2d(3, 4, 3, padding=1)]
    layers += [torch.nn.AdaptiveAvgPool2d(1)] if pooled else []
    layers += [torch.nn.BatchNorm2d(4)] if norm else []
    model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.LazyLinear(2))
    model.eval()(torch.zeros(1, 3, 8, 8))
    before = {name: value.clone() for name, value in model.train().state_dict().items()}
    run = config(
        training={"batch_size": batch_size},
        memory={"micro_batch": micro_batch},
        data={"image_size": 8},
    )
    task = build_task("classification", ("dark", "bright"), run.training)
    try:
        check_single_samples(model, task, run, count=count, processes=processes)
    finally:
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"batch_size": 1}, "--batch-size to 2 or more"),
        ({"batch_size": 5, "processes": 3}, "--batch-size to 6 or more"),
        ({"batch_size": 8, "micro_batch": 1}, "memory.micro_batch to 2 or more"),
        ({"batch_size": 8, "count": 1}, "add samples"),
    ],
    ids=str,
)
def test_it_is_refused_with_what_to_set(settings, remedy):
    with pytest.raises(ConfigError) as refused:
        check(**settings)
    assert remedy in (refused.value.hint or "")
    assert "BatchNorm" in refused.value.message


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 1, "pooled": False},
        {"batch_size": 1, "norm": False},
        {"batch_size": 4, "processes": 2, "count": 7},
        {"batch_size": 8, "micro_batch": 3},
        {"batch_size": 6, "processes": 2, "micro_batch": 2},
    ],
    ids=str,
)
def test_what_can_be_trained_is_not(settings):
    check(**settings)
