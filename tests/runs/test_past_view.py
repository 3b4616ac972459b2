import json

import pytest

from mptui.events import Step, Warned, to_record
from mptui.runs.store import past as store_past
from mptui.runs.store.journal import NAME
from mptui.runs.store.past import completed, folded_until, lines_until
from mptui.runs.view.run_view import RunView
from tests.tui.events import START, demo, demo_source, run_started, step_event


def written(folder, events):
    lines = [json.dumps(to_record(event), separators=(",", ":")) + "\n" for event in events]
    (folder / NAME).write_text("".join(lines))
    return folder


def folded(events):
    view = RunView()
    for event in events:
        view.handle(event)
    return view


def view_of_demo():
    return demo_source().view


def test_the_search_finds_the_same_lines_as_reading_all(tmp_path, monkeypatch):
    monkeypatch.setattr(store_past, "_CHUNK", 1 << 10)
    events = demo()
    path = written(tmp_path, events) / NAME
    every = path.read_bytes().splitlines()
    for time in (0.0, events[0].time, events[3].time, events[400].time + 0.01, events[-1].time, 9e9):
        expected = [line for line, event in zip(every, events, strict=True) if round(event.time, 3) <= time]
        assert lines_until(path, time, 1 << 30) == (True, expected)
        complete, last = lines_until(path, time, 3000)
        assert last == expected[len(expected) - len(last) :]
        assert complete == (len(last) == len(expected))


def test_a_line_longer_than_a_block_and_a_torn_end_are_no_obstacle(tmp_path, monkeypatch):
    monkeypatch.setattr(store_past, "_CHUNK", 1 << 8)
    events = [Warned(time=START + n, code="w", message="x" * 5000 * (n % 2)) for n in range(20)]
    path = written(tmp_path, events) / NAME
    with path.open("ab") as file:
        file.write(b'{"event":"step","time":1')
    for count in range(1, 21):
        assert len(lines_until(path, START + count - 1, 1 << 30)[1]) == count
    path.write_bytes(b"\x00" * 4000)
    assert lines_until(path, START, 1 << 30) == (True, [])


@pytest.mark.parametrize("searched", [4 << 20, 20_000])
def test_the_view_of_a_moment_has_what_the_run_had_then(tmp_path, monkeypatch, searched):
    monkeypatch.setattr(store_past, "SEARCHED", searched)
    events = demo()
    run, now = written(tmp_path, events), view_of_demo()
    moment = now.timeline.moment_at(9000)
    past = completed(folded_until(run, moment), now, moment)
    assert past.latest is not None
    assert past.device is not None
    assert past.started is not None
    steps = [event for event in events if isinstance(event, Step) and event.time <= moment.time]
    assert past.latest.step == steps[-1].step
    assert past.latest.split == steps[-1].split
    assert past.device.time <= moment.time
    assert past.device.time > moment.time - 5
    assert (past.profile, past.precision) == ("fast", "fp16")
    assert (past.started.model, past.epoch) == ("resnet50", steps[-1].epoch)
    assert (past.best, past.by_epoch) == (now.best, now.by_epoch)
    assert past.best
    assert past.log
    assert all(line.time <= moment.time for line in past.log)
    norms = past.histories["gradient norm"]["norm"]
    assert norms.end_x <= 9000 < now.histories["gradient norm"]["norm"].end_x
    before = now.timeline.moment_at(2000)
    assert completed(folded_until(run, before), now, before).profile == "stable"


def test_without_a_journal_the_log_of_then_is_shown(tmp_path):
    now = folded(demo())
    moment = now.timeline.moment_at(5000)
    for run in (None, tmp_path / "gone"):
        past = completed(folded_until(run, moment), now, moment)
        assert past.log[-1].time <= moment.time
        assert past.started is now.started


def test_a_moment_before_a_resume_has_what_the_run_was_started_with(tmp_path, monkeypatch, chance):
    monkeypatch.setattr(store_past, "SEARCHED", 20_000)
    events = demo()
    end = events[-1].time
    events += [run_started(time=end + 60, step=14_000, batch_size=50), step_event(14_300, end + 70, chance)]
    run, now = written(tmp_path, events), folded(events)
    moment = now.timeline.moment_at(9000)
    past = completed(folded_until(run, moment), now, moment)
    assert past.started is not None
    assert past.started.batch_size == 100
    assert now.started is not None
    assert now.started.batch_size == 50
