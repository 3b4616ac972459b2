"""Settings of any size are obeyed at no cost, or refused: a run of them never ends as if it had trained."""

from unittest.mock import Mock

import pytest
from pydantic import ValidationError

from mptui.config.schema import TrainingConfig
from mptui.engine.checkpoint.files import checkpoints
from mptui.engine.optim.schedule import Schedule
from mptui.errors import DataError
from mptui.runs.session import ending
from tests.engine.blots import Scene, Unseen
from tests.engine.small import build_trainer, config, end


@pytest.mark.parametrize("keep", [1_000_000_000, "all"])
def test_a_run_asks_for_the_space_of_the_checkpoints_that_it_writes(keep, tmp_path, monkeypatch):
    trainer, _ = build_trainer(config(checkpoint={"keep": keep, "every_steps": 5}), tmp_path / "c")
    asked = Mock()
    monkeypatch.setattr(ending, "need_space", asked)
    ending.check_space(tmp_path / "c", trainer.context.job)
    end(trainer)
    assert asked.call_args.args[1] < 10e6


def test_all_checkpoints_are_kept(tmp_path):
    trainer, _ = build_trainer(config(checkpoint={"keep": "all"}, training={"epochs": 5}), tmp_path / "c")
    for step in range(4):
        trainer.state.step = step
        trainer.context.save("asked")
    end(trainer)
    assert len(checkpoints(tmp_path / "c")) == 4


def test_a_warm_up_of_any_length_is_that_of_the_most(tmp_path):
    training = TrainingConfig(warmup_epochs=1e308, warmup_max_fraction=0.5)
    assert Schedule(training, 1.0, 100, 1000).warmup_steps == 50


@pytest.mark.parametrize(
    "data",
    [
        {"mean": [0.0, 0.0, 0.0], "std": [1e-308, 1.0, 1.0]},
        {"mean": [1e308, 0.0, 0.0], "std": [1.0, 1.0, 1.0]},
    ],
)
def test_a_normalization_that_leaves_no_image_finite_is_refused(data):
    with pytest.raises(ValidationError, match="leave no image finite"):
        config(data=data)
    config(data={"mean": [5e4, 0.0, 0.0], "std": [1e-6, 1.0, 1.0]})


def test_a_run_that_trained_on_nothing_has_failed(tmp_path):
    trainer, _ = build_trainer(config(training={"epochs": 1}), tmp_path / "c", kind=Scene, reads_as=Unseen)
    with pytest.raises(DataError, match="no step was taken"):
        trainer.train()
    end(trainer)
