"""The index of a run: with the rest of the journal it yields the same view as the whole journal."""

import hashlib
import json
import math
import os
import random
import tempfile
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mptui.events import (
    Advice,
    Alert,
    CheckpointSaved,
    CommandAnswered,
    Diagnosed,
    EpochFinished,
    EpochStarted,
    Event,
    Forked,
    ImagesGenerated,
    LayersThawed,
    LengthPlanned,
    LossScale,
    MemorySample,
    Numerics,
    Paused,
    PhaseChanged,
    PrecisionChanged,
    PresetSwitched,
    Progress,
    Recovered,
    Resumed,
    RunFinished,
    StepSkipped,
    Suspended,
    Validated,
    Warned,
)
from mptui.runs.store import index
from mptui.runs.store import journal as store_journal
from mptui.runs.store.index import NAME, Index, read_index, read_run, to_document
from mptui.runs.store.journal import NAME as JOURNAL
from mptui.runs.store.journal import Journal, parsed, read_journal
from mptui.runs.view.run_view import RunView
from mptui.runs.view.specs import EVENTS
from tests.tui.events import START, device_sample, rank_row, ranks_sampled, run_started, step_event, training

CHANCE = random.Random(0)
NUMBERS = st.integers(-64, 64).map(lambda number: number / 8) | st.sampled_from([math.nan, math.inf])
"""Eighths: their sums are exact in any order."""

