"""Signs of life of ranks: who is late, and who is silent."""

import os
import subprocess
import time

from mptui.engine.ranks import beats
from tests.ranks.groups import in_group


def _watch(ranks):
    """Rank 1 comes late, and rank 2 is suspended for a while; return what rank 0 is told."""
    beats.BEAT_S, beats.SILENT_S = 0.05, 1.0
    silent: list[str] = []
    ranks.beats.close()
    each = beats.Beats(ranks.rank, ranks.world_size, lambda: 7 if ranks.rank == 0 else 6)
    each.on_silent = silent.append
    late: list[str] = []
    if ranks.rank == 0:
        until = time.monotonic() + 60
        while not silent and time.monotonic() < until:
            late = each.late() or late
            time.sleep(0.01)
    elif ranks.rank == 2:
        time.sleep(0.5)
        subprocess.Popen(["sh", "-c", f"sleep 4; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), 19)
    ranks.broadcast(0)
    each.close()
    return [late, silent]


def test_late_and_silent_ranks_are_named():
    (late, silent), *_ = in_group(3, _watch)
    assert late[0].startswith("rank 1 (process ")
    assert late[0].endswith(" has not arrived")
    (words,) = silent
    assert words.startswith("rank 2 (process ")
    assert "no sign of life for" in words
