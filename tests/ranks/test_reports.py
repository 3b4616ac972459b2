"""All ranks report between the same steps, as often as a process that is alone, for any number of steps."""

import json

import pytest

from mptui.engine.reporting import reporter
from mptui.events import Step
from tests.engine.small import end, of
from tests.program import Program
from tests.ranks.groups import environs, in_group
from tests.ranks.test_runs import events
from tests.ranks.training import built


def reports_of(ranks, folder, interval_s, rows, due_after=None):
    """Train 3 epochs of 30 steps with room for `rows` rows; return [last step, steps] of each report.

    With `due_after`, rank 0 wants a report after so many steps, as if each took the same time.
    """
    reporter.CAPACITY = rows
    trainer, told = built(
        ranks,
        folder,
        train=240,
        val=240,
        training={"epochs": 3, "batch_size": 8},
        logging={"step_interval_s": interval_s},
    )
    if due_after is not None:
        trainer.context.reporter.due = lambda now: (
            trainer.state.step - max((each.step for each in of(told, Step)), default=0) >= due_after
        )
    trainer.train()
    end(trainer)
    return [[each.step, each.steps] for each in of(told, Step)]


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_ranks_report_once_an_interval(world_size, tmp_path):
    """The ranks meet in a report, and many times in a validation: neither makes the next report early."""
    first, *others = in_group(world_size, reports_of, str(tmp_path), 60.0, 4096, 10)
    assert all(steps == first for steps in others)
    assert sum(steps for _, steps in first) == 90
    assert [steps for step, steps in first if step % 30 and steps < 10] == []


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_more_steps_than_a_report_has_room_for(world_size, tmp_path):
    first, *others = in_group(world_size, reports_of, str(tmp_path), 60.0, 7)
    assert all(steps == first for steps in others)
    assert sum(steps for _, steps in first) == 90
    assert max(steps for _, steps in first) == 7


@pytest.mark.chaos
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_train_20_000_steps(world_size, tmp_path):
    """Nothing is repaired, and reports are of many steps."""
    small = ("--model", "unet", "--set", "model.width=2", "--set", "model.depth=1", "--data", "shapes")
    data = ("--set", "data.image_size=8", "--set", "data.samples=8000", "--workers", "0", "--batch-size", "8")
    long = ("--name", "a", "--epochs", "100", "--max-steps", "20000", "--runs-dir", tmp_path)
    ranks = [Program("run", *small, *data, *long, environ=each) for each in environs(world_size)]
    ends = [rank.communicate(timeout=3000) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world_size, ends
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["optimizer_steps"] == 20_000
    reports = events(tmp_path, "step")
    assert sum(each["steps"] == 1 for each in reports) < len(reports) / 10
    assert not events(tmp_path, "recovered")
