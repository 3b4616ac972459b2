"""The first line of the live screen."""

import re
from itertools import pairwise
from random import Random

import pytest

from mptui.events import Alert, Paused, PhaseChanged, Progress
from mptui.runs.listing.difference import ForkWords
from mptui.runs.store.heartbeat import SILENT_S
from mptui.runs.view.history import RunMoment
from mptui.runs.view.run_view import RunView
from mptui.text import clock
from mptui.tui.widgets.header import headline
from tests.tui.events import run_started, step_event


def test_an_alert_is_red_until_it_is_over():
    view = RunView()
    view.handle(PhaseChanged(phase="training"))
    view.handle(Alert(code="diverging", message="the run diverges"))
    state = headline(view, 0.0, 120)
    assert "▲ diverging" in state.plain
    assert view.log[-1].tone == "bad"
    view.handle(Alert(code="diverging", message="the loss has come down again", over=True))
    assert "● training" in headline(view, 0.0, 120).plain


@pytest.mark.parametrize(("nodes", "words"), [(1, "8 ranks"), (2, "8 ranks on 2 nodes")])
def test_the_number_of_ranks_is_told_at_80_columns_also_while_they_start_again(nodes, words):
    view = RunView()
    view.handle(run_started(ranks=8, nodes=nodes))
    view.handle(PhaseChanged(time=10.0, phase="training"))
    assert words in headline(view, 10.0, 80).plain
    view.handle(Paused())
    view.handle(PhaseChanged(time=20.0, phase="restarting"))
    line = headline(view, 50.0, 80).plain
    assert "▲ restarting" in line
    assert "30 s" in line
    assert words in line
    view.handle(run_started(ranks=8, nodes=nodes, resumed_from_step=10))
    view.handle(PhaseChanged(phase="training"))
    assert "● training" in headline(view, 0.0, 80).plain


def test_a_run_of_one_process_has_no_number_of_ranks():
    view = RunView()
    view.handle(run_started())
    assert "rank" not in headline(view, 0.0, 160).plain


@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_run_without_a_sign_is_amber_says_for_how_long_and_promises_no_end(width):
    view = fork_view()
    assert "ends" in headline(view, 10.0, 160, silent_s=SILENT_S - 0.1).plain
    line = headline(view, 10.0, width, silent_s=75.0)
    assert "▲ training, no sign for 1 min 15 s" in line.plain
    assert line.plain.count("for ") == 1
    assert "left" not in line.plain
    assert "ends" not in line.plain
    place = line.plain.index("no sign")
    styles = [str(span.style) for span in line.spans if span.start <= place < span.end]
    assert any("$text-warning" in style for style in styles)


@pytest.mark.parametrize("left_s", [60.0, 30 * 3600.0, 40 * 86400.0])
def test_an_end_on_another_day_moves_nothing(monkeypatch, left_s):
    view = fork_view()
    before = headline(view, 10.0, 140).plain
    monkeypatch.setattr(RunView, "remaining_s", lambda _: left_s)
    line = headline(view, 10.0, 140).plain
    assert [line.index(word) for word in ("training", "epoch", "step", "left")] == [
        before.index(word) for word in ("training", "epoch", "step", "left")
    ]


def test_a_pause_says_since_when_and_by_whom_and_promises_no_end():
    view = fork_view()
    view.handle(Paused(time=0.0, by="key"))
    for width in (62, 80, 140):
        line = headline(view, 3600.0, width).plain
        assert "■ paused" in line
        assert f"since {clock(0.0)} by key" in line
        assert "left" not in line
        assert "ends" not in line
    view.handle(Paused(time=0.0))  # of an earlier version
    assert f"since {clock(0.0)}  " in headline(view, 3600.0, 140).plain


def test_a_phase_says_how_long_it_lasts_where_there_is_room():
    line = headline(fork_view(), 95.0, 160).plain
    assert re.search("● training +for 1 min 25 s", line)
    assert "for" not in headline(fork_view(), 95.0, 80).plain


def test_an_earlier_moment_has_the_names_and_the_state_of_then():
    past = fork_view()
    past.handle(Paused(time=30.0))
    past.profile, past.precision, past.time, past.is_past = "stable", "fp32", 40.0, True
    line = headline(past, 100.0, 140, RunMoment(40.0, 40, 40.0)).plain
    assert "stable" in line
    assert "■ paused   ◂ 1 min  0 s ago, step 40, fp32; Esc: now" in line
    unread = headline(past, 100.0, 140, RunMoment(20.0, 20, 20.0)).plain
    assert "◂ 1 min 20 s ago, step 20; Esc: now" in unread
    assert "paused" not in unread


COMPARED = ForkWords("bf16 is 1.9x ahead, loss +0.002", "1.9x ahead, loss +0.002", compares=True)


def fork_view():
    view = RunView()
    view.handle(run_started())
    view.handle(PhaseChanged(time=10.0, phase="training"))
    view.epoch, view.epochs = 12, 100
    view.handle(step_event(14_302, 10.0, Random(0)))
    return view


@pytest.mark.parametrize(
    ("width", "kept", "gone"),
    [
        (160, ["bf16 is 1.9x ahead, loss +0.002", "epoch", "step", "left", "ends"], []),
        (111, ["bf16 is 1.9x ahead, loss +0.002", "epoch", "step", "left"], ["ends", "shapes"]),
        (100, ["1.9x ahead, loss +0.002", "epoch", "step", "left"], ["bf16"]),
        (81, ["1.9x ahead, loss +0.002", "step", "left"], ["epoch", "bf16"]),
        (66, ["1.9x ahead, loss +0.002", "step"], ["left"]),
        (51, ["1.9x ahead, loss +0.002"], ["step"]),
        (32, ["● training"], ["ahead"]),
    ],
)
def test_what_a_fork_says_of_its_parent_gives_way_in_order(width, kept, gone):
    line = headline(fork_view(), 10.0, width, None, fork=COMPARED).plain
    assert len(line) <= width
    assert "● training" in line
    assert [words for words in kept if words not in line] == []
    assert [words for words in gone if words in line] == []


def test_a_comparison_stands_out_and_the_lack_of_one_does_not():
    for words, style in ((COMPARED, "$text-accent"), (ForkWords("its parent is gone", "gone"), "$quiet")):
        line = headline(fork_view(), 10.0, 160, None, fork=words)
        place = line.plain.index(words.long)
        assert style in [str(span.style) for span in line.spans if span.start <= place < span.end]
    past = headline(fork_view(), 10.0, 160, RunMoment(5.0, 40, 5.0), fork=COMPARED).plain
    assert "ahead" not in past


@pytest.mark.parametrize("width", [60, 80, 100, 120, 130, 140, 200])
def test_what_stands_in_the_header_stays_in_place_over_the_phases_of_an_epoch(width):
    view = fork_view()
    lines = [headline(view, 11.0, width).plain]
    for event in (
        PhaseChanged(time=12.0, phase="validating"),
        Progress(time=13.0, phase="validating", done=1, total=50),
        Progress(time=14.0, phase="validating", done=50, total=50),
        PhaseChanged(time=15.0, phase="training"),
    ):
        view.handle(event)
        lines.append(headline(view, 16.0, width).plain)
    places = [[line.find(words) for words in ("●", " epoch ", " step ", "left")] for line in lines]
    assert [one for one, other in pairwise(places) if one != other] == []
    assert "● validating" in lines[2]
    assert ("validating 50 of 50" in lines[3]) == (width >= 100)
