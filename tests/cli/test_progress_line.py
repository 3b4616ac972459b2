"""The progress line: whole figures at 80 columns, one line at any width, and a bar in the rest."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from mptui.cli.console import Bars, Plain
from mptui.events import EpochStarted, Event, PhaseChanged, Progress
from tests.made.events import step_of
from tests.tui.events import run_started

WHOLE = "120/1200 loss=2.3456 198.6 img/s 3.12 it/s 0:09:00 left mp: on top-1=0.123 lr=1.00e-01"


def line_at(width: int, *events: Event) -> str:
    """Return the last line on a terminal of `width` columns."""
    out = io.StringIO()
    view = Bars(Console(file=out, width=width, force_terminal=True, color_system=None), ("on", "fp32"))
    for event in events:
        view.handle(event)
    view._progress.refresh()
    shown = out.getvalue()
    view.close()
    return shown.rpartition("\x1b[2K")[2].split("\n")[-1].rstrip("\r")


def trained(*, epoch=1, steps=1200, at=(1, 120), second_s=0.5, rate=198.6, step_time_s=0.32, loss=2.3456):
    """Return the events of an epoch, with a step at each of these times."""
    yield run_started()
    yield EpochStarted(epoch=epoch, epochs=epoch, steps=steps)
    for n in at:
        yield step_of(
            n,
            time=1000 + n * second_s,
            epoch=epoch,
            steps=n - 1 or 1,
            loss=loss,
            samples_per_second=rate,
            step_time_s=step_time_s,
            metrics={"acc1": 0.1234},
        )


def test_without_a_terminal_a_step_is_of_the_steps_that_its_epoch_has():
    out = io.StringIO()
    view = Plain(Console(file=out), ("on", "fp32"))
    for event in trained(steps=9, at=(1,)):  # the batch was changed: the run began with 1,267
        view.handle(event)
    assert "epoch 1 step 1/9  198.6 img/s" in out.getvalue()


def test_at_80_columns_the_figures_are_whole():
    line = line_at(80, *trained())
    for figure in (
        "Epoch 1 [Train]",
        "120/1200",
        "198.6 img/s",
        "3.12 it/s",
        "0:09:00 left",  # 1,080 steps of half a second
        "loss=2.3456",
    ):
        assert figure in line
    assert "…" not in line


def test_at_80_columns_large_figures_are_whole_and_only_the_bar_is_gone():
    large = trained(
        epoch=100, steps=20018, at=(1, 2), second_s=4.4, rate=12345.6, step_time_s=0.00517, loss=10.12345
    )
    line = line_at(80, *large)
    for figure in ("2/20018", "12,346 img/s", "193.4 it/s", "12:52:01 left", "loss=10.1235"):
        assert figure in line
    assert "━" not in line


def test_a_wider_line_has_the_rest_and_the_bar():
    line = line_at(140, *trained())
    for figure in ("mp: on", "top-1=0.123", "lr=1.00e-01", "━━━"):
        assert figure in line


@pytest.mark.parametrize("width", range(20, 161, 7))
def test_at_any_width_it_is_one_line_of_whole_parts(width):
    line = line_at(width, *trained())
    assert cell_len(line) <= width
    parts = line.replace("Epoch 1 [Train]", "").split()
    figures = " ".join(part for part in parts if not set(part) <= set("━╸╺"))
    assert (WHOLE + " ").startswith(figures + " " if figures else "")
    assert "left" in figures or "━" not in line


def test_a_validation_has_its_count_and_the_time_left():
    validating = PhaseChanged(phase="validating", total=40)
    line = line_at(80, *trained(), validating, Progress(phase="validating", done=10, total=40))
    assert "Epoch 1 [Val]" in line
    assert "10/40" in line
    assert line.endswith("left")
