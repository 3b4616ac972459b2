"""A run that is deleted or cleaned up loses what it has written, and nothing that others have put there."""

from shutil import copytree

import pytest

from mptui.runs.listing.housekeeping import delete_run, find_leftovers, remove_leftovers
from tests.runs.ours.tiny import contents, mptui

THEIRS = {
    "notes.md": b"mine",
    "checkpoints/my-weights.pt": b"mine",
    "checkpoints/exported/model.safetensors": b"mine",
    "checkpoints/step-000000007/model.safetensors": b"mine",
    "predictions/holiday.png": b"mine",
    "predictions/epoch-0001-step-7.png": b"mine",
    "samples/epoch-0001.png": b"mine",
    "tensorboard/notes.txt": b"mine",
    "figures/one.png": b"mine",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of three epochs with all that a run keeps, copied by no test."""
    folder = tmp_path_factory.mktemp("runs")
    more = ("--epochs", "2", "--set", "checkpoint.keep=all", "--set", "logging.trackers=['csv']")
    ended = mptui("run", "--runs-dir", folder, "--name", "one", "--no-compile", "-q", *more)
    assert ended.returncode == 0, ended.stderr
    return folder / "one"


@pytest.fixture
def run(trained, tmp_path):
    return copytree(trained, tmp_path / "one", symlinks=True)


def put(run):
    for name, content in THEIRS.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)


def test_a_deleted_run_leaves_nothing_of_its_own(run):
    assert delete_run(run) == ()
    assert not run.exists()


def test_what_others_have_put_into_a_run_outlives_it_and_is_named(run):
    put(run)
    kept = delete_run(run)
    assert contents(run) == THEIRS
    assert all(any(name == each or name.startswith(f"{each}/") for each in kept) for name in THEIRS)


def test_a_clean_up_removes_checkpoints_and_names_what_stays(run):
    put(run)
    before = contents(run)
    theirs = {name: content for name, content in before.items() if name in THEIRS}
    found = find_leftovers(run)
    assert remove_leftovers(run) == found.others
    assert {name.split("/")[1] for name in found.others} == {"my-weights.pt", "exported", "step-000000007"}
    after = contents(run)
    assert {name: content for name, content in after.items() if name in THEIRS} == theirs
    assert find_leftovers(run).paths == ()
    assert (run / "checkpoints" / "last" / "manifest.json").exists()
    assert not any(path in after for path in (str(each.relative_to(run)) for each in found.paths))
