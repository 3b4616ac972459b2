"""Signs of life of ranks: who is late, and who is silent."""

import os
import signal
import time
from pathlib import Path
from threading import Thread

import pytest
import torch

from mptui.engine.ranks import beats
from mptui.errors import RankError
from tests.engine.small import end
from tests.ranks.groups import environs, in_group, started
from tests.ranks.training import built

pytestmark = pytest.mark.program


def _watch(ranks):
    """Rank 1 comes late, and rank 2 is suspended for a while; return what rank 0 is told."""
    beats.BEAT_S, beats.SILENT_S = 0.05, 0.6
    silent: list[str] = []
    ranks.beats.close()
    processes = ranks.gather(os.getpid())
    each = beats.Beats(ranks.rank, ranks.world_size, lambda: 7 if ranks.rank == 0 else 6)
    each.on_silent = silent.append
    late: list[str] = []
    if ranks.rank == 0:
        until = time.monotonic() + 60
        while not silent and time.monotonic() < until:
            late = each.late() or late
            time.sleep(0.01)
        os.kill(processes[2], signal.SIGCONT)
    elif ranks.rank == 2:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGSTOP)
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
            time.sleep(0.1)
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
    beats.BEAT_S, beats.SILENT_S, beats.LOST_S = 0.05, 0.5, 1.0
    ranks.beats.close()
    ranks.beat()
    ranks.broadcast(0)
    time.sleep(0.2)
    if ranks.rank == lost:
        os.kill(os.getpid(), how)
    time.sleep(20)


LOSSES = {
    "rank 1 suspended": (1, signal.SIGSTOP),
    "rank 0 suspended": (0, signal.SIGSTOP),
    "rank 0 killed": (0, signal.SIGKILL),
}


@pytest.fixture(scope="module")
def ends():
    """The exit code and the words of the rank that is left, of three groups at the same time."""
    groups = {name: started(_lose, *LOSSES[name], environs=environs(2)) for name in LOSSES}
    found = {}
    for name, ranks in groups.items():
        lost, _ = LOSSES[name]
        try:
            _, words = ranks[1 - lost].communicate()
        finally:
            ranks[lost].kill()
        found[name] = ranks[1 - lost].returncode, words
    return found


@pytest.mark.parametrize("name", LOSSES)
def test_a_rank_that_stays_silent_ends_the_others(ends, name):
    """The store, by which they hear of each other, is in the process of rank 0."""
    code, words = ends[name]
    lost, _ = LOSSES[name]
    assert code == RankError.exit_code, words
    told = [line for line in words.splitlines() if "has given no sign of life" in line]
    assert len(told) == 2
    assert told[0].startswith(f"rank {lost} (process")
