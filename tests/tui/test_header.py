"""The first line of the live screen."""

import pytest

from mptui.events import Alert, Paused, PhaseChanged
from mptui.runs.listing.difference import ForkWords
from mptui.runs.view.history import RunMoment
from mptui.runs.view.run_view import RunView
from mptui.tui.widgets.header import headline
from tests.tui.events import run_started


def test_an_alert_is_red_until_it_is_over():
    view = RunView()
    view.handle(PhaseChanged(phase="training"))
    view.handle(Alert(code="diverging", message="the run diverges"))
    state = headline(view, 0.0, 120)
    assert "▲ training, diverging" in state.plain
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


COMPARED = ForkWords("bf16 is 1.9x ahead, loss +0.002", "1.9x ahead, loss +0.002", compares=True)


def fork_view():
    view = RunView()
    view.handle(run_started())
    view.handle(PhaseChanged(time=10.0, phase="training"))
    view.epoch, view.epochs, view.step = 12, 100, 14_302
    return view


@pytest.mark.parametrize(
    ("width", "kept", "gone"),
    [
        (160, ["bf16 is 1.9x ahead, loss +0.002", "epoch", "step", "left", "ends"], []),
        (110, ["bf16 is 1.9x ahead, loss +0.002", "epoch", "step", "left"], ["ends", "shapes"]),
        (100, ["1.9x ahead, loss +0.002", "epoch", "step", "left"], ["bf16"]),
        (80, ["1.9x ahead, loss +0.002", "step", "left"], ["epoch", "bf16"]),
        (62, ["1.9x ahead, loss +0.002", "step"], ["left"]),
        (50, ["1.9x ahead, loss +0.002"], ["step"]),
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
