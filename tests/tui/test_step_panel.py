"""The panel with the parts of a step's time."""

from mptui.events import Step
from mptui.runs.view.run_view import RunView
from mptui.tui.widgets.panels import step_line

PARTS = ("data", "copy", "forward", "backward", "optimizer", "logging", "saving", "other")


def test_the_time_beside_the_parts_is_theirs():
    view = RunView()
    view.handle(
        Step(
            step=1,
            epoch=1,
            epoch_step=1,
            steps=1,
            samples_seen=8,
            loss=1.0,
            loss_min=1.0,
            loss_max=1.0,
            lr=0.1,
            step_time_s=0.701,
            split=dict.fromkeys(PARTS, 0.05),
        )
    )
    assert "400" in step_line(view)[0].plain
