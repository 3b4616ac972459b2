"""Every key that looks at a run: its charts, its timeline, its log, and the screens above."""

import json
import re
from dataclasses import replace

import pytest

from mptui.events import Alert, to_record
from mptui.runs.store.directory import claim
from mptui.runs.store.files import Records
from mptui.runs.store.journal import NAME as JOURNAL
from tests.e2e.keys.walk import Walk
from tests.runs.made_pictures import BLUE, RED, pictures, sample
from tests.tui.events import demo
from tests.tui.test_numerics import looked
from tests.tui.test_pictures_screen import made
from tests.tui.test_ranks_screen import many
from tests.tui.test_runs_screen import a_run

pytestmark = pytest.mark.slow

NAME = "recorded"
HELP_ENDS = ("escape", "backspace", "q", "question_mark", "f1")
LOG = 8


@pytest.fixture
def recorded(tmp_path):
    """A run with all that the screens show, held by this process as if it were training."""
    run = a_run(tmp_path / "runs", NAME, status="running")
    groups = {
        "worst": [sample(number, RED, file=f"{number}.png") for number in range(40)],
        "random": [sample(1, BLUE)],
        "by class": [],
    }
    records = Records(run)
    shown = made(records.write_pictures(pictures(3, 9, groups=groups)))
    records.close()
    events = demo()
    time, step = events[-1].time, events[-1].step
    write(run, *events, *(replace(event, time=time, step=step) for event in (shown, looked(), many())))
    held = claim(run)
    yield run
    held.release()


def write(run, *events):
    """Add events to the journal."""
    with (run / JOURNAL).open("a") as journal:
        journal.writelines(f"{json.dumps(to_record(event))}\n" for event in events)


def test_every_key_that_looks_at_a_run(terminal, recorded):
    program = terminal(arguments=("attach", NAME))
    walk = Walk(program)
    program.shows("h hide")
    alerts(walk, recorded)
    charts(walk)
    timeline(walk)
    log(walk)
    panels(walk)
    metrics(walk)
    numerics(walk)
    pictures_screen(walk)
    ranks(walk)
    memory(walk)
    walk.pressed_all("recorded run")
    program.press("q")
    assert program.exit_code() == 0
    assert program.is_restored()


def alerts(walk, run):
    """Hide the advice of the run, and take what the next alert offers."""
    program = walk.program
    walk("live.hide", "h", walk.gone("h hide"))
    last = demo()[-1]
    write(run, Alert(time=last.time, step=last.step, code="disk", message="the disk is nearly full"))
    program.shows("a open the runs")
    walk("live.advice", "a", "runs · newest")
    program.press("escape")
    program.until(lambda: "╭─ loss" in program.text and "h hide" not in program.text, "no alert")


def charts(walk):
    """Change what the charts show, step by step and in one packet."""
    program = walk.program
    walk("live.log_axis", "y", "log axis ─")
    walk("live.smoothing", "s", "not smoothed")
    walk("live.all_values", "z", "all values")
    program.send("z")
    program.send("y", "s")
    program.until(lambda: "log axis ─" not in program.text and "smoothed" not in program.text, "as before")
    walk("live.closer", "plus", "last 5,000")
    walk("live.closer", "equals_sign", "last 2,000")
    walk("live.wider", "minus", "last 5,000")
    for name, keys in (
        ("pan_earlier", ("less_than_sign", "comma")),
        ("pan_later", ("greater_than_sign", "full_stop")),
    ):
        for key in keys:
            before = steps(walk)
            walk(f"live.{name}", key, lambda before=before: steps(walk) != before)
    program.send("comma")
    program.until(lambda: steps(walk).startswith("steps"), "earlier steps")
    walk("live.whole", "0", lambda: not steps(walk))
    program.send("+", "+", "-", ",", "y", "s")
    program.until(lambda: "log axis · not smoothed · steps" in program.text, "all of it")
    program.send("0", "y", "s")
    program.until(lambda: not steps(walk) and "smoothed" not in program.text, "as before")


def steps(walk):
    """Return the words of the steps that the charts show, "" for all."""
    found = re.search(r"(last|steps) [\d,]+( to [\d,]+)?", walk.program.text)
    return found[0] if found else ""


def moment(walk):
    """Return the step of the earlier moment that the screen shows, "" for now."""
    found = re.search(r"ago, step (\d+(?:,\d{3})*)", walk.program.text)
    return found[1] if found else ""


def moves(walk, name, key):
    before = moment(walk)
    walk(name, key, lambda: moment(walk) != before)


