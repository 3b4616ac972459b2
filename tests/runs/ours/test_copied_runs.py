"""A run that a copy brought in another form goes on from its checkpoint, and what a person added stays."""

import json
import shutil

import pytest

from tests.runs.ours.tiny import contents, mptui


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two epochs."""
    runs = tmp_path_factory.mktemp("runs")
    ended = mptui("run", "--name", "one", "--epochs", "2", "--runs-dir", runs, "-q")
    assert ended.returncode == 0, ended.stderr
    return runs / "one"


def step_of(checkpoint):
    return json.loads((checkpoint / "state.json").read_text())["step"]


def resumed_from(run):
    lines = (run / "events.jsonl").read_text().splitlines()
    return [
        event["resumed_from_step"] for event in map(json.loads, lines) if event["event"] == "run_started"
    ][-1]


def test_a_copy_whose_links_became_folders_goes_on(trained, tmp_path):
    run = tmp_path / "copy"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("checkpoints", "*.sock", ".*"))
    for name in ("last", "best"):
        shutil.copytree((trained / "checkpoints" / name).resolve(), run / "checkpoints" / name)
    before = step_of(run / "checkpoints" / "last")
    ended = mptui("resume", run, "--no-tui", "--epochs", "3")
    assert ended.returncode == 0, ended.stderr
    assert resumed_from(run) == before
    assert "no checkpoint yet" not in ended.stderr
    assert step_of(run / "checkpoints" / "last") == before // 2 * 3


@pytest.mark.parametrize("at", ["last", "best"])
def test_such_a_copy_is_forked_before_it_was_resumed_and_stays_as_it_is(trained, tmp_path, at):
    run = tmp_path / "copy"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("checkpoints", "*.sock", ".*"))
    for name in ("last", "best"):
        shutil.copytree((trained / "checkpoints" / name).resolve(), run / "checkpoints" / name)
    (run / "checkpoints" / at / "of an archive").mkdir()
    before, step = contents(run), step_of(run / "checkpoints" / at)
    ended = mptui("resume", run, "--fork", "--at", at, "--name", "fork", "--no-tui", "--epochs", "3")
    assert ended.returncode == 0, ended.stderr
    assert f"forked copy at step {step}" in ended.stderr
    assert resumed_from(tmp_path / "fork") == step
    assert contents(run) == before
    assert "are lost" not in mptui("stop", run).stdout


def test_a_checkpoint_with_a_stray_file_is_intact(trained, tmp_path):
    run = tmp_path / "copy"
    shutil.copytree(trained, run, symlinks=True)
    last = (run / "checkpoints" / "last").resolve()
    before = step_of(last)
    for name in (".DS_Store", "._state.json", "README.md"):
        (last / name).write_text("theirs")
    ended = mptui("resume", run, "--no-tui", "--epochs", "3")
    assert ended.returncode == 0, ended.stderr
    assert resumed_from(run) == before
    assert "ignored: .DS_Store, ._state.json, README.md" in ended.stderr
    assert "damaged" not in ended.stderr
    assert (run / "checkpoints" / f"{last.name}.others" / "README.md").read_text() == "theirs"


def test_nothing_begins_anew_over_a_folder_that_is_no_intact_checkpoint(trained, tmp_path):
    run = tmp_path / "copy"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("checkpoints", "*.sock"))
    (run / "checkpoints" / "last").mkdir(parents=True)
    (run / "checkpoints" / "last" / "model.safetensors").write_text("half of a copy")
    ended = mptui("resume", run, "--no-tui", "--epochs", "3")
    assert ended.returncode == 6, ended.stderr
    assert "in place of a link" in ended.stderr
    assert (run / "checkpoints" / "last" / "model.safetensors").read_text() == "half of a copy"
