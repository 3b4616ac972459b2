"""The list of runs: read quickly, sorted, filtered, opened, compared, renamed, deleted, cleaned up."""

import json
import os
import random
import shutil
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from textual.widgets import Input, OptionList

from mptui.errors import ConfigError, DiskError, RunDirectoryError
from mptui.events import Recovered, to_record
from mptui.io.files import read_regular
from mptui.io.own_files import mark_run
from mptui.runs.listing.difference import RunCurves
from mptui.runs.listing.housekeeping import delete_run, find_leftovers, remove_leftovers, rename_run
from mptui.runs.listing.rows import ORDERS, RUNNING, RunList, chosen_rows
from mptui.runs.store.directory import SUMMARY, claim, read_summary, write_json
from mptui.runs.store.lock import NAME as LOCK
from mptui.tui.app import MptuiApp
from mptui.tui.screens.detection import DetectionScreen
from mptui.tui.screens.page import Page
from mptui.tui.screens.runs import RunsScreen
from mptui.tui.widgets.basics import KeyedList
from mptui.tui.widgets.run_list import ago, heading, laid_out, pinned_runs, run_line, summary_words
from tests.tui.cockpits import quick_scan, until
from tests.tui.events import START, beginning, demo, demo_source, finished, run_started, step_event, training
from tests.tui.frames import DEADLINE_S, frame, seen

NOW = time.time()


def journal_of(events):
    """The lines of a journal."""
    return "".join(f"{json.dumps(to_record(event))}\n" for event in events)


@cache
def demo_journal():
    """The lines of the journal of a run in its third epoch."""
    return journal_of([*beginning(), *training(epochs=2)])


def a_run(folder, name, *, age_s=60.0, journal="", events=(), **summary):
    """A run directory as a run leaves it: settings, summary, journal, two kept and two old checkpoints."""
    run = folder / name
    (run / "checkpoints").mkdir(parents=True)
    mark_run(run)
    lr = summary.pop("lr", 0.1)
    (run / "run.toml").write_text(f'[training]\nlr = {lr}\n[precision]\nmode = "auto"\n')
    (run / "events.jsonl").write_text(journal + journal_of(events))
    for step in (10, 20, 30, 40):
        checkpoint = run / "checkpoints" / f"step-{step:09d}"
        checkpoint.mkdir()
        (checkpoint / "model.safetensors").write_bytes(bytes(1 << 20))
        manifest = {"version": 1, "sha256": "", "files": {"model.safetensors": ""}}
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    (run / "checkpoints" / "last").symlink_to("step-000000040")
    (run / "checkpoints" / "best").symlink_to("step-000000020")
    base = {
        "status": "completed",
        "run": name,
        "started": NOW - age_s,
        "task": "classification",
        "model": "resnet18",
        "dataset": {"name": "shapes"},
        "best": {"epoch": 2, "metric": "acc1", "value": 0.5},
        "samples_per_second": 100.0,
        "time": {"total_s": 60.0},
        "precision": {"used": "bf16"},
    }
    write_json(run / SUMMARY, base | summary)
    return run


@pytest.fixture
def three(tmp_path):
    """Three runs: of an hour, a day and a minute ago."""
    whole = {"journal": demo_journal(), "events": [finished()]}
    a_run(tmp_path, "hour", age_s=3600, samples_per_second=300.0, model="unet", **whole)
    a_run(tmp_path, "day", age_s=86400, status="diverged", best={"metric": None, "value": None}, lr=0.2)
    best = {"epoch": 2, "metric": "acc1", "value": 0.75}
    a_run(tmp_path, "minute", samples_per_second=None, best=best, journal=demo_journal())
    return tmp_path


def listed(app):
    return [option.id for option in app.screen.query_one("#lines", OptionList).options]


@pytest.fixture
def shown(stage):
    """Shows the list of the runs in a folder above a first screen, read."""

    @asynccontextmanager
    async def show(folder, size=(80, 24)):
        async with stage.show(Page(), size) as (app, pilot):
            app.runs = RunList(folder)
            await pilot.press("o")
            await until(app, pilot, " in ")
            yield app, pilot

    return show


