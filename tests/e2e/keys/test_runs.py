"""Every key of the list of runs, of the comparison, and of the dialogs above them."""

import re

import pytest

from mptui.runs.listing.rows import ORDERS
from tests.e2e.keys.walk import Walk
from tests.tui.events import demo, finished
from tests.tui.test_runs_screen import a_run

pytestmark = pytest.mark.slow

RUNS = 24
FIRST, LAST = "run-00", f"run-{RUNS - 1}"


@pytest.fixture
def folder(tmp_path):
    """A folder of runs, of which the newest two have curves."""
    events = [*demo()[::4], finished()]
    for number in range(RUNS):
        a_run(tmp_path / "runs", f"run-{number:02}", age_s=60.0 * number, events=events if number < 2 else ())
    return tmp_path / "runs"


def test_every_key_of_the_list_of_runs(terminal, folder):
    program = terminal(arguments=("attach", FIRST))
    walk = Walk(program)
    program.shows("✓ completed")
    program.send("o", "down", "enter")  # the runs are not read yet when the second key comes
    program.until(lambda: "✓ completed" in program.text and f"{RUNS} runs" not in program.text, "the second")
    program.press("o")
    program.shows(f"{RUNS} runs in")
    walk.help("runs")
    cursor(walk)
    sorting(walk)
    comparing(walk)
    changing(walk, folder)
    walk("runs.resume", "r", "this program only watches runs")
    walk("runs.open", "enter", walk.gone(" runs in"), "✓ completed")
    walk.pressed_all("runs")
    program.press("q")
    assert program.exit_code() == 0
    assert program.is_restored()


def under(walk):
    """Return the run under the cursor: the line with another background."""
    display, cells = walk.program.screen.display, walk.program.screen.buffer
    lines = [n for n, line in enumerate(display) if re.search(r"run-\d\d", line)]
    colours = [cells[n][30].bg for n in lines]
    odd = [n for n, bg in zip(lines, colours, strict=True) if colours.count(bg) == 1]
    found = re.search(r"run-\d\d", display[odd[0]]) if len(odd) == 1 else None
    return found[0] if found else ""


def cursor(walk):
    """Move the cursor, key by key and in one packet."""
    for name, key, run in (
        ("down", "down", "run-01"),
        ("up", "up", FIRST),
        ("last", "end", LAST),
        ("first", "home", FIRST),
        ("down", "j", "run-01"),
        ("up", "k", FIRST),
        ("last", "G", LAST),
        ("first", "g", FIRST),
        ("next", "n", "run-01"),
        ("previous", "N", FIRST),
    ):
        walk(f"list.{name}", key, lambda run=run: under(walk) == run)
    walk("list.page_down", "pagedown", lambda: under(walk) > "run-05")
    walk("list.page_up", "pageup", lambda: under(walk) == FIRST)
    walk.program.send("end", "up", "up", "home", "down", "down", "down", "up")
    walk.program.until(lambda: under(walk) == "run-02", "the same run")
    walk.program.send("home")
    walk.program.until(lambda: under(walk) == FIRST, "the first run")


def sorting(walk):
    """Filter and sort."""
    program = walk.program
    walk("runs.filter", "slash", "words of a name")
    program.send(*"run-1", "enter")
    program.shows(f"10 of {RUNS} runs")
    program.press("escape")
    program.until(walk.gone(f"10 of {RUNS}"), "all runs")
    for order in (*ORDERS[1:], ORDERS[0]):
        walk("runs.sort", "s", f"runs · {order.name} ")
    program.send("s", "slash", *"run-2", "enter", "s", "s")
    program.shows(f"runs · {ORDERS[3].name} ")
    program.shows(f"4 of {RUNS} runs")
    program.send("backspace", *"s" * (len(ORDERS) - 3), "home")
    program.until(lambda: under(walk) == FIRST and f"runs · {ORDERS[0].name} " in program.text, "all runs")


