"""Situations of a run, each with what header, alert, list, summary and report say: all from its events."""

import json
import random
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from mptui.events import (
    Advice,
    Alert,
    CommandAnswered,
    EpochFinished,
    Paused,
    PhaseChanged,
    Recovered,
    Resumed,
    RunFinished,
    StepSkipped,
    Validated,
    Warned,
    to_record,
)
from mptui.lab.report.pages import markdown_page
from mptui.lab.report.report import read_report
from mptui.runs.listing.rows import row_of
from mptui.runs.remote.feed import OwnFeed
from mptui.runs.session.ending import concerns_of
from mptui.runs.store import journal
from mptui.runs.store.directory import CONFIG, SUMMARY
from mptui.runs.store.files import Summary
from mptui.runs.store.past import completed, folded_until
from mptui.runs.view.run_view import RunView
from mptui.tui.widgets.header import alert_lines, headline
from mptui.tui.widgets.run_list import laid_out, run_line
from tests.tui.events import START, left, run_started, step_event, switched

WIDTH = 160


@dataclass
class Told:
    """What is said of a run; `log` and `report` are the texts of all lines."""

    header: str
    alert: str
    line: str
    summary: dict[str, object]
    report: str
    log: str


def written(events):
    """Return the lines of a journal."""
    return "".join(json.dumps(to_record(event), separators=(",", ":")) + "\n" for event in events)


def folded(events):
    view = RunView()
    for event in events:
        view.handle(event)
    return view


def told(folder, *events):
    """Return what is said of a run with these events, whose directory is written to `folder`."""
    summary = Summary("run", str(folder))
    for event in events:
        summary.handle(event)
    end = events[-1]
    if isinstance(end, RunFinished):
        summary.document |= {
            "status": end.status,
            "concerns": concerns_of({**summary.document, "status": end.status}),
        }
        events = (*events[:-1], replace(end, concerns=summary.document["concerns"]))
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_text("[training]\nlr = 0.1\n")
    (folder / SUMMARY).write_text(json.dumps(summary.document))
    (folder / journal.NAME).write_text(written(events))
    view, row = folded(events), row_of(folder, summary.document)
    alerts = sorted(view.alerts, key=lambda alert: ["bad", "warn", "plain"].index(alert.tone))
    return Told(
        header=headline(view, events[-1].time, WIDTH).plain,
        alert="\n".join(line.plain for line in alert_lines(alerts[0], len(alerts), WIDTH, {}))
        if alerts
        else "",
        line=run_line(row, laid_out(WIDTH)).plain,
        summary=summary.document,
        report=markdown_page([read_report(folder, 0)], None),
        log="\n".join(line.text for line in view.log),
    )


# -- events


def steps(first, last, **changes):
    return [
        step_event(at, START + at, random.Random(0), steps=1, **{"skipped_steps": 0, **changes})
        for at in range(first, last + 1)
    ]


def validated(step, loss, accuracy, *, best=True):
    metrics = {"acc1": accuracy}
    return Validated(
        time=START + step, step=step, epoch=step // 10, loss=loss, metrics=metrics, seconds=1.0, best=best,
        primary="acc1",
    )  # fmt: skip


def epoch(step, loss):
    return EpochFinished(
        time=START + step, step=step, epoch=step // 10, epochs=10, train_loss=1.0, train_metrics={},
        val_loss=loss, val_metrics={"acc1": 0.5}, lr=0.1, seconds=10.0,
    )  # fmt: skip


def rollback(time, step):
    action = f"learning rate 0.1 → 0.05, back to step {step}: the loss is far too high"
    return Recovered(time=START + time, step=step, problem="divergence", action=action)


ended = partial(RunFinished, status="completed", exit_code=0, seconds=100.0)
start = partial(run_started, epochs=10, steps_per_epoch=10, total_steps=100, precision="fp16")
BEGUN = [start(), *steps(1, 10), validated(10, 1.0, 0.5), epoch(10, 1.0)]
SWITCHED = [*BEGUN, switched(10), *steps(11, 30), validated(30, 0.5, 0.8)]
UNDO = [left(30), switched(10, undone=True)]
ASKED = CommandAnswered(time=START + 30, step=30, command="preset", state="asked", detail="fast")


