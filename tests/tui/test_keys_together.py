"""Keys that come at once, in one packet: each waits until what the one before has asked for is there."""

import threading

import pytest
from textual import on
from textual.events import Key
from textual.widgets import Static

from mptui.errors import ConfigError
from mptui.runs.listing import forks
from mptui.tui import app as tui_app
from mptui.tui import keys as tui_keys
from mptui.tui.keys import KEYS, KeyHandled
from mptui.tui.screens import memory
from mptui.tui.widgets import samples
from tests.runs.made_pictures import RED, sample
from tests.tui.cockpits import until
from tests.tui.events import demo_source
from tests.tui.frames import frame
from tests.tui.test_fork_screen import Shown
from tests.tui.test_pictures_screen import written
from tests.tui.test_runs_screen import a_run, demo_journal, shown, three

__all__ = ["shown", "three"]


def send(app, *keys):
    """Let keys arrive at once."""
    for key in keys:
        app.post_message(Key(key, key if len(key) == 1 else None))


async def test_a_question_that_takes_a_while_gets_the_next_key(tmp_path):
    a_run(tmp_path, "parent", journal=demo_journal())
    async with Shown(tmp_path) as (app, pilot, started):
        send(app, "f", "2", "enter")
        await until(app, pilot, "steps of the fork")
    assert started[0].resumed == tmp_path / "parent-fork"
    assert (tmp_path / "parent-fork").exists()


async def test_old_checkpoints_are_asked_about_and_removed_by_two_keys_at_once(shown, three):
    async with shown(three) as (app, pilot):
        send(app, "p", "p")
        await until(app, pilot, "cleaned up: minute")


@pytest.mark.parametrize(
    ("keys", "words"),
    [(("enter",), "╭─ loss"), pytest.param(("c", "m"), "loss · validation", marks=pytest.mark.slow)],
)
async def test_keys_wait_for_the_first_look_at_the_runs(shown, three, keys, words):
    async with shown(three) as (app, pilot):
        await pilot.press("escape")
        send(app, "o", *keys)
        await until(app, pilot, words)


async def test_a_disk_that_hangs_holds_no_key_for_long(tmp_path, monkeypatch):
    a_run(tmp_path, "parent", journal=demo_journal())
    released = threading.Event()

    def slow(run):
        released.wait(60)
        return forks.kept_checkpoints(run)

    monkeypatch.setattr(tui_app, "kept_checkpoints", slow)
    monkeypatch.setattr(tui_keys, "PREPARATION_S", 0.05)
    async with Shown(tmp_path) as (app, pilot, _):
        send(app, "f", "s")
        await until(app, pilot, "runs · name")
        assert "fork parent" not in frame(app)
        released.set()


@pytest.mark.parametrize(
    ("module", "name", "key"), [(memory, "count_memory", "m"), (samples, "opened_picture", "i")]
)
async def test_a_screen_that_is_closed_before_it_is_filled_leaves_the_run_alone(
    stage, tmp_path, monkeypatch, module, name, key
):
    asked, closed = threading.Event(), threading.Event()

    def slow(*_):
        asked.set()
        closed.wait(60)
        if name == "count_memory":
            raise ConfigError("none", hint="")

    monkeypatch.setattr(module, name, slow)
    source = written(tmp_path, groups={"worst": [sample(1, RED)]})
    async with stage.live(source) as (app, pilot):
        below = app.screen
        await pilot.press(key)
        while not asked.is_set():
            await pilot.pause()
        screen = app.screen
        closing = screen.query("Panel").remove()  # as it is closed
        closed.set()
        await app.workers.wait_for_complete()
        await closing
        assert not app.has_left
        assert below.is_attached


async def test_two_pauses_at_once_are_a_pause_and_its_end(stage):
    source = demo_source()
    async with stage.live(source) as (app, pilot):
        send(app, "space", "space", "space")
        while len(source.sent) < 3:
            await pilot.pause()
    assert [command for command, _ in source.sent] == ["pause", "resume", "pause"]


class Gone(Static, can_focus=True):
    """Is gone once it has got a key, and with it what comes behind the key."""

    @on(KeyHandled)
    def gone(self, message):
        message.stop()
        self.remove()


async def test_a_key_is_not_lost_with_the_widget_that_had_the_one_before(stage):
    source = demo_source()
    async with stage.live(source) as (app, pilot):
        gone = Gone()
        await app.screen.mount(gone)
        gone.focus()
        await pilot.pause()
        send(app, "j", "space")
        while not source.sent:
            await pilot.pause()
    assert [command for command, _ in source.sent] == ["pause"]


@pytest.mark.parametrize(("width", "word"), [(80, "more"), pytest.param(300, "help", marks=pytest.mark.slow)])
async def test_the_line_of_keys_says_where_there_are_more(stage, width, word):
    async with stage.live(demo_source(), (width, 36)) as (app, _):
        assert f"? {word}" in frame(app).splitlines()[-1]
        assert {key.footer for key in KEYS if key.id == "app.help"} == {"help"}
