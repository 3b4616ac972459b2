"""Snapshots that a run can roll back to."""

import pytest

from mptui.engine.guards.rollback import Rollback
from tests.engine.small import build_trainer, config, end


@pytest.fixture
def trainer(tmp_path):
    trainer, _ = build_trainer(config(), tmp_path)
    yield trainer
    end(trainer)


def kept(trainer, *times):
    """Take snapshots at steps, each with the last step known to be good by then."""
    rollback = Rollback(lambda code, message: None)
    for step, good in times:
        trainer.state.step, rollback.last_good = step, good
        rollback.keep(trainer.state)
    return rollback


def back_at(rollback, trainer, last_good):
    """Return the step of the rollback."""
    rollback.last_good = last_good
    rollback.go_back(trainer.state)
    return trainer.state.step


def test_a_state_without_a_good_step_after_it_is_neither_replaced_nor_gone_back_to(trainer):
    rollback = kept(trainer, (0, 0), (4, 4), (8, 4))
    trainer.state.step = 10
    assert back_at(rollback, trainer, 4) == 0


def test_a_state_with_one_good_step_after_it_is_replaced_and_gone_back_to(trainer):
    assert back_at(kept(trainer, (0, 0), (4, 4), (8, 5)), trainer, 8) == 4
    assert back_at(kept(trainer, (0, 0), (4, 4), (8, 5)), trainer, 9) == 8


def test_where_going_back_did_not_help_it_goes_back_further(trainer):
    rollback = kept(trainer, (0, 0), (4, 4))
    assert back_at(rollback, trainer, 6) == 4
    assert back_at(rollback, trainer, 6) == 0