def timeline(walk):
    """Go back and forward in time: by the chart that has the focus, then by the timeline."""
    program = walk.program
    moves(walk, "chart.earlier", "left")
    moves(walk, "chart.earlier", "left")
    moves(walk, "chart.later", "right")
    for key in ("end", "G"):
        walk("live.now", key, lambda: not moment(walk))
        program.press("left")
        program.until(lambda: moment(walk), "an earlier moment")
    program.press("end")
    program.until(lambda: not moment(walk), "now")
    moves(walk, "live.leap_earlier", "pageup")
    moves(walk, "live.leap_earlier", "pageup")
    moves(walk, "live.leap_later", "pagedown")
    for key in ("home", "g"):
        walk("live.beginning", key, lambda: moment(walk) == "0")
        program.press("end")
        program.until(lambda: not moment(walk), "now")
    program.press("l")
    program.until(walk.gone("╭─ loss"), "the log, which has the focus")
    moves(walk, "live.earlier", "left")
    moves(walk, "live.earlier", "left")
    typed = moment(walk)
    moves(walk, "live.later", "right")
    program.send("l", "end", "l", "left", "left", "right", "left")
    program.until(lambda: moment(walk) == typed, "the same moment")
    program.send("l", "end")
    program.shows("╭─ loss")


def log(walk):
    """Scroll the log."""
    program = walk.program
    walk("live.log", "l", walk.gone("╭─ loss"))
    for earlier, later in (("up", "down"), ("pageup", "pagedown"), ("k", "j")):
        walk("log.earlier", earlier, walk.changed(LOG))
        walk("log.later", later, walk.changed(LOG))
    for start, end in (("home", "end"), ("g", "G")):
        walk("log.first", start, walk.changed(LOG))
        walk("log.last", end, walk.changed(LOG))
    program.press("l")
    program.shows("╭─ loss")


def panels(walk):
    """Scroll the panels of a flat terminal, and show the pages of a small one."""
    program = walk.program
    program.resize(100, 18)
    program.shows("╭─ mixed precision")
    program.send("tab", "tab")  # the second chart, then the panels
    for down, up in (("down", "up"), ("pagedown", "pageup"), ("j", "k")):
        walk("column.later", down, "time per step", walk.gone("╭─ mixed precision"))
        walk("column.earlier", up, "╭─ mixed precision", walk.gone("time per step"))
    for end, start in (("end", "home"), ("G", "g")):
        walk("column.last", end, "time per step", walk.gone("╭─ mixed precision"))
        walk("column.first", start, "╭─ mixed precision", walk.gone("time per step"))
    program.resize(80, 24)
    program.until(walk.gone("╭─ mixed precision"), "the first page")
    walk("live.page", "tab", "╭─ top-1")
    program.send("tab", "tab", "tab")
    program.until(lambda: "╭─ top-1" in program.text, "the same page")
    program.send("tab", "tab")
    program.shows("╭─ loss")


def metrics(walk):
    """Choose what the charts show, and in which grid."""
    program = walk.program
    for key in HELP_ENDS:
        program.press("question_mark")
        program.shows("Esc: close")
        walk("help.close", key, walk.gone("Esc: close"))
    walk("live.metrics", "slash", "metrics: names and globs")
    program.send(*"*scale, lear, norm")
    program.shows("╭─ loss scale ")
    program.send("enter")
    program.until(walk.gone("*scale, lear, norm "), "the charts")
    walk("live.charts_later", "right_parenthesis", "╭─ gradient norm")
    walk("live.charts_earlier", "left_parenthesis", "╭─ loss scale ")
    program.send("slash", "escape")
    program.shows("╭─ loss ")
    program.resize(120, 36)
    program.shows("╭─ mixed precision")
    walk("live.more_columns", "right_square_bracket", " 2x2 ")
    walk("live.more_rows", "right_curly_bracket", " 3x2 ")
    walk("live.fewer_rows", "left_curly_bracket", " 2x2 ")
    walk("live.fewer_columns", "left_square_bracket", " 2x1 ")
    program.send("[", "{", "{")
    program.until(walk.gone(" 2x1 "), "as it fits")
    program.resize(80, 24)
    program.until(walk.gone("╭─ mixed precision"), "the first page")


def numerics(walk):
    """Choose a layer and a part."""
    program = walk.program
    walk("live.numerics", "n", "layers by risk", "layer4.2.conv3 · gradients")
    walk.help("numerics")
    walk("numerics.later", "down", "layer3.0.conv1 · gradients")
    walk("numerics.later", "j", "fc · outputs")
    walk("numerics.earlier", "up", "layer3.0.conv1 · gradients")
    walk("numerics.earlier", "k", "layer4.2.conv3 · gradients")
    for name, key, layer in (
        ("last", "end", "fc · outputs"),
        ("first", "home", "layer4.2.conv3 · gradients"),
        ("last", "G", "fc · outputs"),
        ("first", "g", "layer4.2.conv3 · gradients"),
        ("page_down", "pagedown", "fc · outputs"),
        ("page_up", "pageup", "layer4.2.conv3 · gradients"),
    ):
        walk(f"numerics.{name}", key, layer)
    walk("numerics.filter", "slash", "words of a layer's name")
    program.send("o", "enter")
    program.shows("· /o")
    program.press("n")
    program.until(lambda: chosen_layer(walk) == "layer3.0.conv1", "the next match")
    walk("numerics.previous", "N", lambda: chosen_layer(walk) == "layer4.2.conv3")
    program.press("escape")
    program.until(walk.gone("· /o"), "all layers")
    walk("numerics.part", "tab", "14,297 · outputs")
    walk("numerics.close", "n", walk.gone("layers by risk"))
    program.send("n", "tab", "tab", "down")
    program.shows("layer3.0.conv1 · gradients")
    program.send("n", "n", "j")
    program.shows("layer3.0.conv1 · gradients")
    program.press("backspace")
    program.until(walk.gone("layers by risk"), "the charts")


