"""The states that a run can go back to."""

import pytest

from mptui.engine.guards.rollback import LastGood
from tests.engine.small import build_trainer, config, end


@pytest.fixture
def trainer(tmp_path):
    trainer, _ = build_trainer(config(), tmp_path)
    yield trainer
    end(trainer)


def kept(trainer, *times):
    """Snapshots at steps, each with the last step that was applied by then."""
    last_good = LastGood(lambda code, message: None)
    for step, good in times:
        trainer.step = step
        last_good.keep(trainer, good)
    return last_good


def test_a_state_without_a_good_step_after_it_is_neither_replaced_nor_gone_back_to(trainer):
    last_good = kept(trainer, (0, 0), (4, 4), (8, 4))
    trainer.step = 10
    assert last_good.go_back(trainer, 4) == 0


def test_a_state_with_one_good_step_after_it_is_replaced_and_gone_back_to(trainer):
    last_good = kept(trainer, (0, 0), (4, 4), (8, 5))
    assert last_good.go_back(trainer, 8) == 4
    assert kept(trainer, (0, 0), (4, 4), (8, 5)).go_back(trainer, 9) == 8


def test_where_going_back_did_not_help_it_goes_back_further(trainer):
    last_good = kept(trainer, (0, 0), (4, 4))
    assert last_good.go_back(trainer, 6) == 4
    assert last_good.go_back(trainer, 6) == 0