async def test_two_hundred_runs_are_listed_by_their_summaries_alone(shown, tmp_path, monkeypatch):
    first = a_run(tmp_path, "run-000", age_s=0, events=demo()[-20:])
    shutil.rmtree(first / "checkpoints")
    for number in range(1, 200):
        run = tmp_path / f"run-{number:03d}"
        shutil.copytree(first, run, symlinks=True)
        (run / SUMMARY).write_text(json.dumps(read_summary(run) | {"started": NOW - number}))
    opened: list[str] = []

    def counted(path, *arguments):
        opened.append(path.name)
        return read_regular(path, *arguments)

    monkeypatch.setattr("mptui.runs.store.directory.read_regular", counted)
    runs = RunList(tmp_path)
    assert [row.name for row in runs.rows()] == [f"run-{number:03d}" for number in range(200)]
    assert opened == [SUMMARY] * 200  # and no journal, no settings
    write_json(tmp_path / "run-007" / SUMMARY, read_summary(tmp_path / "run-007") | {"status": "stopped"})
    opened.clear()
    assert [row.state for row in runs.rows()].count("stopped") == 1
    assert opened == [SUMMARY]  # only the one that has changed
    async with shown(tmp_path) as (app, pilot):
        await until(app, pilot, "200 runs in ")
        await pilot.press("end")
        await pilot.pause()
        await until(app, pilot, "run-199")


def test_a_long_metric_is_cut_and_its_figure_is_not(tmp_path):
    a_run(tmp_path, "run", best={"epoch": 2, "metric": "error_of_all_classes", "value": 3.9e-05})
    (row,) = RunList(tmp_path).rows()
    assert " error… 3.9e-05 " in run_line(row, laid_out(80)).plain
    assert "error_of_all_classes" not in run_line(row, laid_out(200)).plain


def test_a_run_without_a_sign_is_amber_with_the_time_since_and_counts_as_no_training(tmp_path):
    a_run(tmp_path, "run")
    (row,) = RunList(tmp_path).rows()
    silent = replace(row, state=RUNNING, silent_s=2715.0)
    line = run_line(silent, laid_out(140))
    assert line.plain.lstrip().startswith("▲ run")
    assert " no sign 45 min " in line.plain
    assert [str(span.style) for span in line.spans if span.start <= 2 < span.end] == ["$text-warning"]
    assert summary_words([silent, replace(row, state=RUNNING)]) == "2 runs · 1 training · 1 without a sign"


def test_names_have_the_time_of_their_start_where_most_have_room_for_it(tmp_path):
    for name in ("20261120-101500-fast-unet", "20261120-101500-production-resnet50"):
        a_run(tmp_path, name)
    rows = RunList(tmp_path).rows()
    narrow = [run_line(row, laid_out(width)).plain for row in rows for width in (60, 80, 140)]
    assert not any("20261120" in line for line in narrow)
    assert all("20261120" in run_line(row, laid_out(196)).plain for row in rows)


@pytest.mark.parametrize("width", [75, 95, 135, 195])
def test_no_line_of_a_run_is_wider_than_its_list(tmp_path, width):
    a_run(tmp_path, "a-name-that-has-no-end" * 4, model="x" * 40, dataset={"name": "/a/b/" + "y" * 40})
    (row,) = RunList(tmp_path).rows()
    assert heading(laid_out(width)).cell_length == run_line(row, laid_out(width)).cell_length <= width


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(59.7, "59 s"), (3599.0, "59 min"), (86399.0, "23 h"), (131_260 * 86400.0, "> 1 y")],
)
def test_an_age_is_never_sixty_minutes(seconds, words):
    assert ago(0.0, seconds) == words


