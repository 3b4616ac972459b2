"""A new event is its class and one entry of `EVENTS`: all readers of a run's events support it."""

import io
import json
from dataclasses import dataclass, fields
from typing import ClassVar

import pytest
from rich.console import Console

from mptui.cli.console import Plain
from mptui.events import Event, Validated
from mptui.runs.session.session import Session
from mptui.runs.store.directory import create_run, read_summary
from mptui.runs.store.index import read_run
from mptui.runs.trackers.feeder import scalars_of
from mptui.runs.view.run_view import RunView
from mptui.runs.view.specs import EVENTS, EventSpec
from tests.made.runs import LIMIT_S, UNET, plan_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharpness(Event):
    """The sharpness of the loss was measured."""

    kind: ClassVar[str] = "sharpness"

    value: float


def show(view, event):
    view.record("sharpness", "largest", event.step, event.value)


def summarize(document, event):
    document["sharpness"] = event.value


SPEC = EventSpec(
    event=Sharpness,
    handle=show,
    log_lines=lambda event: [(f"sharpness {event.value}", "quiet")],
    console_lines=lambda event: [f"sharpness: {event.value}"],
    summarize=summarize,
    scalars=lambda event: [("val/sharpness", event.value)],
)


class MeasuringSession(Session):
    """Emits the event after each validation."""

    def _emit(self, event):
        super()._emit(event)
        if isinstance(event, Validated):
            super()._emit(Sharpness(step=event.step, value=2.5))


@pytest.fixture
def ended(monkeypatch, tmp_path):
    """Return the directory of a two-step run with one such event, and the events that it emitted."""
    monkeypatch.setitem(EVENTS, "sharpness", SPEC)
    run = create_run(tmp_path, "test", "unet", "run")
    session = MeasuringSession(plan_of({**UNET, "data.samples": 16, "training.epochs": 1}), run)
    heard = session.listen()
    session.start()
    assert session.wait(LIMIT_S)
    assert session.result.exit_code == 0
    return run, heard.drain()


def is_shown(view):
    return view.histories["sharpness"]["largest"].tail(1).tolist() == [2.5] and "sharpness 2.5" in [
        line.text for line in view.log
    ]


def test_it_is_in_the_files_the_view_the_log_the_console_and_the_trackers(ended):
    run, events = ended
    (event,) = [each for each in events if isinstance(each, Sharpness)]

    records = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [(each["step"], each["value"]) for each in records if each["event"] == "sharpness"] == [(2, 2.5)]
    assert read_summary(run)["sharpness"] == 2.5

    live, out = RunView(), io.StringIO()
    console = Plain(Console(file=out), ("on", "off"))
    for each in events:
        live.handle(each)
        console.handle(each)
    assert is_shown(live)
    assert is_shown(read_run(run))
    assert "\nsharpness: 2.5\n" in out.getvalue()
    assert scalars_of(event) == {"val/sharpness": 2.5}


def test_an_entry_without_a_handler_is_an_error():
    given = {field.name: getattr(SPEC, field.name) for field in fields(SPEC)}
    del given["handle"]
    with pytest.raises(TypeError, match="handle"):
        EventSpec(**given)
