"""Commands to rank 0, and signals to any rank, are obeyed by all ranks between the same two steps."""

import pytest

from tests.ranks.groups import in_group
from tests.ranks.training import obey_commands


@pytest.mark.slow
def test_all_ranks_obey_at_the_same_step(tmp_path):
    first, second = in_group(2, obey_commands, str(tmp_path))
    assert first == second
    assert first["ended"] == 15
    assert first["step"] in {6, 7}
    steps = {what: step for step, what in first["heard"]}
    assert 2 <= steps["Paused"] == steps["Resumed"] <= 3
