"""Checkpoints for tests."""

import torch

from mptui.engine.checkpoint.files import Snapshot


def snapshot(step=1, size=64):
    numbers = torch.Generator().manual_seed(step)
    weights = torch.randn(size, generator=numbers)
    return Snapshot(
        step=step,
        tensors={
            "model": {"weight": weights, "running_mean": torch.full((3,), torch.nan)},
            "optimizer": {"momentum_buffer/weight": weights * 2},
            "average": {},
        },
        state={"cursor": {"epoch": 0, "sample": 8 * step}, "best": {"value": -torch.inf}},
    )


def bits(snapshot):
    groups = {group: tensors for group, tensors in snapshot.tensors.items() if tensors}
    return {g: {name: t.numpy().tobytes() for name, t in tensors.items()} for g, tensors in groups.items()}


def same(one, other):
    assert one.step == other.step
    assert bits(one) == bits(other)


def names_of(path):
    return sorted(p.name for p in path.iterdir())
