"""Console lines while nothing changes."""

import io

import pytest
from rich.console import Console

from mptui.cli.console import Bars, Plain
from mptui.events import PhaseChanged

ICONS = ("on", "off")
COMPILING = PhaseChanged(phase="compiling", detail="default", expected_s=110.0, known_from="the last time")


def shown(renderer, *events):
    """Return the lines on a console of 100 columns."""
    out = io.StringIO()
    view = renderer(Console(file=out, width=100, force_terminal=False), ICONS)
    for event in events:
        view.handle(event)
    view.close()
    return out.getvalue()


def test_a_log_says_how_long_compiling_took_the_last_time():
    assert "compiling default (about 1 min 50 s the last time) …" in shown(Plain, COMPILING)
    first = PhaseChanged(phase="compiling", detail="default")
    assert "compiling default …" in shown(Plain, first)


def test_a_log_says_what_is_being_measured():
    assert "measuring bf16 …" in shown(Plain, PhaseChanged(phase="preparing", detail="measuring bf16"))
    assert shown(Plain, PhaseChanged(phase="preparing")) == ""


@pytest.mark.parametrize(("after", "counted"), [((), True), ((PhaseChanged(phase="training"),), False)])
def test_a_bar_counts_the_seconds_of_a_compile_until_it_is_over(after, counted):
    view = Bars(Console(file=io.StringIO(), width=100, force_terminal=True), ICONS)
    for event in (COMPILING, *after):
        view.handle(event)
    words = [task.description for task in view._progress.tasks]
    view.close()
    assert ("compiling (about 1 min 50 s the last time)" in words) is counted