@pytest.mark.parametrize("paused", [False, True], ids=["training", "paused"])
def test_an_undo(tmp_path, paused):
    pause = [Paused(time=START + 30, step=30)] if paused else []
    found = told(tmp_path / "run", *SWITCHED, *pause, *UNDO, *([] if paused else steps(11, 14)))
    assert ("■ paused" if paused else "● training") in found.header
    assert re.search(r"step +1[04] ", found.header)
    assert found.alert == ""
    assert "top-1 50.0 %" in found.line
    assert found.summary["best"]["value"] == 0.5
    assert "switch undone: stable at step 10" in found.log
    assert "| 0 | 30 | ended by undo | top-1 80.0 % at step 30 |" in found.report
    assert "top-1 50.0 % in epoch 1" in found.report


def test_an_undo_of_an_undo_has_the_best_of_the_branch_that_it_goes_back_to(tmp_path):
    again = replace(switched(30, undone=True), profile="fast", previous="stable")
    other = [*steps(11, 14), validated(14, 0.9, 0.6), left(14)]
    found = told(tmp_path / "run", *SWITCHED, *UNDO, *other, again, *steps(31, 31))
    assert "top-1 80.0 %" in found.line
    assert re.search(r"step +31 ", found.header)
    assert "| 10 | 14 | ended by undo | top-1 60.0 % at step 14 |" in found.report
    assert "| 30 | 31 | in force | top-1 80.0 % at step 30 |" in found.report


@pytest.mark.parametrize("times", [1, 8])
def test_rollbacks(tmp_path, times):
    again = [event for n in range(times) for event in (rollback(30 + n, 10), *steps(11, 12))]
    events = [*BEGUN, *steps(11, 30), validated(30, 0.5, 0.8), *again]
    going = told(tmp_path / "run", *events)
    assert "● training" in going.header
    assert re.search(r"step +12 ", going.header)
    assert going.summary["best"]["value"] == 0.5
    assert len(going.summary["recoveries"]) == times
    found = told(tmp_path / "run", *events, ended(time=START + 90, step=12))
    doubtful = times == 8
    assert ("▲ completed" if doubtful else "✓ completed") in found.header
    assert ("rolled back 8 times" in found.alert) == doubtful
    assert ("▲ run" in found.line) == doubtful
    assert bool(found.summary["concerns"]) == doubtful
    assert found.report.count("ended by rollback") == times
    assert "back to step 10: the loss is far too high" in found.report


def test_all_steps_skipped(tmp_path):
    skipped = []
    for at in range(1, 25):
        skipped += steps(at, at, skipped_steps=at, nonfinite=1, loss=float("nan"))
        skipped.append(StepSkipped(time=START + at, step=at, count=1, total=at, streak=at, loss_scale=1.0))
    events = [start(), *skipped]
    found = told(tmp_path / "run", *events)
    assert "▲ skipped steps" in found.header
    assert "nothing is learned" in found.alert
    assert found.log.count("skipped") == 1
    well = told(tmp_path / "run", *events, *steps(25, 25, skipped_steps=24))
    assert "● training" in well.header
    assert well.alert == ""
    found = told(tmp_path / "run", *events, ended(time=START + 90, step=24))
    assert "▲ completed" in found.header
    assert "24 of 24 steps were skipped" in found.alert
    assert "▲ run" in found.line
    assert "| skipped steps | 24 |" in found.report


def test_a_search_for_the_loss_scale_is_no_alert(tmp_path):
    skips = [
        StepSkipped(time=START + at, step=at, count=1, total=at, streak=at, loss_scale=1.0)
        for at in range(1, 17)
    ]
    assert told(tmp_path / "run", start(), *skips).alert == ""


def test_a_finite_divergence(tmp_path):
    high = Alert(time=START + 14, step=14, code="diverging", message="the run is diverging: its loss is 31")
    lower = Advice(time=START + 14, step=14, code="diverging", message="lower", setting="training.lr=0.01")
    events = [*BEGUN, *steps(11, 14, loss=31.0), high, lower]
    found = told(tmp_path / "run", *events)
    assert "▲ diverging" in found.header
    assert "its loss is 31" in found.alert
    assert "training.lr=0.01" in found.alert
    over = Alert(time=START + 15, step=15, code="diverging", message="the loss is normal again", over=True)
    well = told(tmp_path / "run", *events, over)
    assert ("● training" in well.header, well.alert) == (True, "")
    bad = [validated(20, 66_908_414_648.0, 0.5, best=False), epoch(20, 66_908_414_648.0)]
    found = told(tmp_path / "run", *events, *bad, ended(time=START + 90, step=20))
    assert "▲ completed" in found.header
    assert "its validation loss went from 1.00 up to" in found.alert
    assert "▲ run" in found.line
    assert "top-1 50.0 % in epoch 1" in found.report