def chosen_layer(walk):
    """Return the layer under the cursor."""
    found = re.search(r"▸ (\S+)", walk.program.text)
    return found[1] if found else ""


def pictures_screen(walk):
    """Turn the tabs, choose pictures, show one large and copy the name of its file."""
    program = walk.program
    walk("live.pictures", "i", "worst · 1–")
    walk.help("pictures")
    walk("pictures.next", "tab", "random · 1 of 1")
    walk("pictures.previous", "shift+tab", "worst · 1–")
    first = sample_chosen(walk)
    for name, key, is_first in (
        ("right", "right", False),
        ("left", "left", True),
        ("later", "down", False),
        ("later", "j", False),
        ("earlier", "up", False),
        ("earlier", "k", True),
        ("page_down", "pagedown", False),
        ("page_up", "pageup", True),
        ("last", "end", False),
        ("first", "home", True),
        ("last", "G", False),
        ("first", "g", True),
    ):
        before = sample_chosen(walk)
        walk(f"pictures.{name}", key, lambda before=before: sample_chosen(walk) not in ([], before))
        assert (sample_chosen(walk) == first) == is_first
    walk("pictures.filter", "slash", "words of a class or of")
    program.send(*"png", "enter")
    program.shows(" /png")
    walk("pictures.match", "n", lambda: sample_chosen(walk) not in ([], first))
    walk("pictures.match_before", "N", lambda: sample_chosen(walk) == first)
    program.press("escape")
    program.until(walk.gone(" /png"), "all images")
    walk("pictures.open", "enter", "worst · 1 of 40")
    walk("pictures.copy", "c", "is in the clipboard")
    program.press("backspace")
    program.shows("worst · 1–")
    walk("pictures.close", "i", walk.gone("worst · 1–"))
    program.send("i", "tab", "tab")  # the pictures are not there yet when the second key comes
    program.shows("rows are true classes")
    program.press("backspace")
    program.until(walk.gone("rows are true classes"), "the charts")


def sample_chosen(walk):
    """Return the file of the chosen picture."""
    return re.findall(r"▸ \w+ +(\S+)", walk.program.text)


def ranks(walk):
    """Scroll and sort the ranks."""
    program = walk.program
    walk("live.ranks", "R", " of 64 by rank")
    walk.help("ranks")
    program.until(lambda: rows(walk), "the ranks")
    first = rows(walk)
    for name, key in (
        ("later", "down"),
        ("later", "j"),
        ("earlier", "up"),
        ("earlier", "k"),
        ("page_down", "pagedown"),
        ("page_up", "pageup"),
    ):
        before = rows(walk)
        walk(f"ranks.{name}", key, lambda before=before: rows(walk) != before)
    assert rows(walk) == first
    for start, end in (("home", "end"), ("g", "G")):
        walk("ranks.last", end, lambda: rows(walk).endswith("64"))
        walk("ranks.first", start, lambda: rows(walk) == first)
    walk("ranks.filter", "slash", "words of a rank, its host")
    program.send("1", "enter")
    program.shows(" · /1")
    program.shows("R charts")
    part = re.compile(r"ranks · (\d+-\d+) of")
    before = part.findall(program.text)
    walk("ranks.match", "n", lambda: part.findall(program.text) not in ([], before))
    walk("ranks.match_before", "N", lambda: part.findall(program.text) == before)
    program.press("escape")
    program.until(walk.gone(" · /1"), "all ranks")
    walk("ranks.sort", "s", " of 64 by slowest")
    walk("ranks.close", "R", walk.gone(" of 64 by"))
    program.send("R", "s", "s", "pagedown", "down", "k")
    program.until(lambda: rows(walk).startswith("9-") and "by data" in program.text, "a page further")
    program.send("R", "m")
    program.shows("╭─ measured")
    program.press("m")


def rows(walk):
    """Return which ranks are shown."""
    found = re.search(r"(\d+-\d+) of 64", walk.program.text)
    return found[1] if found else ""


def memory(walk):
    """Look at the memory, and back."""
    program = walk.program
    program.until(walk.gone("╭─ measured"), "the charts")
    walk("live.memory", "m", "╭─ measured", "╭─ predicted")
    walk.help("memory")
    walk("memory.close", "m", walk.gone("╭─ measured"))
