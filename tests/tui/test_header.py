"""The first line of the live screen."""

from mptui.events import Alert, PhaseChanged
from mptui.runs.view.run_view import RunView
from mptui.tui.widgets.live.header import headline


def test_an_alert_is_red_until_it_is_over():
    view = RunView()
    view.handle(PhaseChanged(phase="training"))
    view.handle(Alert(code="diverging", message="the run diverges"))
    state = headline(view, 0.0, 120)
    assert "▲ training, diverging" in state.plain
    assert view.log[-1].tone == "bad"
    view.handle(Alert(code="diverging", message="the loss has come down again", over=True))
    assert "● training" in headline(view, 0.0, 120).plain
