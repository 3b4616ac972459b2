"""`mptui runs`: the states running, finished and crashed, and a comparison of two runs."""

import json
import os
import random
import re
import time

import pytest

from mptui.cli.main import _exit_code
from mptui.cli.train.attach import _running_or_newest
from mptui.events import DeviceSample, EpochFinished, to_record
from mptui.runs.listing.rows import RunList
from mptui.runs.listing.table import COLUMNS
from mptui.runs.store.directory import SUMMARY, claim, find_run, read_summary, write_json
from mptui.runs.store.files import Summary
from mptui.runs.store.journal import NAME, Journal
from mptui.runs.store.lock import NAME as LOCK
from tests.cli.calls import call
from tests.made.json_documents import checked
from tests.tui.events import START, run_started, step_event


def a_run(folder, name, *, lr=0.1, losses=(2.0, 1.0), **summary):
    run = folder / name
    run.mkdir()
    run.joinpath("run.toml").write_text(
        f'description = "{name}"\n[training]\nlr = {lr}\nseed = 1\n[precision]\nmode = "auto"\n'
    )
    journal = Journal(run)
    for epoch, loss in enumerate(losses, 1):
        journal.write(
            EpochFinished(
                epoch=epoch,
                epochs=len(losses),
                train_loss=loss,
                train_metrics={},
                val_loss=loss,
                val_metrics={"acc1": 1 / loss},
                lr=lr,
                seconds=1.0,
            )
        )
    journal.close()
    base = {
        "status": "completed",
        "epochs": len(losses),
        "optimizer_steps": 10,
        "final": {"val_loss": losses[-1], "acc1": 1 / losses[-1]},
        "best": {"epoch": 2, "metric": "acc1", "value": 1 / losses[-1]},
        "samples_per_second": 100.0,
        "time": {"total_s": 60.0},
        "memory": {"peak_allocated_bytes": 1 << 30},
        "precision": {"used": "bf16"},
    }
    write_json(run / SUMMARY, base | summary)
    return run


def test_running_finished_crashed_and_silent_are_told_apart(tmp_path):
    a_run(tmp_path, "done")
    a_run(tmp_path, "dead", status="running")
    going = a_run(tmp_path, "going-with-a-name-that-is-rather-long-as-names-of-runs-are", status="running")
    silent = a_run(tmp_path, "silent", status="running")
    for run in (going, silent):
        with (run / NAME).open("ab") as journal:
            journal.write(json.dumps(to_record(DeviceSample(name="cpu")), separators=(",", ":")).encode())
            journal.write(b"\n")
        claim(run)
    for name in (NAME, LOCK):
        os.utime(silent / name, (time.time() - 600, time.time() - 600))
    document = checked("runs", json.loads(call("runs", "--runs-dir", tmp_path, "--json").stdout))
    listed = {run["run"]: run for run in document["runs"]}
    assert {name: run["status"] for name, run in listed.items()} == {
        "done": "completed",
        "dead": "crashed",
        going.name: "running",
        "silent": "running",
    }
    assert [name for name, run in listed.items() if "silent_s" in run] == ["silent"]
    assert listed["silent"]["silent_s"] >= 600
    shown = call("runs", "--runs-dir", tmp_path)
    assert going.name in shown.stdout
    assert "running, no sign for 10 min 0 s" in shown.stdout
    assert "mptui attach" in shown.stderr


def test_a_run_that_was_killed_in_its_first_epoch_is_listed_from_its_journal(tmp_path):
    run = a_run(tmp_path, "killed")
    (run / NAME).unlink()
    write_json(run / SUMMARY, Summary(run.name, str(run)).document)  # as it is before the first event
    journal = Journal(run)
    journal.write(run_started(model="resnet18", dataset="shapes"))
    for step in (90, 131):
        journal.write(step_event(step, START + step, random.Random(0)))
    journal.close()
    (listed,) = json.loads(call("runs", "--runs-dir", tmp_path, "--json").stdout)["runs"]
    assert (listed["status"], listed["model"], listed["dataset"]["name"]) == ("crashed", "resnet18", "shapes")
    assert listed["optimizer_steps"] == 131
    (row,) = RunList(tmp_path).rows()
    assert (row.state, row.model, row.data) == ("crashed", "resnet18", "shapes")
    assert "crashed after step 131" in call("stop", run).stdout


def test_the_last_step_of_a_killed_run_is_that_of_its_journal(tmp_path):
    run = a_run(tmp_path, "killed", status="running", model="resnet18")
    journal = Journal(run)
    journal.write(step_event(74, START, random.Random(0)))
    journal.close()
    (listed,) = json.loads(call("runs", "--runs-dir", tmp_path, "--json").stdout)["runs"]
    assert listed["optimizer_steps"] == 74


