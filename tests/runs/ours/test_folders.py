"""Only a run's own folder is written to: another program's folder stays as it is."""

from functools import partial

import pytest

from tests.program import run_to_end
from tests.runs.ours.tiny import contents, mptui

slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture
def foreign(tmp_path):
    """A folder of another program that looks like a run's."""
    folder = tmp_path / "runs" / "other"
    for name in ("best", "last"):
        (folder / "checkpoints" / name).mkdir(parents=True)
        (folder / "checkpoints" / name / "model.pt").write_text("three weeks of training")
    for name in (".draft.partial", "summary.json", "environment.json", "train.log", "notes.txt"):
        (folder / name).write_text('{"mine": 1}\n')
    return folder


def leaves_alone(call, foreign, *how):
    before = contents(foreign)
    ended = call("run", "--name", "other", "--resume", "--runs-dir", foreign.parent, *how)
    assert ended.returncode == 6, ended.stderr
    assert "not the folder of a run" in ended.stderr
    assert "--name" in ended.stderr
    assert contents(foreign) == before


@pytest.mark.parametrize("toml", ["", "[model]\nname = 'unet'\n"])
def test_a_folder_of_another_program_is_no_run_to_go_on_with(foreign, toml):
    if toml:
        (foreign / "run.toml").write_text(toml)
    leaves_alone(mptui, foreign)


@pytest.mark.program
@pytest.mark.parametrize("how", [("--nproc-per-node", "2"), *map(slow, [("--isolate",), ("--detach",)])])
def test_nor_is_it_for_other_processes(foreign, how):
    leaves_alone(run_to_end, foreign, *how)


def test_resume_leaves_a_folder_of_another_program_with_a_run_toml_alone(foreign):
    (foreign / "run.toml").write_text("[model]\nname = 'unet'\n")
    before = contents(foreign)
    ended = mptui("resume", foreign, "--no-tui")
    assert ended.returncode == 6, ended.stderr
    assert contents(foreign) == before