def test_a_full_disk_that_has_room_again(tmp_path):
    at: dict[str, Any] = {"time": START + 14, "step": 14}
    full = [
        *BEGUN, *steps(11, 14), Warned(**at, code="disk", message="the disk is full; the run waits"),
        PhaseChanged(**at, phase="paused", detail="waiting for the disk"), Paused(**at, by="disk"),
    ]  # fmt: skip
    found = told(tmp_path / "run", *full)
    assert "■ paused" in found.header
    assert "the disk is full; the run waits" in found.alert
    assert "open the runs" in found.alert
    assert "left" not in found.header
    freed = [
        Recovered(**at, problem="disk", action="saved after waiting 9 s; no step is lost"),
        Resumed(**at), *steps(15, 15),
    ]  # fmt: skip
    well = told(tmp_path / "run", *full, *freed)
    assert ("● training" in well.header, well.alert) == (True, "")
    assert well.summary["recoveries"][0]["kind"] == "disk"
    assert "saved after waiting 9 s; no step is lost" in well.report
    assert "Branches" not in well.report


def test_a_stall_of_8_000_events_hides_no_pause(tmp_path):
    """A screen that has read nothing meanwhile: what no longer fitted into memory comes from the journal."""
    (one,), count, kept = steps(1, 1), 8_000, 100
    head, tail = written([one]).split('"step":1,', 1)
    lines = [
        f'{head}"step":{at},{tail}'.replace(f"{START + 1}", f"{START + at}", 1) for at in range(1, count + 1)
    ]
    lines.insert(5_000, written([Paused(time=START + 5_000, step=5_000)]))
    (tmp_path / journal.NAME).write_text(written([start()]) + "".join(lines))
    feed, at = OwnFeed(tmp_path, capacity=kept), 0
    feed.position = 0
    for number, line in enumerate([written([start()]), *lines]):  # all but the last ones are dropped
        at += len(line)
        near = number > len(lines) - kept
        feed.handle(replace(one, step=number - 1, time=START + number - 1) if near else one, at, at)
    view = folded(feed.drain())
    assert view.paused
    assert view.step == 8_000
    assert "■ paused" in headline(view, START + 2_001, WIDTH).plain


def test_a_look_back_across_a_branch(tmp_path):
    """The steps of the branch that was left come back with the look, and with its profile."""
    events = [*SWITCHED, *(replace(each, time=START + 31) for each in UNDO)]
    events += [replace(each, time=START + 30 + each.step) for each in steps(11, 14)]
    told(tmp_path / "run", *events)
    now = folded(events)
    moment = now.timeline.moment_at(28)
    past = completed(folded_until(tmp_path / "run", moment), now, moment)
    header = headline(past, START + 44, WIDTH, moment).plain
    assert "step 28" in header
    assert "fast" in header
    assert "● training" in header
    assert past.latest is not None
    assert past.latest.step == 28
    assert (now.profile, now.step) == ("stable", 14)


GONE = re.compile(r"\bacc[15]\b|\bpreset\b|\bNone\b|\bnone →|→ none\b")
"""Words that have another one: top-1, profile, unset."""


def test_words_that_are_gone_stay_gone(tmp_path):
    changed = replace(switched(10), changes={"training.clip_grad_norm": ["unset", "1.0"]})
    plateau = Advice(time=START + 31, step=30, code="plateau", message="top-1 is no better for 8 epochs")
    events = [*BEGUN, ASKED, changed, *SWITCHED[-21:], plateau, ended(time=START + 90, step=30)]
    found = told(tmp_path / "run", *events)
    text = "\n".join([found.header, found.alert, found.line, found.report, found.log])
    assert not GONE.findall(text)
    assert "profile fast requested" in text
    assert "clip_grad_norm unset → 1.0" in text