def test_two_runs_are_put_beside_each_other(tmp_path):
    a_run(tmp_path, "one", samples_per_second=100.0)
    a_run(tmp_path, "other", lr=0.2, losses=(2.0, 1.5, 0.5), samples_per_second=150.0)
    found = json.loads(call("runs", "compare", "one", "other", "--runs-dir", tmp_path, "--json").stdout)
    assert found["runs"] == ["one", "other"]
    assert found["settings"] == {"training.lr": [0.1, 0.2]}
    assert found["figures"]["final_acc1"] == [1.0, 2.0]
    assert found["figures"]["best_value"] == [1.0, 2.0]
    assert found["figures"]["samples_per_second"] == [100.0, 150.0]
    assert found["figures"]["peak_allocated_bytes"] == [1 << 30, 1 << 30]
    assert found["figures"]["total_s"] == [60.0, 60.0]
    assert found["curves"]["val_loss"] == [[2.0, 1.0], [2.0, 1.5, 0.5]]
    shown = call("runs", "compare", tmp_path / "one", tmp_path / "other").stdout
    lines = {line.split("  ")[0]: line for line in shown.splitlines()}
    assert lines["images/s"].split() == ["images/s", "100", "150", "+50.0", "%"]
    assert lines["device memory, peak"].split()[-5:-2] == ["GiB", "1.0", "GiB"]
    assert lines["best"].split()[1:5] == ["100.0", "%", "200.0", "%"]
    assert lines["training.lr"].split()[1:3] == ["0.1", "0.2"]
    assert lines["val_loss by epoch"].split()[-2:] == ["█▃", "█▆▁"]
    assert lines["training.lr"].startswith("training.lr  ")  # names to the left, figures to the right
    for name, cells in {"training.lr": ("0.1", "0.2"), "val_loss by epoch": ("█▃", "█▆▁")}.items():
        heading, row = shown.splitlines()[0], lines[name]
        for run, cell in zip(("one", "other"), cells, strict=True):
            assert row[: heading.index(run) + len(run)].endswith(f" {cell}")


def test_a_run_compared_with_one_that_has_nothing_yet(tmp_path):
    a_run(tmp_path, "one")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "run.toml").write_text("")
    found = json.loads(call("runs", "compare", "one", "empty", "--runs-dir", tmp_path, "--json").stdout)
    assert found["settings"]["training.lr"] == [0.1, None]
    assert found["figures"]["status"] == ["completed", "crashed"]
    assert found["curves"]["val_loss"] == [[2.0, 1.0], []]
    assert call("runs", "compare", "one", "empty", "--runs-dir", tmp_path).returncode == 0


@pytest.mark.parametrize(("second", "said"), [("missing", "no such run"), ("broken", "run.toml")])
def test_a_run_that_cant_be_compared_is_named(tmp_path, second, said):
    a_run(tmp_path, "one")
    (a_run(tmp_path, "broken") / "run.toml").write_bytes(b"[[[\xff")
    ended = call("runs", "compare", "one", second, "--runs-dir", tmp_path)
    assert ended.returncode == 6
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_folder_that_may_not_be_read_hides_no_other_run(tmp_path, monkeypatch, capsys):
    a_run(tmp_path, "one")
    a_run(tmp_path, "locked")
    a_run(tmp_path, "two")
    stat = os.stat

    def refused(path, **options):
        if "locked" in os.fspath(path):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refused)
    assert _exit_code(["runs", "--runs-dir", str(tmp_path), "--json"], debug=False) == 0
    printed = capsys.readouterr()
    assert {run["run"] for run in json.loads(printed.out)["runs"]} == {"one", "two"}
    assert f"can't read {tmp_path / 'locked'}" in printed.err
    assert "Permission denied" in printed.err
    assert find_run(tmp_path, "tw") == tmp_path / "two"


