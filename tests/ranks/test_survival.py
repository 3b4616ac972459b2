"""Ranks that are killed or suspended: the group goes on from the last save, to the same result."""

import random
import signal
import time

import psutil
import pytest

from mptui.events import RunStarted, Step, Warned
from mptui.lab.crash.kills import outcome_of
from mptui.runs.store.directory import read_summary
from mptui.runs.store.journal import read_journal
from tests.program import Program
from tests.ranks.cluster import wait_until
from tests.ranks.test_chains import flags, steps, undisturbed

pytestmark = pytest.mark.slow


def rank_pids(group):
    """Return the process of each rank of a group that lives: rank -> PID."""
    found = {}
    for process in psutil.Process(group.pid).children(recursive=True):
        try:
            environ, command = process.environ(), process.cmdline()
        except psutil.Error:
            continue
        if "mptui" in command and environ.get("TORCHELASTIC_RUN_ID") and process.ppid() != group.pid:
            parent = psutil.Process(process.ppid())
            if "RANK" not in parent.environ():
                found[int(environ["RANK"])] = process.pid
    return found


class Group:
    """A run of two ranks in a folder."""

    def __init__(self, folder, epochs):
        self.run = folder / "runs" / "run"
        group = ("--nproc-per-node", "2", "--max-restarts", "99", "--name", "run", "--resume")
        self.process = Program("run", *group, *flags(folder, epochs))

    def lives(self):
        return self.process.poll() is None

    def strike(self, number, rank, after):
        """Send a signal to a rank `after` steps from now, or, below 0, so many seconds after it is there.

        Returns whether the run had not ended before.
        """
        before, pids = steps(self.run), {}
        if after < 0:
            wait_until(lambda: not self.lives() or rank in rank_pids(self.process))
            time.sleep(-after)
        else:
            wait_until(lambda: not self.lives() or steps(self.run) >= before + after)
        pids = rank_pids(self.process)
        if not self.lives() or rank not in pids:
            return False
        psutil.Process(pids[rank]).send_signal(number)
        wait_until(lambda: not psutil.pid_exists(pids[rank]))
        return True

    def finish(self):
        out, err = self.process.communicate()
        assert self.process.returncode == 0, out + err
        assert read_summary(self.run)["status"] == "completed"
        return [e.message for e in read_journal(self.run) if isinstance(e, Warned) and e.code == "rank_lost"]


def test_a_killed_rank_changes_nothing(tmp_path):
    expected = undisturbed(tmp_path / "straight", 2, epochs=15)
    group = Group(tmp_path, epochs=15)
    assert group.strike(signal.SIGKILL, rank=1, after=15)
    assert group.strike(signal.SIGKILL, rank=0, after=15)
    told = group.finish()
    for rank, words in zip((1, 0), told, strict=True):
        assert words.startswith(f"rank {rank} (process"), told
        assert "was killed by SIGKILL" in words
    assert outcome_of(group.run) == expected
    starts = [event for event in read_journal(group.run) if isinstance(event, RunStarted)]
    assert [event.resumed_from_step is not None for event in starts] == [False, True, True]


@pytest.mark.chaos
@pytest.mark.parametrize(("number", "times"), [(signal.SIGKILL, 20), (signal.SIGSTOP, 5)])
def test_any_rank_at_any_moment(tmp_path, number, times, capsys):
    expected = undisturbed(tmp_path / "straight", 2, epochs=60)
    chance = random.Random(int(number))
    struck = runs = 0
    while struck < times:
        group = Group(tmp_path / str(runs), epochs=60)
        told = 0
        while struck < times:
            after = chance.choice([-chance.uniform(0, 10), chance.randrange(80)])
            if not group.strike(number, chance.randrange(2), after):
                break
            struck, told = struck + 1, told + 1
        said = group.finish()
        assert bool(told) == bool(said)
        assert len(said) <= told, said  # a rank that is struck as the group ends is no second loss
        assert outcome_of(group.run) == expected
        runs += 1
    repeated = sum(isinstance(event, Step) for event in read_journal(group.run))
    with capsys.disabled():
        print(f"\n{number.name}: {struck} times in {runs} runs, all equal; {repeated} steps in the last")