KINDS = {
    "step": lambda at, y: step_event(at["step"], at["time"], CHANCE, loss=y, loss_min=y, loss_max=y + 1),
    "metrics": lambda at, y: step_event(at["step"], at["time"], CHANCE, loss=1.0, metrics={"iou": y}),
    "device": lambda at, y: device_sample(at["time"], at["step"], CHANCE),
    "resumed": lambda at, y: run_started(**{**at, "step": at["step"] // 2}, resumed_from_step=1),
    "started": lambda at, y: run_started(**at),
    "forked": lambda at, y: Forked(
        **at, parent="one", profile="stable", changed=["training.lr"], model="unet"
    ),
    "thawed": lambda at, y: LayersThawed(**at, trained=10, parameters=10),
    "phase": lambda at, y: PhaseChanged(**at, phase="compiling", detail="x"),
    "progress": lambda at, y: Progress(**at, phase="validating", done=1, total=9),
    "epoch": lambda at, y: EpochStarted(**at, epoch=at["step"] // 9 + 1, epochs=9, steps=9),
    "planned": lambda at, y: LengthPlanned(
        **at, epochs=5, total_steps=40, planned_lr=[[at["step"], 0.1], [40, 0.0]]
    ),
    "validated": lambda at, y: Validated(**at, epoch=1, loss=y, metrics={"acc1": y}, seconds=2.0, best=y > 0),
    "ended": lambda at, y: EpochFinished(
        **at,
        epoch=at["step"] // 9 + 1,
        epochs=9,
        train_loss=y,
        train_metrics={},
        val_metrics={"acc1": y},
        lr=0.1,
        seconds=1.0,
    ),
    "saved": lambda at, y: CheckpointSaved(**at, path="p", reason="epoch", seconds=1.0, size_bytes=5),
    "skipped": lambda at, y: StepSkipped(**at, count=1, total=at["step"], streak=1),
    "scale": lambda at, y: LossScale(
        **at,
        scale=2.0,
        lowest=1.0,
        highest=4.0,
        growths=1,
        backoffs=1,
        skipped=1,
        streak=0,
        longest_streak=1,
        skip_rate=0.1,
    ),
    "preset": lambda at, y: PresetSwitched(
        **at, profile="stable", previous="fast", changes={"speed.compile": ["a", "off"]}
    ),
    "undone": lambda at, y: PresetSwitched(
        **{**at, "step": at["step"] // 2}, profile="fast", previous="stable", changes={}, undone=True
    ),
    "left": lambda at, y: CheckpointSaved(**at, path="p", reason="left", seconds=1.0, size_bytes=5),
    "rolled back": lambda at, y: Recovered(
        **{**at, "step": at["step"] // 2}, problem="divergence", action="rolled back"
    ),
    "precision": lambda at, y: PrecisionChanged(**at, precision="bf16", previous="fp16", reason="x"),
    "asked": lambda at, y: CommandAnswered(**at, command="validate", state="asked"),
    "taken": lambda at, y: CommandAnswered(**at, command="validate", state="taken"),
    "done": lambda at, y: CommandAnswered(**at, command="validate", state="done"),
    "suspended": lambda at, y: Suspended(**at, seconds=0.5),
    "advice": lambda at, y: Advice(**at, code="a", message="b\x1b", setting="c.d=1\x1b"),
    "alert": lambda at, y: Alert(**at, code="diverging", message="high", over=y > 0),
    "diagnosed": lambda at, y: Diagnosed(
        **at,
        problem="divergence",
        epoch=1,
        precision="fp16",
        where="forward",
        layer="a",
        operation="b",
        detail="c",
    ),
    "numerics": lambda at, y: Numerics(
        **at,
        mode="summary",
        precision="fp16",
        eager=False,
        loss_scale=2.0,
        best_scale=None,
        lost=y,
        lost_at_best=None,
        cost_s=0.1,
        every_s=30.0,
        layers=[],
        others=1,
        others_at_fault=0,
        others_lost=0.0,
    ),
    "ranks": lambda at, y: ranks_sampled([rank_row(0), rank_row(1, wait_s=y)], **at),
    "memory": lambda at, y: MemorySample(**at, peak=at["step"] << 20, reserved=3 << 30, gaps=None),
    "images": lambda at, y: ImagesGenerated(
        **at, epoch=1, path="samples/epoch-0001.png", images=16, seconds=y
    ),
    "predictions": lambda at, y: ImagesGenerated(
        **at, epoch=1, path="predictions/a.png", images=40, seconds=y, what="predictions"
    ),
    "recovered": lambda at, y: Recovered(**at, problem="nan", action="rolled back"),
    "warned": lambda at, y: Warned(**at, code="w", message="\u202eevil"),
    "paused": lambda at, y: Paused(**at),
    "going on": lambda at, y: Resumed(**at),
    "finished": lambda at, y: RunFinished(**at, status="completed", exit_code=0),
}

DO = ["renew", "torn", "again"]
"""Actions between two events: the index is rewritten; a kill tears a line; a resume."""

ACTS = st.lists(st.tuples(st.sampled_from([*KINDS, *DO]), st.integers(0, 4000), NUMBERS), max_size=60)


def test_every_kind_of_event_is_among_them():
    made = {type(make({"step": 1, "time": START}, 1.0)) for make in KINDS.values()}
    assert made == {spec.event for spec in EVENTS.values()}


def whole(folder):
    """Return the view of a run whose journal is read from its first byte, line by line."""
    view = RunView()
    for event in read_journal(folder):
        view.handle(event)
    return to_document(view)


def happen(folder, acts):
    journal, own = Journal(folder), Index(folder)
    step = 0
    for number, (what, far, value) in enumerate(acts):
        if what == "renew":
            own.renew()
        elif what == "torn":
            journal.close()
            with (folder / JOURNAL).open("ab") as file:
                file.write(b'{"event":"step","time":1')
            own.renew()
            journal = Journal(folder)
        elif what == "again":
            own = Index(folder)
        else:
            step = max(0, step + far if far > 9 else step - far)
            journal.write(KINDS[what]({"step": step, "time": START + number}, value))
    journal.close()


@settings(max_examples=60)
@given(acts=ACTS)
def test_index_and_the_rest_of_the_journal_say_what_the_whole_journal_says(acts):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        happen(folder, acts)
        assert to_document(read_run(folder)) == whole(folder)
        Index(folder).renew()
        assert to_document(read_index(folder)[0]) == whole(folder)


def write(folder, events):
    journal = Journal(folder)
    for event in events:
        journal.write(event)
    journal.close()


def story(steps, first=1) -> list[Event]:
    """Some events per step, with losses whose sums are exact."""
    events: list[Event] = [run_started()] if first == 1 else []
    for step in range(first, first + steps):
        loss = step % 7 / 8
        events.append(step_event(step, START + step, CHANCE, loss=loss, loss_min=loss, loss_max=loss))
        if step % 10 == 0:
            events.append(Warned(time=START + step, step=step, code="w", message=f"at {step}"))
    return events


@pytest.fixture
def indexed(tmp_path):
    """Write a run whose index covers part of its journal; return its folder and that part's size."""
    write(tmp_path, story(12))
    Index(tmp_path).renew()
    size = (tmp_path / JOURNAL).stat().st_size
    write(tmp_path, story(6, first=13))
    return tmp_path, size


@pytest.mark.parametrize("every", [113, pytest.param(41, marks=pytest.mark.slow)])
def test_a_journal_cut_at_any_byte_is_told_as_far_as_it_goes(indexed, every):
    folder, size = indexed
    content = (folder / JOURNAL).read_bytes()
    cuts = {*range(0, len(content), every), *range(size - 3, size + 4), len(content) - 1}
    for cut in sorted(cuts):
        (folder / JOURNAL).write_bytes(content[:cut])
        assert to_document(read_run(folder)) == whole(folder), cut
        assert (read_index(folder)[1] == size) == (cut >= size)


def test_an_index_with_any_byte_changed_is_none(indexed):
    folder, _ = indexed
    told, content = whole(folder), (folder / NAME).read_bytes()
    chance = random.Random(1)
    for place in [*range(0, 250, 3), *(chance.randrange(len(content)) for _ in range(100))]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << chance.randrange(8)
        (folder / NAME).write_bytes(damaged)
        assert to_document(read_run(folder)) == told, place
    for cut in (0, 1, 100, len(content) // 2, len(content) - 1):
        (folder / NAME).write_bytes(content[:cut])
        assert read_index(folder)[1] == 0


def rewritten(folder, change):
    """Change header or body of an index, and update its checksums."""
    header, body = map(json.loads, (folder / NAME).read_bytes().split(b"\n"))
    change(header, body)
    second = json.dumps(body).encode()
    header["sha256"] = hashlib.sha256(second).hexdigest()
    (folder / NAME).write_bytes(json.dumps(header).encode() + b"\n" + second)


@pytest.mark.parametrize("version", [index.VERSION - 1, index.VERSION + 1, "1", None])
def test_an_index_of_another_version_is_made_again(indexed, version):
    folder, _ = indexed
    rewritten(folder, lambda header, _: header.update(version=version))
    assert read_index(folder)[1] == 0
    Index(folder).renew()
    assert read_index(folder)[1] == (folder / JOURNAL).stat().st_size


def put(body, *path, value):
    for name in path[:-1]:
        body = body[name]
    body[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("plain",), None),
        (("plain", "step"), "3"),
        (("plain", "time"), 1e300),
        (("plain", "time"), "nan"),
        (("pace",), []),
        (("events",), []),
        (("events", "started"), {"event": "step"}),
        (("events", "latest"), {"event": "paused", "time": 1.0}),
        (("marks",), [{"step": 1, "label": "x", "tone": "loud"}]),
        (("marks",), [{"step": 1, "label": "x", "tone": "plain"}] * 10_000),
        (("lines", 0, "tone"), "[red]"),
        (("lines", 0, "time"), "inf"),
        (("lines",), [{"time": 1.0, "text": "", "tone": "plain", "command": None, "in_log": True}] * 10_000),
        (("curves", 0, "history", "buckets"), "AAAA"),
        (("curves", 0, "history", "buckets"), "%"),
        (("curves", 0, "history", "buckets"), "AAAA" * 100_000),
        (("curves", 0, "history", "width"), 0),
        (("curves", 0, "history", "end_x"), "inf"),
        (("curves",), [{}]),
        (("skips",), {"__reduce__": "os.system"}),
    ],
)
def test_a_forged_index_is_none(indexed, path, value):
    folder, _ = indexed
    rewritten(folder, lambda _, body: put(body, *path, value=value))
    assert read_index(folder)[1] == 0
    assert to_document(read_run(folder)) == whole(folder)


def test_texts_of_a_forged_index_are_made_safe(indexed):
    folder, _ = indexed
    rewritten(folder, lambda _, body: put(body, "plain", "profile", value="\x1b]52;c;AAAA\x07"))
    view, position = read_index(folder)
    assert position
    assert view.profile.isprintable()


def test_what_the_disk_does_not_take_is_written_the_next_time(tmp_path, monkeypatch):
    write(tmp_path, story(5))
    own = Index(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fails)
        own.renew()
    assert sorted(path.name for path in tmp_path.iterdir()) == [JOURNAL]
    own.renew()
    assert to_document(read_index(tmp_path)[0]) == whole(tmp_path)


def fails(*_):
    raise OSError(28, "No space left on device")


def test_nothing_new_writes_nothing(indexed):
    folder, _ = indexed
    own = Index(folder)
    own.renew()
    written = (folder / NAME).stat().st_ino
    own.renew()
    assert (folder / NAME).stat().st_ino == written


@pytest.mark.parametrize("events", [6_000, pytest.param(1_000_000, marks=pytest.mark.chaos)])
def test_of_a_long_run_no_more_is_read_and_kept_than_of_a_short_one(tmp_path, monkeypatch, events):
    lines: list[bytes] = []
    read: list[int] = []
    read_events = store_journal.read_events

    def noted(line):
        lines.append(line)
        return parsed(line)

    def counted(path, start, end=None):
        read.append(path.stat().st_size - start)
        return read_events(path, start, end)

    def measured():
        lines.clear()
        read.clear()
        view = read_run(tmp_path)
        assert view.step == read_run(tmp_path).step > 0
        return len(lines), sum(read), (tmp_path / NAME).stat().st_size

    monkeypatch.setattr(store_journal, "parsed", noted)
    monkeypatch.setattr(index, "read_events", counted)
    happening = training(epochs=10**6)
    renewed(tmp_path, islice(happening, 4_000))
    short = measured()
    renewed(tmp_path, islice(happening, events - 4_000))
    long = measured()
    assert short[0] == long[0]
    assert long[1] <= 1.2 * short[1]
    assert long[2] <= 2 * short[2]  # between half and all of the buckets are in use


def renewed(folder, events):
    """Write events of a run whose index is rewritten regularly, but not for the last 100 of them."""
    journal, own = Journal(folder), Index(folder)
    while some := list(islice(events, 1000)):
        for event in some[:-100]:
            journal.write(event)
        own.renew()
        for event in some[-100:]:
            journal.write(event)
    journal.close()
