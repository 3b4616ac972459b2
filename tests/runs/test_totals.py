"""What a run tells over all its sessions, also with another batch in each."""

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mptui.cli.console import final_lines
from mptui.events import EpochFinished, EpochStarted, Event, RunFinished, RunStarted, Step
from mptui.lab.report.report import read_report
from mptui.runs.listing.forks import find_checkpoint, fork_run
from mptui.runs.listing.rows import RUNNING, RunList
from mptui.runs.listing.table import COLUMNS, listed_runs
from mptui.runs.session.session import LiveChanges
from mptui.runs.store.directory import CONFIG, SUMMARY, read_json, read_summary, write_json
from mptui.runs.store.files import seconds_before
from mptui.runs.store.index import read_run
from mptui.runs.store.journal import read_journal
from mptui.runs.view.run_view import RunView
from mptui.runs.view.words import closing_line
from mptui.tui.widgets.header import headline
from tests.made.runs import UNET, ended, session_of

SESSIONS = (
    {"training.epochs": 1},
    {"training.epochs": 3, "training.batch_size": 32},
    {"training.epochs": 4, "training.batch_size": 4},
)
"""An epoch of 4 steps, two of a step with four times the batch, one of 8 with half of the first."""
TOTALS = [4, 6, 14]


def go_on(run: Path, **changed):
    """Resume a run as the shell does: by the settings that it has recorded."""
    return ended(session_of(run, changed, resume=True, profile=str(run / CONFIG)))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of three sessions."""
    run = tmp_path_factory.mktemp("runs") / "run"
    ended(session_of(run, UNET | SESSIONS[0] | {"checkpoint.keep": 99}))
    for changed in SESSIONS[1:]:
        assert go_on(run, **changed).result.exit_code == 0
    return run


def sessions(run):
    """Return the events of each session."""
    told: list[list[Event]] = []
    for event in read_journal(run):
        if isinstance(event, RunStarted):
            told.append([])
        if told:
            told[-1].append(event)
    return told


def test_each_session_counts_the_steps_ahead_in_its_batch_and_takes_as_many(run):
    view, done = RunView(), []
    for events, total in zip(sessions(run), TOTALS, strict=True):
        for event in events:
            view.handle(event)
            if isinstance(event, RunStarted | EpochStarted):
                assert event.total_steps == total
            if isinstance(event, RunStarted):
                assert event.planned_lr[-1][0] == total
            if isinstance(event, EpochStarted):
                done.append((event.epoch, view.fraction_done))
        assert view.step == total
        assert view.fraction_done == 1
        assert view.remaining_s() is None
    assert done == [(1, 0), (2, pytest.approx(1 / 3)), (3, pytest.approx(2 / 3)), (4, pytest.approx(3 / 4))]


def test_the_rate_of_an_epoch_is_that_of_its_images_in_its_time(run):
    """The first step of the run, in which the device warms up, is in neither."""
    images = []
    for event in read_journal(run):
        if isinstance(event, EpochFinished):
            assert 0 < (event.training_s or 0) < event.seconds
            images.append((event.samples_per_second or 0) * (event.training_s or 0))
    assert images == pytest.approx([24, 32, 32, 32])


def test_steps_images_and_time_are_of_all_sessions(run):
    summary = read_summary(run)
    ends = [event for event in read_journal(run) if isinstance(event, RunFinished)]
    assert [summary[name] for name in ("epochs", "optimizer_steps", "total_steps")] == [4, 14, 14]
    assert summary["samples_seen"] == 4 * 32
    spent, session_s = summary["time"]["total_s"], summary["time"]["session_s"]
    assert session_s == pytest.approx(ends[-1].seconds, abs=0.5)
    assert spent == pytest.approx(sum(end.seconds for end in ends), abs=0.5)
    assert ends[-1].total_s == pytest.approx(spent, abs=0.5)


def test_the_time_of_a_session_that_was_killed_is_that_of_its_journal(run, tmp_path):
    killed = long_ago(run, tmp_path, total_s=0.0, session_s=0.0)
    elapsed = read_run(killed).timeline.elapsed
    assert seconds_before(killed, read_summary(killed)) == elapsed > 0
    assert seconds_before(killed, {"time": {"total_s": 60.0}}) == 60
    (killed / "events.jsonl").unlink()
    assert seconds_before(killed, {"time": {"total_s": 60.0, "session_s": 7.0}}) == 60


def long_ago(run: Path, folder: Path, **time_noted) -> Path:
    """Return a copy of a run whose summary notes another time."""
    copy = shutil.copytree(run, folder / "long", symlinks=True)
    summary = read_json(copy / SUMMARY)
    write_json(copy / SUMMARY, summary | {"time": summary["time"] | time_noted})
    return copy


def test_the_list_the_report_and_the_last_lines_tell_all_of_it_and_name_the_time_of_a_session(run, tmp_path):
    run = long_ago(run, tmp_path, total_s=600.0, session_s=60.0)
    summary = read_summary(run)
    assert (
        "4 epochs, 14 steps, 128 images, 10 min 0 s, 1 min 0 s of it in the last session"
        in final_lines(summary)[0]
    )
    assert "completed after step 14 in 10 min 0 s, best" in closing_line(run, summary)
    facts = read_report(run, 0).facts
    assert facts["optimizer steps"] == "14"
    assert facts["images seen"] == "128"
    assert facts["time"] == "10 min 0 s, 1 min 0 s of it in the last session"
    (row,) = RunList(tmp_path).rows()
    assert row.seconds_at(row.started + 999) == 600
    assert replace(row, state=RUNNING).seconds_at(row.started + 7) == 540 + 7
    (listed,) = listed_runs([summary], with_settings=False)
    assert [COLUMNS[name].words(listed) for name in ("steps", "time")] == ["14", "10 min 0 s"]

    summary |= {"optimizer_steps": 9, "status": "stopped"}
    assert "stopped after 4 epochs, 9 of 14 steps, " in final_lines(summary)[0]
    assert "stopped after step 9 of 14 in" in closing_line(run, summary)
    (listed,) = listed_runs([summary], with_settings=False)
    assert COLUMNS["steps"].words(listed) == "9 of 14"


def test_a_summary_of_an_earlier_version_has_the_time_of_a_session_and_says_so(run, tmp_path):
    run = long_ago(run, tmp_path, total_s=60.0, session_s=None)
    assert "time" not in (facts := read_report(run, 0).facts)
    assert facts["time of the last session"] == "1 min 0 s"
    line = closing_line(run, {"status": "completed", "optimizer_steps": 14, "time": {"total_s": 60.0}})
    assert "after step 14; " in line


def test_a_resume_keeps_the_name_of_the_profile_and_tells_what_was_set_since(run):
    named = [(events[0].profile, events[0].changed) for events in sessions(run)]
    both = ["training.epochs", "training.batch_size"]
    assert named == [("stable", []), ("stable", both), ("stable", both)]
    assert read_report(run, 0).facts["profile"] == "stable + 2 settings"
    assert "  stable + 2 settings · unet" in headline(read_run(run), 0, 140).plain


def test_a_fork_has_the_profile_of_its_parent_or_the_one_that_it_switches_to(run, tmp_path):
    run = shutil.copytree(run, tmp_path / "run", symlinks=True)
    forks = [fork_run(run, find_checkpoint(run, "4"), profile=profile) for profile in (None, "fast")]
    named = [session_of(fork, {}, resume=True, profile=str(fork / CONFIG)).plan.resolved for fork in forks]
    assert [(each.profile, len(each.changed)) for each in named] == [("stable", 2), ("fast", 0)]
    # before they train, their screens know what they are
    for fork, profile in zip(forks, ("stable + 2 settings", "fast"), strict=True):
        view = read_run(fork)
        assert f"mptui  {profile} · unet · shapes" in headline(view, 0, 140).plain
        assert view.log[-1].text == "forked from run at step 4"


def test_a_restart_goes_on_under_the_name_that_the_run_had_with_what_was_set_live(run, tmp_path, monkeypatch):
    """A launcher starts the command again: `mptui resume`, before a setting was changed in the run."""
    run = shutil.copytree(run, tmp_path / "run", symlinks=True)
    plan = session_of(run, {}, resume=True, profile=str(run / CONFIG)).plan
    LiveChanges(run, plan).switch(replace(plan, resolved=replace(plan.resolved, changed=("training.lr",))))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again = session_of(run, {}, resume=True, profile=str(run / CONFIG)).plan.resolved
    assert (again.profile, again.changed) == ("stable", ("training.lr",))


def test_a_run_that_has_recorded_no_profile_is_resumed(run, tmp_path):
    run = shutil.copytree(run, tmp_path / "run", symlinks=True)
    write_json(run / SUMMARY, {"changed": [1, ["training.lr"], {}], "profile": 3})
    resolved = session_of(run, {}, resume=True, profile=str(run / CONFIG)).plan.resolved
    assert (resolved.profile, resolved.changed) == ("run", ())


def test_a_fork_with_another_batch_and_precision_counts_what_it_has_ahead(run, tmp_path):
    run = shutil.copytree(run, tmp_path / "run", symlinks=True)
    fork = fork_run(run, find_checkpoint(run, "4"))
    before = time.monotonic()
    go_on(fork, **{"training.batch_size": 16, "training.epochs": 2, "precision.mode": "bf16"})
    seconds = time.monotonic() - before
    (events,) = sessions(fork)
    assert [event.total_steps for event in events if isinstance(event, RunStarted | EpochStarted)] == [6, 6]
    assert [event.step for event in events if isinstance(event, Step)] == [5, 6]
    view, summary = read_run(fork), read_summary(fork)
    assert summary["changed"] == ["training.epochs", "training.batch_size", "precision.mode"]
    assert (view.precision, view.total_steps, view.fraction_done) == ("bf16", 6, 1)
    assert (summary["optimizer_steps"], summary["samples_seen"]) == (6, 64)
    assert 0 < summary["time"]["total_s"] <= seconds  # its own
