"""`f`: a fork of a run from a checkpoint, drawn over its parent, while the parent pauses or trains on."""

import shutil

import pytest
from textual.widgets import Input

from mptui.events import Step
from mptui.runs.listing.forks import run_id
from mptui.runs.listing.housekeeping import rename_run
from mptui.runs.store.directory import read_summary
from mptui.tui.app import MptuiApp
from mptui.tui.cockpit import Cockpit
from mptui.tui.screens import live as screens_live
from mptui.tui.screens.fork import ForkDialog
from mptui.tui.screens.page import Page
from tests.tui.cockpits import FakeRun, until
from tests.tui.events import MemorySource, beginning, demo, training
from tests.tui.frames import frame, put, seen
from tests.tui.test_runs_screen import a_run, demo_journal, journal_of


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """The parent of a fork is looked at often, so that nothing is waited for."""
    monkeypatch.setattr(screens_live, "PARENT_S", 0.2)


class Shown:
    """The list of runs in the program, with fake starts of runs."""

    def __init__(self, folder, size=(80, 24)):
        self.started: list[FakeRun] = []

        def start(request, resume, group):
            run = FakeRun(request, demo())
            run.resumed, run.run = resume, resume
            self.started.append(run)
            return run

        self.app = Cockpit(
            start,
            first=Page(),  # type: ignore[arg-type]
            runs=folder,
            environ={},
        )
        self.running = self.app.run_test(size=size, notifications=True)

    async def __aenter__(self):
        pilot = await self.running.__aenter__()
        await pilot.press("o")
        await until(self.app, pilot, " in ")
        return self.app, pilot, self.started

    async def __aexit__(self, *error):
        await self.running.__aexit__(*error)


@pytest.mark.parametrize("size", [(80, 24), pytest.param((140, 45), marks=pytest.mark.slow)])
async def test_a_fork_is_made_trained_and_drawn_over_its_parent(tmp_path, size):
    parent = a_run(tmp_path, "parent", journal=demo_journal())
    async with Shown(tmp_path, size) as (app, pilot, started):
        await pilot.press("f")
        await until(app, pilot, "fork parent at")
        words = frame(app)
        assert "40  last" in words
        assert "20  best" in words
        assert "its parent" not in words  # it is not training
        await pilot.press("down", "down", "2")
        assert await seen(app, pilot, "switched to ")
        await pilot.press("0", "tab", *"training.lr=0.05", "enter")
        await until(app, pilot, "waiting for the first 20 steps of the fork")
        fork = tmp_path / "parent-fork"
        (run,) = started
        assert run.resumed == fork
        assert tuple(run.request.sets) == ("training.lr=0.05",)
        assert read_summary(fork)["forked_from"] == {"run": "parent", "id": run_id(parent), "step": 20}
        shutil.copyfile(parent / "events.jsonl", fork / "events.jsonl")
        await until(app, pilot, "fork: speed even with its parent, loss even")
        await pilot.press("escape")
        await until(app, pilot, "╭─ log" if size[1] > 24 else "space pause")
        await until(app, pilot, "speed even, loss even")  # in the first line of the fork itself
        await until(app, pilot, "── parent")


async def test_a_run_without_a_checkpoint_is_not_forked(tmp_path):
    run = a_run(tmp_path, "parent")
    shutil.rmtree(run / "checkpoints")
    async with Shown(tmp_path) as (app, pilot, started):
        await pilot.press("f")
        assert await seen(app, pilot, "this run has no checkpoint yet")
        assert not started


async def test_a_fork_that_cant_be_made_is_told(tmp_path):
    run = a_run(tmp_path, "parent")
    async with Shown(tmp_path) as (app, pilot, started):
        app.NOTIFICATION_TIMEOUT = 600  # on a busy machine, seconds pass before the test looks
        await pilot.press("f")
        await until(app, pilot, "fork parent at")
        (run / "run.toml").write_text("version = 99\n")
        await pilot.press("enter")
        await until(app, pilot, "written by a newer mptui")
        assert not started


async def test_escape_forks_nothing_and_the_parent_of_a_training_run_is_chosen(tmp_path):
    run = a_run(tmp_path, "parent")
    async with Shown(tmp_path) as (app, pilot, started):
        await pilot.press("f")
        await until(app, pilot, "fork parent at")
        dialog = app.screen
        assert isinstance(dialog, ForkDialog)
        dialog._training = True
        await pilot.press("p")
        assert await seen(app, pilot, "pauses until the fork has ended")
        await pilot.press("tab")
        assert isinstance(app.focused, Input)
        await pilot.press("escape")
        await until(app, pilot, "1 run in")
        assert not started
        assert not run.with_name("parent-fork").exists()


async def test_parents_pause_until_their_forks_have_ended_or_the_program_ends():
    runs = [MemorySource() for _ in range(6)]
    app = MptuiApp(Page())
    async with app.run_test():
        for parent, fork in zip(runs[:3], runs[3:], strict=True):
            app.pause_during(fork, parent)
        app.resume_parents()
        assert [run.sent for run in runs] == [[("pause", None)]] * 3 + [[]] * 3
        runs[3].finished = runs[1].finished = True
        app.resume_parents()
        assert [len(run.sent) for run in runs] == [2, 1, 1, 0, 0, 0]
    assert [run.sent[-1][0] for run in runs[:3]] == ["resume", "pause", "resume"]


@pytest.mark.parametrize("size", [(80, 24), pytest.param((140, 45), marks=pytest.mark.slow)])
async def test_a_fork_keeps_up_with_its_parent_and_says_when_it_is_gone(stage, tmp_path, size):
    events = [*beginning(), *training(epochs=2)]
    at = next(number for number, event in enumerate(events) if event.step > 2000)
    parent = a_run(tmp_path, "parent", events=events[:at])
    since = events[at - 1].step
    forked = {"run": "parent", "id": run_id(parent), "step": since}
    source = MemorySource()
    source.run = a_run(tmp_path, "fork", forked_from=forked)
    async with stage.live(source, size) as (app, pilot):
        await until(app, pilot, f"compares from step {since + 20:,}")
        await put(app, pilot, *events[:1], *(e for e in events[at:] if isinstance(e, Step)))
        await until(app, pilot, "speed even")  # with the parent's steps before the fork
        assert "loss even" not in frame(app)
        assert "parent" not in frame(app)
        (parent / "events.jsonl").write_text(journal_of(events))
        await until(app, pilot, "speed even, loss even")
        await until(app, pilot, "── parent")
        renamed = rename_run(parent, "renamed")
        while app.screen._parents._last.name != "renamed":
            await pilot.pause(0.03)
        assert "speed even, loss even" in frame(app)
        shutil.rmtree(renamed)
        await until(app, pilot, "parent gone" if size[0] == 80 else "its parent is gone")
        assert "── parent" not in frame(app)
