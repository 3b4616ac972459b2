"""Ranks that are killed or suspended: the group goes on from the last save, to the same result."""

import random
import signal
import time

import psutil
import pytest

from mptui.events import Paused, PresetSwitched, RunStarted, Step, Warned
from mptui.runs.remote.feed import AttachedRun
from mptui.runs.store.directory import RANKS, read_summary
from mptui.runs.store.journal import read_journal
from tests.chaos.killer import outcome_of
from tests.forks import FORKING, rank_pids
from tests.made.waiting import wait_until
from tests.program import Program
from tests.ranks.test_chains import flags, steps, undisturbed

pytestmark = pytest.mark.slow


class Group:
    """A run of two ranks in a folder."""

    def __init__(self, folder, epochs):
        self.struck = 0
        self.run = folder / "runs" / "run"
        group = ("--nproc-per-node", "2", "--max-restarts", "99", "--name", "run", "--resume")
        self.process = Program("run", *group, *flags(folder, epochs), call=FORKING)

    def lives(self):
        return self.process.poll() is None

    def strike(self, number, rank, after):
        """Send a signal to a rank `after` steps from now, or, below 0, so many seconds after it is there.

        Returns whether the run had not ended before.
        """
        before = steps(self.run)
        if after < 0:
            wait_until(lambda: not self.lives() or rank in self.pids())
            time.sleep(-after)
        else:
            wait_until(lambda: not self.lives() or steps(self.run) >= before + after)
            wait_until(lambda: not self.lives() or rank in self.pids())
        if not self.lives() or (pid := self.pids().get(rank)) is None or not psutil.pid_exists(pid):
            return False
        psutil.Process(pid).send_signal(number)
        wait_until(lambda: not psutil.pid_exists(pid))
        self.struck += 1
        return True

    def pids(self):
        """The ranks of the start after the last strike: those of the one before may not have ended yet."""
        return rank_pids(self.run / RANKS, self.struck) if self.lives() else {}

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


def test_what_was_switched_and_paused_counts_after_a_restart(tmp_path):
    """The flags say another learning rate, and nothing of a pause."""
    group = Group(tmp_path, epochs=5000)

    def happened(kind):
        return [each for each in read_journal(group.run) if isinstance(each, kind)]

    wait_until(lambda: steps(group.run) > 5)
    attached = AttachedRun(group.run).start()
    attached.send("set", "training.lr=0.0123")
    attached.send("pause")
    wait_until(lambda: happened(Paused))
    assert group.strike(signal.SIGKILL, rank=1, after=0)
    wait_until(lambda: len(happened(Paused)) == 2)
    until = happened(Paused)[-1].step
    attached.send("set", "training.clip_grad_norm=2.0")  # on top of the settings in force
    attached.send("resume")
    wait_until(lambda: happened(Step)[-1].step > until + 5)
    attached.send("stop")
    attached.close()
    out, err = group.process.communicate()
    assert group.process.returncode == 0, out + err
    first, second = happened(RunStarted)
    switches = [(each.step, *each.changes) for each in happened(PresetSwitched)]
    assert switches == [(second.step, "training.lr"), (until, "training.clip_grad_norm")]
    assert until <= second.step + 1, "it trains one step at most"
    after = [event for event in happened(Step) if event.time > second.time]
    assert all(event.lr == pytest.approx(0.0123, rel=0.01) for event in after), after
    assert first.resumed_from_step is None


@pytest.mark.chaos
@pytest.mark.parametrize(("number", "times"), [(signal.SIGKILL, 20), (signal.SIGSTOP, 5)])
def test_any_rank_at_any_moment(tmp_path, number, times, capsys):
    expected = undisturbed(tmp_path / "straight", 2, epochs=60)
    chance = random.Random(int(number))
    struck = runs = 0
    while struck < times:
        group = Group(tmp_path / str(runs), epochs=60)
        while struck < times:
            after = chance.choice([-chance.uniform(0, 10), chance.randrange(80)])
            if not group.strike(number, chance.randrange(2), after):
                break
            struck += 1
        said = group.finish()
        assert len(said) == group.struck, said
        assert outcome_of(group.run) == expected
        runs += 1
    repeated = sum(isinstance(event, Step) for event in read_journal(group.run))
    with capsys.disabled():
        print(f"\n{number.name}: {struck} times in {runs} runs, all equal; {repeated} steps in the last")
