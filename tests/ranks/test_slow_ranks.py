"""A rank that is slower than the others is named, with the cause; noise names nobody."""

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from mptui.engine.ranks.slow_ranks import find_slow_ranks, median_times
from mptui.events import Advice, Event, RanksSampled
from mptui.runs.session.rank_reports import RankReports
from tests.engine.blots import CLASSES, SIDE, Blot
from tests.engine.small import build_trainer, config, end
from tests.ranks.groups import in_group

pytestmark = pytest.mark.slow

STEP_S = 0.1
"""Seconds that each forward pass takes on every rank, so that noise is a small part of a step."""


class Sleeping(torch.nn.Module):
    """Sleeps in each forward pass, and in each backward pass before the gradients of the layers before it."""

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self._forward_s, self._backward_s = forward_s, backward_s

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        time.sleep(self._forward_s)
        if values.requires_grad:
            values.register_hook(self._slow)
        return values

    def _slow(self, _gradient: torch.Tensor) -> None:
        time.sleep(self._backward_s)


@dataclass(frozen=True)
class SlowBlot(Blot):
    """A sample that takes 150 ms to read."""

    def read(self, side_hint=None):
        time.sleep(0.15)
        return super().read(side_hint)


def reports_of(ranks, folder, data, backward_s):
    """Train 10 steps, with slow data or a slow backward pass on rank 1; return what rank 0 reports."""
    slow = ranks.rank == 1
    net = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(3 * SIDE**2, 8),
        Sleeping(STEP_S, backward_s if slow else 0.0),
        torch.nn.Linear(8, len(CLASSES)),
    )
    settings = config(training={"epochs": 1, "batch_size": 2})
    kind = SlowBlot if slow and data else Blot
    trainer, _ = build_trainer(settings, Path(folder), model=net, train=20, val=2, reads_as=kind, ranks=ranks)
    trainer.train()
    end(trainer)
    heard: list[Event] = []
    reports = RankReports(ranks, heard.append)
    reports._every_s = 0.0
    reports.beat(None, 10, 2)
    ranks.gather(0)
    return {
        "steps": len(ranks.steps),
        "slow": [[each.rank, list(each.causes)] for each in find_slow_ranks(ranks.steps, [1, 1])],
        "verdict": [each.verdict for each in heard if isinstance(each, RanksSampled)],
        "advice": [each.message for each in heard if isinstance(each, Advice)],
        "waits": [times.wait_s for times in median_times(ranks.steps)],
    }


def plant_each(ranks, folder):
    return [
        reports_of(ranks, f"{folder}/{number}", *planted)
        for number, planted in enumerate([(True, 0.0), (False, 0.2), (False, 0.0)])
    ]


def test_planted_delays_are_named_with_their_cause(tmp_path):
    (data, backward, nothing), followers = in_group(2, plant_each, str(tmp_path))

    assert data["slow"] == [[1, ["data_s"]]]
    assert data["advice"] == data["verdict"]
    assert data["verdict"][0].startswith("rank 1 was the slowest in ")
    assert "it waits 15" in data["verdict"][0]
    assert data["waits"][0] > 0.1 > data["waits"][1]

    assert backward["slow"] == [[1, ["backward_s"]]]
    assert "its backward pass takes 20" in backward["verdict"][0]
    assert backward["waits"][0] > 0.15 > backward["waits"][1]

    assert nothing["steps"] >= 9
    assert (nothing["slow"], nothing["verdict"], nothing["advice"]) == ([], [""], [])
    assert all(each["steps"] == 0 for each in followers)
