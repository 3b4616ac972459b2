"""Real runs with failing surroundings: another process, a terminal, a worker, an older or newer mptui."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from mptui.events import RunStarted, Step, Warned
from mptui.runs.store.directory import read_summary
from mptui.runs.store.journal import read_journal
from tests.chaos.killer import outcome_of
from tests.chaos.runs import LIMIT_S, LONG, LOOK_S, UNET, Case, in_phase, started, stepped, trained, wait_for
from tests.cli.calls import call
from tests.data.images import pairs, stripes
from tests.made.waiting import wait_until


@pytest.mark.program
def test_a_run_has_one_owner_and_another_is_refused_with_six(fork_server, tmp_path):
    first = started(fork_server, LONG, tmp_path, "run")
    wait_for(first, tmp_path / "run", stepped(1))
    second = call(*LONG.arguments(tmp_path, "run"))
    assert second.returncode == 6
    assert f"process {first.pid} is training this run" in second.stderr
    assert "Traceback" not in second.stderr
    first.send(signal.SIGTERM)
    assert first.wait(LIMIT_S) == 143


@pytest.mark.slow
def test_a_terminal_that_can_not_be_written_ends_no_run(fork_server, tmp_path, undisturbed):
    arguments = [argument for argument in UNET.arguments(tmp_path, "run") if argument != "-q"]
    child = fork_server.run(arguments, Path("/dev/full"))
    assert child.wait(LIMIT_S) == 0
    assert outcome_of(tmp_path / "run") == undisturbed


@pytest.mark.parametrize(
    "left",
    [*(pytest.param(left, marks=pytest.mark.slow) for left in ("nothing", "a journal")), "a torn save"],
)
def test_a_run_that_was_killed_before_its_first_save_begins_again(tmp_path, undisturbed, left):
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    if left != "nothing":
        whole = trained(UNET.but(training__max_steps=1), tmp_path, "whole")
        (run / "run.toml").write_bytes((whole / "run.toml").read_bytes())
        lines = (whole / "events.jsonl").read_bytes().splitlines(keepends=True)
        (run / "events.jsonl").write_bytes(b"".join(lines[:6]) + lines[6][:20])
        if left == "a torn save":
            torn = run / "checkpoints" / ".step-000000001.99-0123abcd.partial"
            torn.mkdir(parents=True)
            (torn / "model.safetensors").write_bytes(b"\0" * 100)
    trained(UNET, tmp_path, "run")
    assert outcome_of(run) == undisturbed
    assert not list(run.rglob("*.partial"))


def test_a_run_of_a_newer_mptui_is_refused_with_six(tmp_path):
    run = trained(UNET.but(training__max_steps=1), tmp_path, "run")
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "version": 99}))
    ended = call("resume", "run", "--runs-dir", tmp_path, "--no-tui")
    assert ended.returncode == 6
    assert "newer mptui" in ended.stderr


@pytest.mark.program
def test_a_damaged_checkpoint_is_set_aside_and_told_and_the_run_ends_the_same(
    fork_server, tmp_path, undisturbed
):
    # killed with two whole checkpoints, before the newer one is `last`, however far the steps are
    second = {"at": 1, "only": ["rename"], "name": "*/.last.*", "error": None}
    child = started(fork_server, UNET.but(checkpoint__keep=3), tmp_path, "run", disk=second)
    assert child.wait(LIMIT_S) == -signal.SIGKILL
    newest = (tmp_path / "run" / "checkpoints" / "last").resolve()
    content = bytearray((newest / "model.safetensors").read_bytes())
    content[len(content) // 2] ^= 1
    (newest / "model.safetensors").write_bytes(content)
    trained(UNET.but(checkpoint__keep=3), tmp_path, "run")
    assert outcome_of(tmp_path / "run") == undisturbed
    told = [e for e in read_journal(tmp_path / "run") if isinstance(e, Warned)]
    assert any(e.code == "damaged_checkpoint" and "model.safetensors" in e.message for e in told)


@pytest.mark.program
def test_a_hung_loader_is_told_with_its_stacks_and_the_run_goes_on(fork_server, tmp_path):
    case = LONG.but(data__workers=1, data__cache='"off"', guards__hang_minutes=0.01)
    child = started(fork_server, case, tmp_path, "run")
    run = tmp_path / "run"
    wait_for(child, run, stepped(2))
    worker = workers_of(child)[0]  # a training worker: these come first
    worker.suspend()
    told = wait_for(child, run, lambda events: any(map(is_hang, events)) and waits_for_data(run))
    steps = sum(isinstance(event, Step) for event in told)
    worker.resume()
    wait_for(child, run, stepped(steps + 2))
    worker.suspend()  # and a stop request is handled while it hangs
    child.send(signal.SIGTERM)
    assert child.wait(LIMIT_S) == 143, child.output()
    wait_until(lambda: gone(worker))


def workers_of(child):
    """Return the loader processes of a run, the oldest first."""
    found = []
    for process in psutil.Process(child.pid).children():
        with contextlib.suppress(psutil.Error):  # it has already ended
            if "mptui.data.worker" in " ".join(process.cmdline()):
                found.append(process)
    return sorted(found, key=lambda process: process.create_time())


def is_hang(event):
    return isinstance(event, Warned) and event.code == "hang" and "reading: " in event.message


def waits_for_data(run):
    return "mptui/data/reading.py" in (run / "stacks.txt").read_text()


def gone(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
def test_a_killed_loader_worker_is_replaced_and_the_run_ends_the_same(fork_server, tmp_path, undisturbed):
    child = started(fork_server, UNET.but(data__workers=1, data__cache='"off"'), tmp_path, "run")
    run = tmp_path / "run"
    while not (workers := workers_of(child)):
        assert child.poll() is None
        time.sleep(LOOK_S)
    os.kill(workers[0].pid, signal.SIGKILL)
    assert child.wait(LIMIT_S) == 0, child.output()
    assert len([e for e in read_journal(run) if isinstance(e, Step)]) == 8
    assert {e.step for e in read_journal(run) if isinstance(e, Step)} == set(undisturbed.steps)


@pytest.mark.slow
def test_files_that_turn_bad_after_the_scan_are_listed_and_the_result_is_the_same_for_any_workers(
    fork_server, tmp_path
):
    data = pairs(tmp_path / "data", [stripes(0, 1)] * 60)
    case = Case(
        "folder",
        (*UNET.flags, "--data", str(data)),
        {"data.image_size": 32, "data.bad_sample_budget": 0.1, "model.width": 2, "model.depth": 2},
    ).but(data__cache='"off"', training__epochs=1, checkpoint__every_steps=1000)
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def trained(name, workers):
        arguments = case.but(data__workers=workers).arguments(tmp_path, name)
        child = fork_server.run(arguments, tmp_path / "said", environ=environ)
        assert child.wait(LIMIT_S) == 0, child.output()
        return tmp_path / name

    trained("scanned", 0)
    bad = [data / "images" / f"{number}.jpg" for number in (7, 13, 40)]
    for path in bad:  # same size and time: the cached scan takes them for unchanged
        status = path.stat()
        path.write_bytes(b"\0" * status.st_size)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    runs = [trained(f"workers-{workers}", workers) for workers in (0, 2)]
    for run in runs:
        listed = json.loads((run / "bad_samples.json").read_text())
        assert [file["path"] for file in listed["files"]] == sorted(map(str, bad))
        assert all("not an image" in file["reason"] for file in listed["files"])
        assert any(w["code"] == "bad_sample" for w in read_summary(run)["warnings"])
    assert outcome_of(runs[0]) == outcome_of(runs[1])


@pytest.mark.slow
def test_a_resumed_run_says_from_where(fork_server, tmp_path):
    child = started(fork_server, LONG, tmp_path, "run")
    wait_for(child, tmp_path / "run", stepped(3))
    child.send(signal.SIGTERM)
    assert child.wait(LIMIT_S) == 143
    step = read_summary(tmp_path / "run")["optimizer_steps"]
    again = started(fork_server, LONG, tmp_path, "run")
    wait_for(again, tmp_path / "run", lambda events: sum(isinstance(e, RunStarted) for e in events) == 2)
    again.send(signal.SIGTERM)
    assert again.wait(LIMIT_S) == 143
    resumed = [e for e in read_journal(tmp_path / "run") if isinstance(e, RunStarted)][-1]
    assert resumed.resumed_from_step == step
    assert in_phase("training")(list(read_journal(tmp_path / "run")))