HOSTILE = {
    "nested": '{"status": "completed", "final": ' + '{"a": ' * 900 + "1" + "}" * 900 + "}",
    "listed": '{"status": "completed", "warnings": ' + "[" * 900 + "]" * 900 + "}",
    "digits": '{"optimizer_steps": %s, "samples_per_second": %s, "final": {"acc1": %s}, "started": %s, '
    '"time": {"total_s": %s}}' % (("9" * 400,) * 5),
    "kinds": '{"status": [], "model": {}, "dataset": 3, "best": {"value": NaN, "metric": 2}, "epochs": [1], '
    '"ranks": "many", "optimizer_steps": "few", "device": {}, "time": {"total_s": NaN}}',
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_summary_that_no_run_writes_stops_no_command(tmp_path, text, capsys):
    a_run(tmp_path, "one")
    hostile = a_run(tmp_path, "hostile")
    (hostile / SUMMARY).write_text(text)
    for arguments in (
        ["runs", "--json"],
        ["runs"],
        *(["runs", "--sort", column, "--columns", column] for column in COLUMNS),
        ["runs", "--filter", "x", "--settings"],
        ["runs", "compare", "one", "hostile"],
        ["runs", "compare", "one", "hostile", "--json"],
        ["stop", "hostile"],
    ):
        assert _exit_code([*arguments, "--runs-dir", str(tmp_path)], debug=False) == 0, arguments
    assert "9" * 30 not in capsys.readouterr().out


def test_a_number_of_400_digits_in_a_configuration_is_compared_as_text(tmp_path, capsys):
    a_run(tmp_path, "one")
    a_run(tmp_path, "other", lr="9" * 400)
    assert _exit_code(["runs", "compare", "one", "other", "--runs-dir", str(tmp_path)], debug=False) == 0
    assert "training.lr" in capsys.readouterr().out


def test_a_run_resumes_with_a_summary_that_no_run_writes(tmp_path):
    run = a_run(tmp_path, "hostile")
    (run / SUMMARY).write_text(HOSTILE["nested"])
    summary = Summary("hostile", str(run))
    summary.go_on_from(read_summary(run))
    write_json(run / SUMMARY, summary.document)
    assert json.loads((run / SUMMARY).read_text())["final"] != {}


def test_the_run_started_last_is_the_last_of_the_list(tmp_path):
    now = time.time()
    a_run(tmp_path, "z-first", started=now - 300)
    a_run(tmp_path, "a-last", started=now - 100)
    a_run(tmp_path, "m-second", started=now - 200)
    unknown = a_run(tmp_path, "b-oldest", started=float("nan"))
    os.utime(unknown, (now - 400, now - 400))
    listed = json.loads(call("runs", "--runs-dir", tmp_path, "--json").stdout)
    assert [run["run"] for run in listed["runs"]] == ["b-oldest", "z-first", "m-second", "a-last"]
    assert _running_or_newest(tmp_path).name == "a-last"


def many_runs(folder):
    sizes = {"model": "diffusion_unet", "dataset": {"name": "oxford-pets"}, "samples_per_second": 12345.6}
    a_run(folder, "20261120-101500-fast-diffusion_unet", **sizes, optimizer_steps=123_456, epochs=100)
    a_run(folder, "20261120-111500-fast-resnet50", model="resnet50", dataset={"name": "shapes"})


HEADINGS = ["run", "status", "model", "data", "best", "epochs", "images/s", "precision", "steps"]


def test_in_a_pipe_the_list_has_all_columns_whole(tmp_path):
    many_runs(tmp_path)
    ended = call("runs", "--runs-dir", tmp_path)
    heading, first, second = ended.stdout.splitlines()
    assert heading.split() == HEADINGS
    assert re.split("  +", first) == [
        *("20261120-101500-fast-diffusion_unet", "completed", "diffusion_unet", "oxford-pets"),
        *("top-1 1.0000", "100", "12,345.6", "bf16", "123,456"),
    ]
    assert {"resnet50", "shapes"} <= set(second.split())
    assert "not shown" not in ended.stderr


@pytest.mark.parametrize(("width", "shown"), [(80, 4), (90, 5), (100, 6), (120, 8), (132, 9)])
def test_a_terminal_gets_whole_columns_model_and_data_among_them(tmp_path, monkeypatch, capsys, width, shown):
    many_runs(tmp_path)
    monkeypatch.setattr("mptui.cli.train.runs.terminal_width", lambda: width)
    assert _exit_code(["runs", "--runs-dir", str(tmp_path)], debug=False) == 0
    printed = capsys.readouterr()
    heading, *rows = printed.out.splitlines()
    assert heading.split() == HEADINGS[:shown]
    assert all(len(line) <= width for line in (heading, *rows))
    assert all(len(re.split("  +", row)) == shown for row in rows)
    assert ("not shown at this width" in printed.err) == (shown < len(HEADINGS))


def test_a_name_longer_than_the_terminal_is_whole_all_the_same(tmp_path, monkeypatch, capsys):
    a_run(tmp_path, "n" * 100, model="resnet50", dataset={"name": "shapes"})
    monkeypatch.setattr("mptui.cli.train.runs.terminal_width", lambda: 80)
    assert _exit_code(["runs", "--runs-dir", str(tmp_path)], debug=False) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["n" * 100, "completed", "resnet50", "shapes"]


def test_the_ranks_of_runs_are_listed_where_there_are_several(tmp_path):
    a_run(tmp_path, "one")
    assert "ranks" not in call("runs", "--runs-dir", tmp_path).stdout
    a_run(tmp_path, "many", ranks=8, nodes=2)
    heading, *rows = call("runs", "--runs-dir", tmp_path).stdout.splitlines()
    assert heading.endswith("ranks")
    assert {row.split()[0]: row.rpartition("  ")[2].strip() for row in rows} == {
        "one": "1",
        "many": "8 on 2 nodes",
    }


def test_any_number_of_runs_is_compared(tmp_path):
    for place, rate in enumerate((0.1, 0.2, 0.4)):
        a_run(tmp_path, f"run-{place}", lr=rate, losses=(2.0, 1.0 - place / 4))
    names = [f"run-{place}" for place in range(3)]
    ended = call("runs", "compare", *names, "--runs-dir", tmp_path, "--json")
    found = checked("runs compare", json.loads(ended.stdout))
    assert found["settings"] == {"training.lr": [0.1, 0.2, 0.4]}
    assert len(found["curves"]["val_loss"]) == 3
    shown = call("runs", "compare", *names, "--runs-dir", tmp_path).stdout
    assert "only lr differs" in shown
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line}
    assert rows["run-0"] == ["run-1", "run-2"]
    assert rows["training.lr"] == ["0.1", "0.2", "0.4"]
    assert call("runs", "compare", *names, "--where", "--runs-dir", tmp_path).returncode == 2


