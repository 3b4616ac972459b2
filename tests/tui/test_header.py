"""The first line of the live screen."""

import pytest

from mptui.events import Alert, Paused, PhaseChanged
from mptui.runs.view.run_view import RunView
from mptui.tui.widgets.live.header import headline
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
