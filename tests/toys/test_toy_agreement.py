"""What ranks do alike is a `SyncPart` and one line that brings it to their meetings."""

from pathlib import Path

import pytest

from mptui.engine.hooks import Hook
from mptui.engine.mailbox import Stopped
from mptui.engine.ranks.group import SyncPart
from mptui.engine.trainer import HOOKS
from mptui.errors import ConfigError
from tests.engine.small import build_trainer, config, end
from tests.ranks.groups import in_group

MOST = (8, 3)
"""Steps that each rank has time for."""


class HasTime(Hook, SyncPart):
    """Stops all ranks after the same step, once one of them has no more time; all learn which."""

    size = 1

    def __init__(self, context):
        self._context = context
        self._told = self._over = False
        self.without = []
        context.ranks.agree_on("time", self)

    @property
    def _is_over_here(self):
        return self._context.state.step >= MOST[self._context.ranks.rank]

    def numbers(self):
        return [int(self._is_over_here)]

    def on_numbers(self, rows):
        self._over = any(is_over for (is_over,) in rows)

    def news(self):
        if self._told or not self._is_over_here:
            return None
        self._told = True
        return f"rank {self._context.ranks.rank}"

    def on_news(self, told):
        self.without += told

    def step_ends(self):
        if self._over:
            self._context.mailbox.stop(None)


def trained_in_time(ranks, folder):
    """Train; return the last step, and the ranks that had no more time."""
    HOOKS["time"] = HasTime
    trainer, _ = build_trainer(config(), Path(folder) / "checkpoints", ranks=ranks)
    with pytest.raises(Stopped):
        trainer.train()
    end(trainer)
    part = trainer.context.hooks["time"]
    assert isinstance(part, HasTime)
    return [trainer.state.step, part.without]


def test_all_ranks_stop_after_the_same_step_by_what_one_of_them_knows(tmp_path):
    assert in_group(2, trained_in_time, str(tmp_path)) == [[3, ["rank 1"]]] * 2


def failed_before_it_agreed(ranks):
    """Fail on rank 1 before it has added its part; return what rank 0 hears."""
    if ranks.rank == 1:
        return ranks.fail(ConfigError("no such file", hint="name one"))
    ranks.agree_on("nothing", SyncPart())
    try:
        ranks.sync_status()
    except ConfigError as error:
        return error.message


@pytest.mark.slow
def test_a_rank_that_fails_before_it_has_added_its_part_is_heard():
    assert in_group(2, failed_before_it_agreed) == ["rank 1: no such file", None]