def names_of(ended):
    """The first column of the list."""
    return [line.split()[0] for line in ended.stdout.splitlines()[1:]]


@pytest.fixture
def three(tmp_path):
    """Calls `mptui runs` on three runs that differ in rate, precision and result."""
    a_run(tmp_path, "a", lr=0.1, losses=(2.0, 0.5), started=1.0, samples_per_second=30.0)
    a_run(tmp_path, "b", lr=0.2, losses=(2.0, 1.0), started=2.0, precision={"used": "fp32"})
    a_run(tmp_path, "c", lr=0.1, losses=(2.0, 0.8), started=3.0, samples_per_second=20.0, status="stopped")
    return lambda *words: call("runs", "--runs-dir", tmp_path, *words)


@pytest.mark.parametrize(
    ("words", "names"),
    {
        (): "abc",
        ("--reverse",): "cba",
        ("--sort", "best"): "bca",
        ("--sort", "images/s"): "cab",
        ("--sort", "training.lr", "--reverse"): "bca",
        ("--filter", "fp32"): "b",
        ("--filter", "status=stopped"): "c",
        ("--filter", "training.lr=0.1", "--filter", "bf16"): "ac",
    }.items(),
)
def test_the_list_is_sorted_and_filtered_by_columns_and_settings(three, words, names):
    assert names_of(three(*words)) == list(names)


def test_the_better_of_two_losses_is_the_lower_one_and_a_run_without_a_result_comes_first(tmp_path):
    for name, value in (("good", 0.3), ("none", None), ("bad", 0.9)):
        a_run(tmp_path, name, best={"epoch": 1, "metric": "val_loss", "value": value})
    assert names_of(call("runs", "--runs-dir", tmp_path, "--sort", "best")) == ["none", "bad", "good"]


def test_the_error_of_a_run_is_listed_as_that_of_a_command(tmp_path):
    a_run(tmp_path, "one", status="failed", error={"message": "no room", "hint": "free disk space"})
    (row,) = json.loads(call("runs", "--runs-dir", tmp_path, "--json").stdout)["runs"]
    assert (row["error"], row["hint"]) == ("no room", "free disk space")


def test_the_list_has_the_columns_that_are_chosen(three):
    heading, *rows = three("--columns", "run,time,training.lr").stdout.splitlines()
    assert heading.split() == ["run", "time", "training.lr"]
    assert [row.split()[-1] for row in rows] == ["0.1", "0.2", "0.1"]
    refused = three("--columns", "run,learning_rate")
    assert refused.returncode == 2
    assert "learning_rate: no column of the runs; nearest: training.lr" in refused.stderr


def test_the_list_shows_the_settings_in_which_its_runs_differ(three):
    heading, *rows = three("--settings").stdout.splitlines()
    assert heading.split()[-1] == "training.lr"
    assert [row.split()[-1] for row in rows] == ["0.1", "0.2", "0.1"]
    same = json.loads(three("--settings", "--filter", "training.lr=0.1", "--json").stdout)
    assert [run["settings"] for run in same["runs"]] == [{}, {}]
    assert "none" not in three("--filter", "nothing").stdout
    assert "no run of 3 matches" in three("--filter", "nothing").stderr