@pytest.mark.parametrize("no_color", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_the_line_under_the_cursor_is_seen_without_colours(three, monkeypatch, no_color):
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    app = MptuiApp(Page(), runs=three, theme="ansi")
    async with app.run_test() as pilot:
        await pilot.press("o")
        await until(app, pilot, "minute")
        await pilot.press("down")
        await pilot.pause()
        strips = app.screen._compositor.render_strips()
        reversed_ = [[each for each in strip if each.style and each.style.reverse] for strip in strips]
        (chosen,) = (parts for parts in reversed_ if any(each.text.strip() for each in parts))
        words = "".join(each.text for each in chosen).split()
        assert (words[1], words[-2:]) == ("hour", ["1", "h"])  # the whole line, to the age
        # black or white on the terminal's own colours, whatever the colour of the words elsewhere
        assert all(each.style.bgcolor.is_default for each in chosen if each.style and each.style.bgcolor)


def test_columns_stay_aligned_beside_wide_characters(tmp_path):
    a_run(tmp_path, "run", model="模型", dataset={"name": "花の写真"})
    (row,) = RunList(tmp_path).rows()
    assert run_line(row, laid_out(140)).cell_length == heading(laid_out(140)).cell_length


async def test_runs_are_sorted_and_filtered_and_the_cursor_stays_on_its_run(shown, three):
    async with shown(three) as (app, pilot):
        assert listed(app) == ["minute", "hour", "day"]
        await until(app, pilot, "hour")
        row = next(line for line in frame(app).splitlines() if "hour" in line)
        assert row.split()[1:] == ["✓", "hour", "unet", "bf16", "top-1", "50.0", "%", "300", "1", "h", "│"]
        await until(app, pilot, "these differ: lr")
        await pilot.press("down")
        for order, runs in (("name", ["day", "hour", "minute"]), ("state", ["minute", "hour", "day"])):
            await pilot.press("s")
            await until(app, pilot, f"runs · {order}")
            assert listed(app) == runs
        assert app.screen.query_one("#runs").chosen.name == "hour"
        await pilot.press("slash", *"diverged")
        assert await seen(app, pilot, "1 of 3 runs · 1 failed")
        assert listed(app) == ["day"]
        await pilot.press(*["backspace"] * len("diverged"), *"completed")
        await until(app, pilot, "all have the same settings")
        await pilot.press("enter", "escape")
        assert listed(app) == ["minute", "hour", "day"]
        await pilot.press("escape")
        await pilot.pause()
        assert type(app.screen) is Page


async def test_the_best_come_first_where_that_is_the_order(three):
    rows = RunList(three).rows()
    orders = {order.name: [row.name for row in chosen_rows(rows, order)] for order in ORDERS}
    assert orders["best"] == ["minute", "hour", "day"]
    assert orders["images/s"] == ["hour", "day", "minute"]


async def test_a_run_is_opened_and_left_again(shown, three):
    async with shown(three) as (app, pilot):
        await pilot.press("down", "enter")
        await until(app, pilot, "completed")
        await until(app, pilot, "╭─ loss")
        await pilot.press("escape")
        await until(app, pilot, "3 runs")
        await pilot.press("r")
        await until(app, pilot, f"resume it by: mptui resume {three / 'hour'}"[:60])
        await pilot.press("enter")
        await until(app, pilot, "╭─ loss")
        await pilot.press("q")
        await pilot.pause(0.1)
        assert app.has_left


async def test_a_click_chooses_a_run_and_a_second_one_opens_it_once(shown, three):
    async with shown(three) as (app, pilot):
        screen = app.screen
        await pilot.click(KeyedList, offset=(9, 1))
        await pilot.pause()
        assert screen.chosen == three / "hour"
        assert app.screen is screen
        await pilot.double_click(KeyedList, offset=(9, 0))
        await until(app, pilot, "completed")
        assert app.screen.source.run == three / "minute"
        await pilot.press("escape")
        assert isinstance(app.screen, RunsScreen)


@pytest.mark.parametrize("size", [(80, 24), pytest.param((140, 45), marks=pytest.mark.slow)])
async def test_marked_runs_are_compared_curves_over_each_other(shown, three, size):
    async with shown(three, size) as (app, pilot):
        await pilot.press("c")  # the one under the cursor with the one below
        await until(app, pilot, "images/s  ")
        await until(app, pilot, "1 minute")
        await until(app, pilot, "2 hour")
        await until(app, pilot, "top-1 75.0 %, 50.0 %; all have the same settings")
        await pilot.press("slash", *"images", "enter")
        await until(app, pilot, "/images")
        lines = app.screen.query_one(KeyedList)
        assert [option.id for option in lines.options] == ["samples_per_second"]
        await pilot.press("escape")
        assert len(lines.options) > 1
        await pilot.press("c")
        await until(app, pilot, "3 runs")
        await pilot.press("space", "j", "c")  # one is marked, and the cursor is on another
        await until(app, pilot, "2 day")
        await pilot.press("c")
        await until(app, pilot, "3 runs")
        await pilot.press("j", "k", "g", "G", "space", "c")
        await until(app, pilot, "training.lr")
        words = frame(app)
        assert "1 minute" in words
        assert "2 day" in words
        assert "top-1 75.0 %, –; these differ: lr" in words
        assert "loss · train" in words
        await pilot.press("m")
        assert await seen(app, pilot, "loss · validation")


async def test_a_branch_that_a_run_has_left_is_drawn_behind_its_curve(shown, tmp_path):
    """With two runs and with one, in the preview of the list; a run that has left none has none."""
    back = Recovered(time=START + 99, step=20, problem="divergence", action="back to step 20")
    steps = [step_event(at, START + at, random.Random(0)) for at in range(1, 60)]
    a_run(tmp_path, "went back", events=[run_started(), *steps, back, steps[20]])
    a_run(tmp_path, "straight", age_s=90.0, events=[run_started(), *steps])
    async with shown(tmp_path, (120, 40)) as (app, pilot):
        assert await seen(app, pilot, "abandoned")
        await pilot.press("c")
        await until(app, pilot, "1 went back")
        await until(app, pilot, "abandoned")
        assert frame(app).count("abandoned") == 1
        await pilot.press("c")
        await until(app, pilot, "abandoned")
        await pilot.press("down")
        while "abandoned" in frame(app):  # the suite's limit of time ends it
            await pilot.pause(0.02)


async def test_a_pinned_run_is_a_ghost_in_the_live_charts_until_it_is_unpinned(stage, tmp_path):
    steps = [step_event(at, START + at, random.Random(0)) for at in range(1, 60)]
    for name, age_s in (("20261120-101500-earlier", 90.0), ("other", 60.0)):
        a_run(tmp_path, name, age_s=age_s, events=[run_started(), *steps])
    async with stage.live(demo_source(), (120, 40)) as (app, pilot):
        app.runs = RunList(tmp_path)
        await pilot.press("o")
        assert await seen(app, pilot, "earlier")
        await pilot.press("t", "down", "t")
        assert frame(app).count("○") == 2
        later = pinned_runs(MptuiApp(Page()))
        assert [run.name for run in later] == ["other", "20261120-101500-earlier"]
        rename_run(tmp_path / "other", "gone")
        assert [run.name for run in pinned_runs(MptuiApp(Page()))] == ["20261120-101500-earlier"]
        rename_run(tmp_path / "gone", "other")
        await pilot.press("escape")
        assert await seen(app, pilot, "── other   ╌╌ earlier")
        await pilot.press("o")
        assert await seen(app, pilot, "○")
        await pilot.press("t", "down", "t", "escape")
        while "earlier" in frame(app):  # the suite's limit of time ends it
            await pilot.pause(0.02)
        assert "abandoned" not in frame(app)


async def test_a_figure_that_a_run_has_only_now_leaves_the_cursor_of_a_comparison_on_its_line(
    shown, three, monkeypatch
):
    monkeypatch.setattr("mptui.tui.screens.compare.RENEW_S", 0.05)
    async with shown(three) as (app, pilot):
        await pilot.press("c")
        await until(app, pilot, "images/s  ")
        await pilot.press("end")
        lines = app.screen.query_one(KeyedList)
        chosen, before = lines.highlighted_id, lines.option_count
        write_json(
            three / "hour" / SUMMARY,
            read_summary(three / "hour") | {"memory": {"peak_allocated_bytes": 1 << 30}},
        )
        while lines.option_count == before:
            await pilot.pause(0.01)
        assert lines.highlighted_id == chosen


async def test_at_most_eight_are_marked(shown, tmp_path):
    for number in range(9):
        a_run(tmp_path, f"run-{number}", age_s=number)
    async with shown(tmp_path) as (app, pilot):
        await pilot.press(*["space"] * 9)
        assert await seen(app, pilot, "8 runs can be compared at once")
        await until(app, pilot, "8 ✓ run-7")


async def test_a_run_is_renamed_where_the_name_is_free(shown, three):
    async with shown(three) as (app, pilot):
        await pilot.press("e")
        await pilot.pause()
        app.screen.query_one(Input).value = "hour"
        await pilot.press("enter")
        assert await seen(app, pilot, "there is such a directory already")
        app.screen.query_one(Input).value = "baseline"
        await pilot.press("enter")
        await until(app, pilot, "baseline")
    assert read_summary(three / "baseline")["run"] == "baseline"
    assert not (three / "minute").exists()
    assert not (three / "baseline" / LOCK).exists()
    claim(three / "baseline").release()  # no lock of this program is left behind


async def test_a_renamed_run_keeps_the_cursor_though_its_list_was_being_read_already(
    shown, three, monkeypatch
):
    reading, renamed = threading.Event(), threading.Event()
    monkeypatch.setattr("mptui.tui.screens.runs.RENEW_S", 3600)

    def slow_rows(self, rows=RunList.rows):
        found = rows(self)
        reading.set()
        assert renamed.wait(DEADLINE_S)
        return found

    async with shown(three) as (app, pilot):
        await pilot.press("down", "s")
        await until(app, pilot, "runs · name")
        monkeypatch.setattr(RunList, "rows", slow_rows)
        app.screen.poll()
        while not reading.is_set():
            await pilot.pause(0.01)
        await pilot.press("e", *["backspace"] * 4, *"zebra", "enter")
        renamed.set()
        await until(app, pilot, "zebra")
        assert listed(app) == ["day", "minute", "zebra"]
        assert app.screen.chosen.name == "zebra"


async def test_the_cursor_stays_where_a_run_has_gone_and_on_its_run_in_a_terminal_that_was_small(
    shown, three
):
    async with shown(three) as (app, pilot):
        await pilot.press("down", "x", "x")
        await until(app, pilot, "2 runs")
        assert app.screen.chosen.name == "day"
        await pilot.resize_terminal(40, 10)
        a_run(three, "second", age_s=1)
        app.screen.poll()
        await until(app, pilot, "mptui needs 60x16 cells")
        await pilot.resize_terminal(80, 24)
        await until(app, pilot, "second")
        assert app.screen.chosen.name == "day"


async def test_a_run_is_deleted_after_a_question_only(shown, three):
    async with shown(three) as (app, pilot):
        await pilot.press("x")
        await until(app, pilot, "delete this run?")
        await pilot.press("enter", "escape")
        assert (three / "minute").exists()
        await pilot.press("x", "x")
        await until(app, pilot, "2 runs")
    assert not (three / "minute").exists()
    assert (three / "hour" / "run.toml").exists()


async def test_old_checkpoints_are_removed_and_their_space_is_told(shown, three):
    async with shown(three) as (app, pilot):
        await pilot.press("p")
        await until(app, pilot, "free 2 MiB?")
        await until(app, pilot, "2 older checkpoints")
        await pilot.press("p")
        await until(app, pilot, "cleaned up: minute")
    left = sorted(path.name for path in (three / "minute" / "checkpoints").iterdir())
    assert left == ["best", "last", "step-000000020", "step-000000040"]


def test_what_two_runs_share_gives_no_space_back(tmp_path):
    one, other = a_run(tmp_path, "one"), tmp_path / "other"
    other.mkdir()
    os.link(one / "checkpoints/step-000000010/model.safetensors", other / "model.safetensors")
    assert 1 << 20 <= find_leftovers(one).size_bytes < 1 << 21
    assert remove_leftovers(one) == ()
    assert find_leftovers(one).paths == ()


def test_without_a_last_checkpoint_none_is_removed(tmp_path):
    run = a_run(tmp_path, "one")
    for name in ("last", "best"):
        (run / "checkpoints" / name).unlink()
    assert find_leftovers(run).paths == ()


@pytest.mark.parametrize("change", [delete_run, remove_leftovers, lambda run: rename_run(run, "other")])
def test_a_run_that_trains_is_left_alone(tmp_path, change):
    run = a_run(tmp_path, "one")
    claim(run)  # by this process, as a run of the terminal UI
    with pytest.raises(RunDirectoryError, match="is training"):
        change(run)
    assert (run / "checkpoints/step-000000010").exists()


def test_a_deletion_that_was_interrupted_can_be_repeated(tmp_path, monkeypatch):
    run, remove = a_run(tmp_path, "one"), Path.unlink

    def interrupted(path, **options):
        if path.name == SUMMARY:
            raise OSError(5, "Input/output error")
        remove(path, **options)

    monkeypatch.setattr(Path, "unlink", interrupted)
    with pytest.raises(DiskError, match="Input/output error"):
        delete_run(run)
    assert not (run / "checkpoints").exists()
    assert [row.name for row in RunList(tmp_path).rows()] == ["one"]
    monkeypatch.undo()
    delete_run(run)
    assert not run.exists()


def test_a_run_whose_process_has_gone_is_told_from_one_that_trains(tmp_path):
    run = a_run(tmp_path, "one", status="running")
    assert [row.state for row in RunList(tmp_path).rows()] == ["crashed"]
    held = claim(run)
    assert [row.state for row in RunList(tmp_path).rows()] == ["running"]
    held.release()


def test_curves_are_read_again_once_the_run_has_gone_on(tmp_path):
    events, curves = demo(), RunCurves()
    run = a_run(tmp_path, "one", events=events[:200])
    before = curves.read([run])[run]
    assert curves.read([run])[run] is before
    with (run / "events.jsonl").open("a") as journal:
        journal.writelines(f"{json.dumps(to_record(event))}\n" for event in events[200:400])
    assert curves.read([run])[run].step > before.step


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x"])
def test_a_name_stays_inside_the_folder(tmp_path, name):
    run = a_run(tmp_path, "one")
    with pytest.raises(ConfigError):
        rename_run(run, name)


async def test_the_newest_runs_are_beside_the_devices(three):
    first = DetectionScreen(scan=quick_scan, runs=RunList(three))
    app = MptuiApp(first, runs=three)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until(app, pilot, "recent runs · 3 runs · 1 failed")
        await until(app, pilot, "minute")
        await until(app, pilot, "o all runs")
        await pilot.press("o")
        await until(app, pilot, "runs · newest")


@pytest.mark.slow
async def test_the_newest_runs_are_beside_the_chosen_device_where_there_is_room(three):
    app = MptuiApp(DetectionScreen(scan=quick_scan, runs=RunList(three)), runs=three)
    async with app.run_test(size=(140, 45)) as pilot:
        await until(app, pilot, "minute")
        await until(app, pilot, "cpu  ")
        heading = next(line for line in frame(app).splitlines() if "recent runs" in line)
        assert "cpu  " in heading


async def test_a_hostile_summary_hides_no_other_run(shown, three):
    (three / "day" / SUMMARY).write_text('{"started": "x", "best": {"metric": "\\u001b[2J", "value": 1e400}}')
    (three / "hour" / SUMMARY).write_bytes(b"\xff")
    async with shown(three, (140, 45)) as (app, _):
        assert "\x1b" not in frame(app)
        assert len(listed(app)) == 3


async def test_a_screen_is_written_with_two_lines_on_its_run(shown, three, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with shown(three) as (app, pilot):
        await pilot.press("S")
        assert await seen(app, pilot, "written: mptui-runs-")
    (picture,) = tmp_path.glob("mptui-runs-*.svg")
    text = picture.read_text(encoding="utf-8")
    assert "minute" in text
    assert "@font-face" not in text  # nothing is loaded from elsewhere
    first, second = picture.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    assert first == "minute · resnet18 · shapes · bf16 · in 1 min 0 s"
    assert "completed, best top-1 0.7500 in epoch 2" in second


async def test_a_screen_that_cant_be_written_is_told(shown, three, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mptui.tui.share.replace_file", full)
    async with shown(three) as (app, pilot):
        await pilot.press("S")
        assert await seen(app, pilot, "No space left on device")
