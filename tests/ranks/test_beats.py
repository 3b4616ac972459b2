"""Signs of life of ranks: who is late, and who is silent."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from threading import Thread

import pytest
import torch

from mptui.engine.ranks import beats
from mptui.errors import RankError
from tests.engine.small import end
from tests.program import Program
from tests.ranks.groups import CALL, environs, in_group
from tests.ranks.training import built


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


class _Hung(torch.nn.Module):
    """Waits in the third forward pass until a file is there."""

    def __init__(self, until: Path) -> None:
        super().__init__()
        self._until, self._left = until, 3

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self._left -= self.training
        latest = time.monotonic() + 60
        while self._left == 0 and not self._until.exists() and time.monotonic() < latest:
            time.sleep(0.01)
        return images


def _hang(ranks, folder):
    """Hang on rank 1 in a step until rank 0 has named it; return the names of those that are late."""
    beats.BEAT_S, flag = 0.05, Path(folder) / "named"
    ranks.beats.close()
    ranks.beat()
    trainer, _ = built(ranks, Path(folder) / "run", train=40, val=8, training={"epochs": 1, "batch_size": 8})
    layers = trainer.context.model
    named: list[str] = []
    assert isinstance(layers, torch.nn.Sequential)
    if ranks.rank == 1:
        layers[1] = torch.nn.Sequential(layers[1], _Hung(flag))

    def watch() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until and not flag.exists():
            time.sleep(0.3)
            if (late := ranks.late()) and late == named[-1:]:
                flag.touch()
            named.extend(late)

    thread = Thread(target=watch)
    if ranks.is_first:
        thread.start()
    trainer.train()
    end(trainer)
    if ranks.is_first:
        thread.join()
    return [named, trainer.state.step]


def test_a_rank_that_hangs_in_a_step_is_named(tmp_path):
    """It beats, and the others wait for its gradients."""
    (named, step), _ = in_group(2, _hang, str(tmp_path))
    assert named[-1].startswith("rank 1 (process")
    assert named[-1].endswith("has not arrived")
    assert step == 5


def _lose(ranks, lost, how):
    """Rank `lost` stops for ever while the other waits for its device, which no thread can interrupt."""
    beats.BEAT_S, beats.SILENT_S, beats.LOST_S = 0.05, 1.0, 2.0
    ranks.beats.close()
    ranks.beat()
    ranks.broadcast(0)
    time.sleep(0.5)
    if ranks.rank == lost:
        os.kill(os.getpid(), how)
    time.sleep(20)


@pytest.mark.parametrize(
    ("lost", "how"), [(1, signal.SIGSTOP), (0, signal.SIGSTOP), (0, signal.SIGKILL)], ids=str
)
def test_a_rank_that_stays_silent_ends_the_others(lost, how):
    """The store, by which they hear of each other, is in the process of rank 0."""
    what = json.dumps(["tests.ranks.test_beats", "_lose", [lost, how]])
    both = [Program(CALL, what, environ=e, call="tests.program:execute") for e in environs(2)]
    try:
        _, err = both[1 - lost].communicate()
    finally:
        both[lost].kill()
    assert both[1 - lost].returncode == RankError.exit_code, err
    told = [line for line in err.splitlines() if "has given no sign of life" in line]
    assert len(told) == 2
    assert told[0].startswith(f"rank {lost} (process")
