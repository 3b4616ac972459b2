"""`mptui selftest` from the command line."""

import json

import pytest

from mptui.errors import ConfigError
from mptui.lab import selftest
from mptui.lab.selftest import Killer
from tests.chaos.conftest import fork_server
from tests.chaos.runs import UNET
from tests.program import run_to_end

__all__ = ["fork_server"]


@pytest.mark.chaos
def test_it_says_that_this_disk_and_device_are_sound_and_leaves_nothing(tmp_path):
    ended = run_to_end("selftest", "--runs-dir", tmp_path / "runs", "--device", "cpu", "--kills", 6, "--json")
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["sound"] is True
    assert (report["kills"], report["kills_inside_a_save"] > 0) == (6, True)
    assert report["steps_compared"] >= 16
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_folder_that_can_not_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("in the way")
    ended = run_to_end("selftest", "--runs-dir", tmp_path / "file")
    assert ended.returncode == 7
    assert "Traceback" not in ended.stderr
    assert "--runs-dir" in ended.stderr


def test_a_run_that_fails_is_told_in_its_own_words(fork_server, tmp_path):
    def arguments(name):
        return [*UNET.arguments(tmp_path, name), "--set", "training.lr=fast"]

    with pytest.raises(ConfigError) as failed:
        Killer(fork_server, arguments, tmp_path).run(0)
    assert "training.lr" in failed.value.message
    assert "mptui: " not in failed.value.message


def test_a_run_that_ends_otherwise_is_found(fork_server, tmp_path, monkeypatch):
    """Negative control: a resume that changes one bit of the weights is detected."""
    whole, seen = selftest.outcome_of, 0

    def garbled(run):
        nonlocal seen
        seen += 1
        outcome = whole(run)
        if seen == 2:
            name, content = next(iter(outcome.weights["model"].items()))
            outcome.weights["model"][name] = bytes([content[0] ^ 1]) + content[1:]
        return outcome

    monkeypatch.setattr(selftest, "outcome_of", garbled)
    tally = Killer(fork_server, lambda name: UNET.arguments(tmp_path, name), tmp_path).run(0)
    assert tally.differing == ["again"]
    assert not tally.sound
