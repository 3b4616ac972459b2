"""A fork of a run: it goes on as a resume would, and leaves its parent as it is."""

import json
import os
import shutil
from pathlib import Path

import pytest

from mptui.cli.main import _exit_code
from mptui.errors import ConfigError, DiskError, RunDirectoryError
from mptui.events import Step
from mptui.runs.listing.difference import difference
from mptui.runs.listing.forks import (
    FORKED_FROM,
    find_checkpoint,
    fork_run,
    kept_checkpoints,
    parent_of,
    parent_words,
    run_id,
)
from mptui.runs.listing.housekeeping import rename_run
from mptui.runs.listing.rows import RunList, compare, what_differs
from mptui.runs.store.directory import CONFIG, SUMMARY, read_summary, write_json
from mptui.runs.store.index import read_run
from mptui.runs.store.journal import read_journal
from tests.made.runs import UNET, ended, session_of


def trained(run, **changed):
    """Train a new run, or go on with one; return its directory."""
    resume = run.is_dir()
    profile = str(run / CONFIG) if resume else "stable"
    session = ended(session_of(run, {**({} if resume else UNET), **changed}, resume=resume, profile=profile))
    assert session.result.exit_code == 0, session.result.error or session.result.bug
    return run


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A run of 8 steps, each with a checkpoint: of others it depends when that of the best is written."""
    run = tmp_path_factory.mktemp("runs") / "parent"
    keep = {"checkpoint.every_steps": 1, "checkpoint.keep": 99}
    return trained(run, **{"training.epochs": 2, **keep})


def weights(run: Path) -> dict[str, bytes]:
    """The tensors of the last checkpoint: weights, optimizer, everything that goes on."""
    return {
        name: data for name, data in content(run / "checkpoints/last").items() if name.endswith("tensors")
    }


def test_a_fork_equals_a_resume_of_its_checkpoint_and_its_parent_keeps_each_bit(parent, tmp_path):
    before = content(parent)
    other = {"training.clip_grad_norm": 0.5, "precision.mode": "bf16"}
    resumed = tmp_path / "resumed"
    shutil.copytree(parent, resumed, symlinks=True)
    kept = find_checkpoint(parent, "3")
    for name in ("last", "best"):
        (resumed / "checkpoints" / name).unlink()
    for each in kept_checkpoints(resumed):
        if each.step != 3:
            shutil.rmtree(each.path)
    (resumed / "checkpoints/last").symlink_to(kept.path.name)
    fork = fork_run(parent, kept)
    assert fork.name == "parent-fork"
    trained(fork, **other)
    trained(resumed, **other)
    assert weights(fork) == weights(resumed) != weights(parent)
    assert content(parent) == before
    steps = [event.step for event in read_journal(fork) if isinstance(event, Step)]
    assert steps[0] > 3
    assert read_summary(fork)["forked_from"] == {"run": "parent", "id": run_id(parent), "step": 3}
    rows = {row.name: row for row in RunList(parent.parent).rows()}
    assert rows["parent-fork"].parent == (parent, 3)
    assert rows["parent"].parent is None
    found = compare([parent, fork])
    assert set(what_differs(found)) == set(other)
    assert found["branches"] == [[], []]
    assert difference(read_run(parent), read_run(fork), 3, found["settings"]).sentence == ""  # of few steps
    shutil.rmtree(fork)


def test_a_fork_under_a_profile_switches_as_a_run_does(parent):
    fork = fork_run(parent, find_checkpoint(parent, "last"), "other", "debug")
    before, now = ((run / CONFIG).read_text() for run in (parent, fork))
    assert 'mode = "fp32"' in now
    assert [line for line in before.splitlines() if line.startswith("seed")] == [
        line for line in now.splitlines() if line.startswith("seed")
    ]
    assert [each.step for each in kept_checkpoints(fork)][:1] == [8]
    shutil.rmtree(fork)


def test_the_checkpoint_shares_its_files_and_survives_its_parent(parent, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(parent, copy, symlinks=True)
    fork = fork_run(copy, find_checkpoint(copy, "best"))
    linked = fork / "checkpoints/last/model.safetensors"
    assert linked.stat().st_nlink == 2
    shutil.rmtree(copy)
    assert parent_of(fork, read_summary(fork)) is None
    step = find_checkpoint(parent, "best").step
    assert parent_words(fork, read_summary(fork)) == f"copy (gone) at step {step}"
    trained(fork)


def test_a_fork_finds_its_parent_after_it_was_renamed(parent, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(parent, copy, symlinks=True)
    fork = fork_run(copy, find_checkpoint(copy, "3"))
    rows = RunList(tmp_path)
    assert {row.name: row.parent for row in rows.rows()}["copy-fork"] == (copy, 3)
    renamed = rename_run(copy, "first")
    assert {row.name: row.parent for row in rows.rows()}["copy-fork"] == (renamed, 3)
    assert parent_words(fork, read_summary(fork)) == "first at step 3"
    another = tmp_path / "copy"
    shutil.copytree(parent, another, symlinks=True)
    (another / "events.jsonl").write_text('{"event":"journal","time":1.0,"step":0,"version":1}\n')
    assert parent_of(fork, read_summary(fork)) == (renamed, 3)  # not the other run that has its name now


def test_a_fork_of_an_earlier_version_knows_the_name_of_its_parent(parent):
    fork = fork_run(parent, find_checkpoint(parent, "3"), "older")
    before = read_summary(fork)
    write_json(fork / SUMMARY, before | {FORKED_FROM: {"run": "parent", "step": 3}})
    assert parent_of(fork, read_summary(fork)) == (parent, 3)
    for odd in ({}, {"run": "..", "step": 3}, {"run": ["parent"], "step": 3}, {"run": "parent", "step": "3"}):
        assert parent_words(fork, before | {FORKED_FROM: odd}) == ""
    shutil.rmtree(fork)


def test_the_steps_that_are_there_are_named_as_they_are_typed(tmp_path):
    (tmp_path / "checkpoints/step-000012000").mkdir(parents=True)
    with pytest.raises(RunDirectoryError, match=r"it has: 12000$"):
        find_checkpoint(tmp_path, "12,000")
    assert find_checkpoint(tmp_path, "12000").step == 12_000


@pytest.mark.parametrize("at", ["9", "newest", ""])
def test_a_checkpoint_that_is_not_there_is_named_with_those_that_are(parent, at):
    with pytest.raises(RunDirectoryError, match=r"it has: .*\b8 \(last"):
        find_checkpoint(parent, at)


def test_a_fork_that_cant_be_made_leaves_nothing(parent, monkeypatch):
    with pytest.raises(ConfigError):
        fork_run(parent, kept_checkpoints(parent)[0], "parent")
    with pytest.raises(ConfigError, match="no profile"):
        fork_run(parent, kept_checkpoints(parent)[0], "made", "no-such-profile")

    def full(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(DiskError, match="made: No space left"):
        fork_run(parent, kept_checkpoints(parent)[0], "made")
    assert os.listdir(parent.parent) == ["parent"]  # noqa: PTH208 - read as a person does


def test_a_checkpoint_that_its_parent_removes_meanwhile_is_told_so(parent, tmp_path, monkeypatch):
    copy = tmp_path / "copy"
    shutil.copytree(parent, copy, symlinks=True)
    kept, link = find_checkpoint(copy, "3"), os.link

    def removed_after_one(source, target):
        link(source, target)
        kept.path.rename(copy / "removed")

    monkeypatch.setattr(os, "link", removed_after_one)
    with pytest.raises(RunDirectoryError, match="gone: copy has saved a newer one"):
        fork_run(copy, kept, "made")
    assert not (tmp_path / "made").exists()


@pytest.mark.slow
def test_the_command_forks_and_trains(parent, capsys):
    words = ["resume", str(parent), "--fork", "--at", "best", "--name", "again", "--json", "--no-tui"]
    assert _exit_code([*words, "--set", "training.clip_grad_norm=0.5"], debug=False) == 0
    printed = capsys.readouterr()
    step = find_checkpoint(parent, "best").step
    assert json.loads(printed.out)["forked_from"] == {"run": "parent", "id": run_id(parent), "step": step}
    assert f"forked parent at step {step}" in printed.err
    shutil.rmtree(parent.with_name("again"))


def test_flags_of_a_fork_alone_are_refused(parent, capsys):
    assert _exit_code(["resume", str(parent), "--at", "6"], debug=False) == 2
    assert "add --fork" in capsys.readouterr().err


def test_a_fork_has_the_best_of_its_parent_unless_it_is_later(parent):
    early, late = (fork_run(parent, find_checkpoint(parent, at), at) for at in ("3", "last"))
    assert read_summary(parent)["best"]["value"] is not None
    assert read_summary(late)["best"] == read_summary(parent)["best"]
    assert (late / "checkpoints/best").exists()
    assert "best" not in read_summary(early)
    assert not (early / "checkpoints/best").exists()
    for fork in (early, late):
        assert (fork / "data.json").read_bytes() == (parent / "data.json").read_bytes()
        shutil.rmtree(fork)
