"""Fast reading of a long journal: rare events and spikes are kept, and few lines are parsed."""

import itertools
import json
import math
from dataclasses import replace
from functools import cache, partial

import pytest

from mptui.events import DeviceSample, Event, Progress, Step, Validated, Warned, to_record
from mptui.runs.store import journal
from mptui.runs.store.journal import NAME, parsed, read_journal
from tests.tui.events import beginning, training

slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture
def small_blocks(monkeypatch):
    """Treat a journal of some hundred kB as long."""
    monkeypatch.setattr(journal, "WHOLE", 20_000)
    monkeypatch.setattr(journal, "BLOCKS", 50)
    monkeypatch.setattr(journal, "RARE", 8)


def write(folder, events):
    with (folder / NAME).open("ab") as file:
        file.writelines(map(line_of, events))
    return folder / NAME


def line_of(event):
    return json.dumps(to_record(event), separators=(",", ":")).encode() + b"\n"


def read(path, start=0, end=None):
    return [event for _, events in journal.read_events(path, start, end) for event in events]


@cache
def run_of(scale=1.0):
    """Some epochs, with losses of another magnitude, a spike up, one down, and a non-finite one."""
    events: list[Event] = [*beginning(), *training(epochs=12)]
    steps = [place for place, event in enumerate(events) if isinstance(event, Step)]
    for place in steps:
        event = events[place]
        assert isinstance(event, Step)
        events[place] = replace(
            event,
            loss=event.loss * scale,
            loss_min=event.loss_min * scale,
            loss_max=event.loss_max * scale,
        )
    spikes: dict[int, dict[str, float]] = {
        101: {"loss_max": 9.5 * scale},
        333: {"loss_min": 0.01 * scale},
        555: {"nonfinite": 3},
        777: {"loss": math.nan, "loss_min": math.nan, "loss_max": math.nan, "nonfinite": 12},
    }
    for number, spike in spikes.items():
        event = events[steps[number]]
        assert isinstance(event, Step)
        events[steps[number]] = replace(event, **spike)  # type: ignore[arg-type]
    return events


@cache
def lines(scale=1.0):
    return [line_of(event) for event in run_of(scale)]


def written(folder, scale=1.0):
    (folder / NAME).write_bytes(b"".join(lines(scale)))
    return folder / NAME


def steps_of(events):
    return [event for event in events if isinstance(event, Step)]


def others_of(events):
    return [event for event in events if not isinstance(event, Step | DeviceSample | Progress)]


def test_a_short_journal_is_read_line_by_line(tmp_path):
    path = write(tmp_path, [*beginning(), *training(epochs=1)])
    assert read(path) == list(read_journal(tmp_path))


@pytest.mark.parametrize("scale", [1.0, slow(1e-7), slow(300.0), slow(1e19)])
def test_no_spike_is_lost_and_few_lines_are_parsed(tmp_path, monkeypatch, small_blocks, scale):
    events, path = run_of(scale), written(tmp_path, scale)
    seen = []

    def counted(line):
        seen.append(line)
        return parsed(line)

    monkeypatch.setattr(journal, "parsed", counted)
    found = read(path)
    steps = steps_of(events)
    kept = steps_of(found)
    assert len(kept) < len(steps) / 5
    assert len(seen) < len(events) / 3
    finite = [step for step in steps if math.isfinite(step.loss_max)]
    assert max(step.loss_max for step in kept) == max(step.loss_max for step in finite) == 9.5 * scale
    assert min(step.loss_min for step in kept) == min(step.loss_min for step in finite) == 0.01 * scale
    for spike in (steps[101], steps[333]):
        (block,) = [
            (one, other) for one, other in itertools.pairwise(kept) if one.step < spike.step <= other.step
        ]
        assert block[1].loss_min <= spike.loss_min
        assert block[1].loss_max >= spike.loss_max
    assert sum(step.nonfinite > 0 for step in kept) == 2
    assert all(step.loss_min <= step.loss <= step.loss_max for step in kept)
    assert sum(step.steps for step in kept) == sum(step.steps for step in steps)


def test_what_is_rare_is_kept_in_its_order_and_the_end_is_whole(tmp_path, small_blocks):
    events, path = run_of(), written(tmp_path)
    found = read(path)
    assert others_of(found) == others_of(list(read_journal(tmp_path)))
    assert to_record(found[-1]) == to_record(events[-1])
    whole = list(read_journal(tmp_path))[-40:]
    assert found[-40:] == whole
    times = [event.time for event in found if not isinstance(event, DeviceSample)]
    assert times == sorted(times)
    assert not any(isinstance(event, Progress) for event in found)  # of a phase that is over


def test_what_happens_often_is_thinned(tmp_path, small_blocks):
    path = write(tmp_path, [Warned(time=1.0, step=step, code="w", message="x" * 40) for step in range(9000)])
    found = read(path)
    assert found[0].step == 0
    assert found[-1].step == 8999
    assert len(found) < 1000


def test_a_journal_is_read_on_from_where_one_stopped(tmp_path, small_blocks):
    path = written(tmp_path)
    (first, *_), *_, (position, _) = journal.read_events(path, 0)
    assert position == path.stat().st_size
    assert first > 0
    write(tmp_path, [Warned(time=1.0, code="later", message="")])
    assert [event.kind for event in read(path, position)] == ["warning"]
    assert read(path, position, position) == []


def test_only_what_lies_before_the_end_is_read(tmp_path, small_blocks):
    events, path = run_of(), written(tmp_path)
    for number in (1, len(events) // 2, len(events) - 1):
        end = sum(len(line) for line in path.read_bytes().splitlines(keepends=True)[:number])
        found = read(path, 0, end)
        assert to_record(found[-1]) == to_record(events[number - 1])


def test_steps_that_another_version_wrote_are_read_too(tmp_path, small_blocks):
    path = tmp_path / NAME
    with path.open("w") as file:
        for event in run_of():
            record = to_record(event)
            file.write(json.dumps({"event": record.pop("event"), "later": 1, **record}) + "\n")
    found = read(path)
    assert len(others_of(found)) > 30
    assert steps_of(found)


@pytest.mark.parametrize(
    "noise",
    [
        b"\n" * 5000,
        b"x" * 30_000 + b"\n",
        b'{"event":"step","t' * 3000 + b"\n",
        b'{"event":"step","time":1}\n' * 2000,
        b'{"event":"step","t","loss_min":"loss_max":,,,\n' * 2000,
        b"\xff\0" * 40_000,
        b"_" * 80_000 + b"\n",
    ],
    ids=lambda noise: noise[:20],
)
def test_what_is_no_event_is_passed_over(tmp_path, monkeypatch, small_blocks, noise):
    monkeypatch.setattr(journal, "LONGEST_LINE", 50_000)
    path = tmp_path / NAME
    path.write_bytes(b"".join([*lines()[:1000], noise, *lines()[1000:]]))
    found = read(path)
    assert to_record(found[-1]) == to_record(run_of()[-1])
    validated = [event for event in found if isinstance(event, Validated)]
    assert len(validated) >= 11


def test_a_torn_last_line_is_left_for_later(tmp_path, small_blocks):
    events, path = run_of(), written(tmp_path)
    size = path.stat().st_size
    whole = to_record(events[-1])
    with path.open("ab") as file:
        file.write(b'{"event":"warn')
    *_, (position, found) = journal.read_events(path, 0)
    assert position == size
    assert to_record(found[-1]) == whole