def comparing(walk):
    """Compare two runs."""
    program = walk.program
    walk("runs.fork", "f", f"fork {FIRST} at")
    program.press("escape")
    program.until(walk.gone(f"fork {FIRST} at"), "the runs")
    walk("runs.pin", "t", f"○✓ {FIRST}")
    program.press("t")
    program.until(walk.gone("○"), "no run behind the charts")
    walk("runs.mark", "space", f"1 ✓ {FIRST}")
    program.press("space")
    program.shows("2 ✓ run-01")
    walk("runs.compare", "c", "comparing 2 runs", "1 run-00")
    walk.help("compare", but={"chart", "compare.first", "compare.last"})
    walk("compare.metric", "m", walk.gone("╭─ loss · train"))
    walk("compare.log_axis", "y", "log axis ─")
    walk("compare.smoothing", "s", "not smoothed")
    walk("compare.all_values", "z", "all values")
    walk("compare.filter", "slash", "words of a setting or")
    program.press("escape")
    program.until(walk.gone("words of a setting or"), "the differences")
    walk("compare.focus", "tab", walk.recoloured(0, 1))
    for first, last in (("home", "end"), ("g", "G")):
        walk("compare.last", last, lambda: at_step(walk) > 14_000)
        walk("compare.first", first, lambda: at_step(walk) < 1_000)
    program.press("escape")
    program.until(walk.gone("┊"), "no cursor in the chart")
    walk("compare.close", "c", walk.gone("comparing 2 runs"))
    program.send("c", "m", "y", "tab", "left")  # the curves are not read yet when the second key comes
    program.until(
        lambda: "log axis ─" in program.text and "╭─ loss · train" not in program.text, "the next curve"
    )
    program.send("backspace", "c")
    program.until(walk.gone("comparing 2 runs"), "the runs")
    program.press("escape")
    program.until(walk.gone(f"1 ✓ {FIRST}"), "no marks")


def at_step(walk):
    """Return the step at which the cursor of the chart is."""
    found = re.search(r" step ([\d,]+) ", walk.program.text)
    return int(found[1].replace(",", "")) if found else 5_000


def changing(walk, folder):
    """Rename a run, remove old checkpoints, and delete some, each after a question."""
    program = walk.program
    program.press("home")
    program.until(lambda: under(walk) == FIRST, "the first run")
    walk("runs.rename", "e", "name of the run")
    program.send("ctrl+u", *"baseline", "enter")
    program.until(lambda: (folder / "baseline").exists() and "✓ baseline" in program.text, "the name")
    for stay in ("escape", "backspace"):
        walk("runs.clean", "p", "free 2 MiB?")
        walk("clean.stay", stay, walk.gone("free 2 MiB?"))
    program.press("p")
    program.shows("free 2 MiB?")
    walk("clean.clean", "p", lambda: kept(folder / "baseline") == 2, "cleaned up: baseline")
    program.press("down")
    program.until(lambda: under(walk) == "run-01", "the next run")
    program.press("p")
    program.shows("free 2 MiB?")
    walk("clean.clean", "enter", lambda: kept(folder / "run-01") == 2, walk.gone("free 2 MiB?"))
    program.send("down", "p", "p")  # the dialog is not there yet when the second key comes
    program.until(lambda: kept(folder / "run-02") == 2, "less")
    program.press("up")
    program.until(lambda: under(walk) == "run-01", "the run before")
    for stay in ("escape", "backspace"):
        walk("runs.delete", "x", "delete this run?")
        walk("delete.stay", stay, walk.gone("delete this run?"))
    program.press("x")
    program.shows("delete this run?")
    walk("delete.delete", "x", lambda: not (folder / "run-01").exists(), f"{RUNS - 1} runs")
    program.send("end", "space", "up", "up", "space", "x", "x")
    program.until(lambda: len([*folder.iterdir()]) == RUNS - 3, "two fewer")


def kept(run):
    """Return the number of checkpoints of a run."""
    return len([*(run / "checkpoints").glob("step-*")])
