"""kill -9 of real runs, at any moment and inside a save: the result equals that of an undisturbed run."""

import subprocess
import sys
import textwrap

import pytest

from mptui.events import RunStarted
from mptui.runs.store.journal import read_journal
from tests.chaos import killer
from tests.chaos.killer import Killer
from tests.chaos.runs import RESNET, UNET, Case


def killed_again_and_again(server, case, folder, kills, seed):
    tally = Killer(server, case, folder, seed=seed).run(kills)
    assert tally.kills == kills
    assert tally.damaged == []
    assert tally.differing == []
    return tally


@pytest.mark.slow
def test_twenty_kills_change_nothing(fork_server, tmp_path):
    tally = killed_again_and_again(fork_server, UNET, tmp_path, kills=20, seed=0)
    assert tally.inside_a_save >= 5
    # a killed run resumes from its last save, and repeats only the steps since then
    run = tmp_path / "killed-0"
    resumed = [event for event in read_journal(run) if isinstance(event, RunStarted)]
    assert any((event.resumed_from_step or 0) > 0 for event in resumed)


@pytest.mark.chaos
@pytest.mark.parametrize(("case", "kills"), [(UNET, 110), (RESNET, 90)], ids=["unet", "resnet"])
def test_two_hundred_kills_change_nothing(fork_server, tmp_path, case, kills, capsys):
    tally = killed_again_and_again(fork_server, case, tmp_path, kills, seed=1)
    assert tally.inside_a_save >= kills // 4
    with capsys.disabled():
        print(f"\n{case.name}: {tally.kills} kills, {tally.inside_a_save} inside a save, {tally.runs} runs")


@pytest.mark.gpu
def test_kills_of_a_run_on_a_gpu_change_nothing(fork_server, tmp_path):
    case = Case("on-gpu", (*RESNET.flags, "--device", "cuda", "--no-compile"), RESNET.sets)
    killed_again_and_again(fork_server, case, tmp_path, kills=2, seed=0)


def test_a_run_that_ends_otherwise_is_found(fork_server, tmp_path, monkeypatch):
    """Negative control: a resume that changes one bit of the weights is detected."""
    whole, seen = killer.outcome_of, 0

    def garbled(run):
        nonlocal seen
        seen += 1
        outcome = whole(run)
        if seen == 2:
            name, content = next(iter(outcome.weights["model"].items()))
            outcome.weights["model"][name] = bytes([content[0] ^ 1]) + content[1:]
        return outcome

    monkeypatch.setattr(killer, "outcome_of", garbled)
    assert Killer(fork_server, UNET, tmp_path).run(0).differing == ["again"]


@pytest.mark.chaos
def test_a_file_saved_over_itself_does_not_live_through_the_same(tmp_path):
    """Negative control: `torch.save` to one path, killed at 40 random moments."""
    code = """
        import os, pickle, random, signal, sys, time, torch
        torch.set_num_threads(1)
        path, chance, lost = sys.argv[1], random.Random(0), 0
        state = {str(i): torch.randn(1000, 100) for i in range(40)}
        for trial in range(40):
            child = os.fork()
            if child == 0:
                while True:
                    torch.save(state, path)
            time.sleep(chance.uniform(0.1, 0.3))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            try:
                torch.load(path, weights_only=True)
            except (RuntimeError, EOFError, OSError, pickle.UnpicklingError):
                lost += 1
        print(lost)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "last.pt")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) > 10
