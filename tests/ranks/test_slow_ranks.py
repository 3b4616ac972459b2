"""A rank that is slower than the others is named, with the cause; noise names nobody."""

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import torch

from mptui.data.types import Decoded
from mptui.engine.ranks.beats import find_slow_ranks, median_times
from mptui.events import Advice, Event, RanksSampled
from mptui.runs.session.watchdog import RankReports
from mptui.runs.store.index import read_run
from tests.engine.blots import CLASSES, SIDE, Blot
from tests.engine.small import build_trainer, config, end
from tests.ranks.groups import in_group
from tests.ranks.test_runs import events, run

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
class SlowToRead(Blot):
    """A blot that rank 1 reads slowly."""

    def read(self, side_hint: int | None = None) -> Decoded:
        time.sleep(0.15 * (os.environ["RANK"] == "1"))
        return super().read(side_hint)


def reports_of(ranks, folder, backward_s, *, shard=False, reads_as=None):
    """Train 10 steps, with a slow backward pass or slow data on rank 1; return what rank 0 reports."""
    net = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(3 * SIDE**2, 8),
        Sleeping(STEP_S, backward_s if ranks.rank == 1 else 0.0),
        torch.nn.Linear(8, len(CLASSES)),
    )
    settings = config(training={"epochs": 1, "batch_size": 2}, memory={"shard": shard})
    trainer, _ = build_trainer(
        settings, Path(folder), model=net, train=20, val=2, ranks=ranks, reads_as=reads_as
    )
    trainer.train()
    end(trainer)
    heard: list[Event] = []
    reports = RankReports(ranks, heard.append, every_s=0.0)
    reports.beat(None, 10, settings)
    ranks.gather(0)
    return {
        "steps": len(ranks.steps),
        "slow": [[each.rank, list(each.causes)] for each in find_slow_ranks(ranks.steps, [1, 1])],
        "verdict": [each.verdict for each in heard if isinstance(each, RanksSampled)],
        "advice": [each.message for each in heard if isinstance(each, Advice)],
        "times": median_times(ranks.steps),
    }


def plant_each(ranks, folder):
    return [reports_of(ranks, f"{folder}/{number}", delay) for number, delay in enumerate([0.2, 0.0])]


def test_a_slow_backward_pass_is_named_and_nobody_where_there_is_none(tmp_path):
    """DDP makes both backward passes take as long."""
    (slow, even), (follower, _) = in_group(2, plant_each, str(tmp_path))

    assert slow["slow"] == [[1, ["backward_s"]]]
    assert slow["verdict"] == slow["advice"]
    assert slow["verdict"][0].startswith(f"rank 1 was the slowest in {slow['steps']} of {slow['steps']} ")
    assert "its backward pass takes " in slow["verdict"][0]
    (_, _, own_s, wait_s), (_, _, slow_s, _) = slow["times"]
    assert own_s < 0.1 < 0.15 < wait_s
    assert slow_s > 0.2

    assert even["steps"] >= 9
    assert (even["slow"], even["verdict"], even["advice"]) == ([], [""], [])
    assert follower["steps"] == 0  # rank 0 alone collects


def plant_in_sharded(ranks, folder):
    return [
        reports_of(ranks, f"{folder}/data", 0.0, shard=True, reads_as=SlowToRead),
        reports_of(ranks, f"{folder}/backward", 0.2, shard=True),
    ]


def test_of_sharded_weights_only_the_waits_for_data_are_compared(tmp_path):
    """In each pass, a rank waits for the weights of the slowest one, as the slowest one itself."""
    (data, backward), _ = in_group(2, plant_in_sharded, str(tmp_path))
    assert data["slow"] == [[1, ["data_s"]]]
    assert "it waits 1" in data["verdict"][0]
    assert (backward["slow"], backward["verdict"]) == ([], [""])
    assert all(times[1:3] == [0.0, 0.0] for times in [*data["times"], *backward["times"]])


DATA = """
import os
import time

import numpy as np


class Photos:
    classes = ["dark", "bright"]

    def __init__(self, train):
        self.train = train

    def __len__(self):
        return 128 if self.train else 4

    def __getitem__(self, index):
        time.sleep(0.075 * (os.environ["RANK"] == "1" and self.train))
        return np.full((16, 16, 3), 100 * (index % 2), np.uint8), index % 2
"""


def test_slow_data_of_one_rank_are_named_in_the_journal_with_a_row_for_each_rank(tmp_path):
    (tmp_path / "slow_photos.py").write_text(DATA)
    code = ("--data", "slow_photos:Photos", "--trust-code", "--set", f"code.folder={tmp_path}")
    small = (
        "--model",
        "shufflenet_v2_x0_5",
        "--set",
        "data.image_size=16",
        "--precision",
        "fp32",
        "--no-compile",
    )
    steps = ("--batch-size", "4", "--workers", "0", "--epochs", "1", "--set", "data.cache=off")
    every = ("--set", "logging.step_interval_s=0", "--set", "guards.numerics=off")
    results = run(2, tmp_path, "run", "--name", "a", *code, *small, *steps, *every)
    assert [code for code, _, _ in results] == [0, 0], results

    (advice,) = [event for event in events(tmp_path, "advice") if event["code"] == "slow_rank"]
    assert advice["message"].startswith("rank 1 was the slowest in ")
    assert "it waits 1" in advice["message"]
    assert advice["message"] in " ".join(results[0][2].split())
    shown = read_run(tmp_path / "a").ranks  # as an attached screen
    assert shown is not None
    assert shown.slow == [1]
    first, second = map(asdict, shown.rows)
    assert first["data_s"] < 0.1 < second["data_s"]
    assert second["wait_s"] < 0.1 < first["wait_s"]
    for row in (first, second):
        assert row["host"]
        assert row["memory_used"] > 1 << 20
        assert row["utilisation"] is not None
        assert row["silent_s"] < 20
