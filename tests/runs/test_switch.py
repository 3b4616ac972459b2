"""Other settings in the middle of a run."""

import os

import pytest

from mptui.engine.control import Command
from mptui.events import CommandAnswered, EpochFinished, Paused, PresetSwitched, Step
from mptui.runs.directory import create_run
from mptui.runs.plan import Request, plan_run
from mptui.runs.session import Session

SETTINGS = {
    "model.name": "unet",
    "model.width": 4,
    "model.depth": 1,
    "data.name": "shapes",
    "data.image_size": 16,
    "data.samples": 32,
    "training.batch_size": 8,
    "training.epochs": 3,
    "logging.step_interval_s": 0,
    "hardware.device": "cpu",
}


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Run to the end, with one command after the first step, where the run waits for it; its events."""
    monkeypatch.setenv("MPTUI_CONFIG_DIR", str(tmp_path / "config"))

    def go(command, argument):
        flags = {key: ("test", value) for key, value in SETTINGS.items()}
        run = create_run(tmp_path, "test", "unet", None)
        session = Session(plan_run(Request("stable", flags, (), os.environ)), run)
        session.mailbox.post(Command("pause"))
        heard = session.listen()
        session.start()
        events = []
        while not session.finished:
            heard.wait(0.1)
            for event in heard.drain():
                events.append(event)
                if isinstance(event, Paused):
                    session.send(command, argument)
                    session.send("resume")
        events += heard.drain()
        assert session.result.exit_code == 0
        return events, run

    return go


def answer(events, command):
    return [e for e in events if isinstance(e, CommandAnswered) and e.command == command][-1]


def test_one_setting_can_be_changed_and_the_run_goes_on_from_there(asked):
    events, run = asked("set", "training.batch_size=4")

    switch = next(e for e in events if isinstance(e, PresetSwitched))
    assert switch.changes["training.batch_size"] == ["8", "4"]
    assert switch.profile == switch.previous == "stable"
    assert answer(events, "set").state == "done"
    seen = [e for e in events if isinstance(e, Step)][-1].samples_seen
    assert seen == 3 * 32  # none is lost, none comes twice
    assert [e.epoch for e in events if isinstance(e, EpochFinished)] == [1, 2, 3]
    assert "batch_size = 4" in (run / "run.toml").read_text()


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("model.width=8", "can't change in a run"),
        ("data.wrokers=2", "data.workers"),
        ("training.batch_size=many", "training.batch_size"),
    ],
)
def test_what_can_not_be_changed_is_refused_with_the_reason(asked, setting, why):
    events, _ = asked("set", setting)

    refused = answer(events, "set")
    assert refused.state == "refused"
    assert why in refused.detail
    assert not any(isinstance(e, PresetSwitched) for e in events)
