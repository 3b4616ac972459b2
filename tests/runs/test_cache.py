"""`data.cache` of a run: chosen once, reported, and kept at a resume."""

import os

import pytest
import tomli

from mptui.data import cache_policy
from mptui.events import RunStarted, Warned
from mptui.runs.planning.plan import Request, plan_run
from mptui.runs.session.session import Session
from mptui.runs.store.directory import create_run
from tests.data.images import pairs, stripes
from tests.made.runs import QUIET

GIB = 1 << 30
LIMIT_S = 300.0
SETTINGS = {
    "model.name": "unet",
    "model.width": 4,
    "model.depth": 1,
    "data.image_size": 16,
    "data.ignore_index": 255,
    "data.workers": 1,
    "training.batch_size": 8,
    "training.epochs": 2,
    "hardware.device": "cpu",
    **QUIET,
}


@pytest.fixture
def memory(monkeypatch):
    """Total and free bytes of the machine, which a test may change."""
    figures = [64 * GIB, 60 * GIB]
    monkeypatch.setattr(cache_policy, "host_memory", lambda: tuple(figures))
    return figures


@pytest.fixture
def go(tmp_path):
    """Run to the end; return the run directory and its events."""
    pairs(tmp_path / "data", [stripes(0, 1, 255)] * 20)

    def run(*sets, resume=None):
        flags = {key: ("test", value) for key, value in SETTINGS.items()}
        flags["data.path"] = ("test", str(tmp_path / "data"))
        request = Request("stable", flags, sets, os.environ)
        if resume is not None:
            request = Request(str(resume / "run.toml"), {}, (), os.environ)
        path = resume or create_run(tmp_path, "test", "unet", None)
        session = Session(plan_run(request), path, resume=resume is not None)
        heard = session.listen()
        session.start()
        assert session.wait(LIMIT_S)
        assert session.result.exit_code == 0
        return path, heard.drain()

    return run


def kept(path):
    return tomli.loads((path / "run.toml").read_text())["data"]["cache"]


def told(events):
    return [note for event in events if isinstance(event, RunStarted) for note in event.notes]


def warned(events):
    return [event.message for event in events if isinstance(event, Warned) and event.code == "cache"]


def test_what_auto_chose_is_said_and_stays_when_the_run_goes_on(go, memory):
    path, events = go()  # masks with ignored pixels aren't cropped on the device
    assert kept(path) == "ram"
    assert [note for note in told(events) if note.startswith("Cache: ram (")]
    assert not warned(events)
    memory[1] = 6 * GIB  # as if nothing fitted any more
    memory[0] = 10_000 * GIB
    _, events = go(resume=path)
    assert kept(path) == "ram"
    assert not [note for note in told(events) if note.startswith("Cache")]


def test_memory_that_runs_out_is_said_and_ends_nothing(go, memory):
    memory[1] = 1000
    path, events = go("data.cache=ram")
    assert kept(path) == "ram"
    messages = warned(events)
    assert any("decoded in each epoch" in message for message in messages)
    assert any("is full: 0 of" in message for message in messages)


def test_where_memory_is_short_auto_keeps_nothing(go, memory):
    memory[1] = 1000
    path, events = go()
    assert kept(path) == "off"
    assert "do not fit" in " ".join(told(events))
