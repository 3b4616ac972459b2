"""A run that fails has the exit code of its error, and saves its last consistent steps."""

import os
import shutil
import signal
import threading
from contextlib import suppress
from functools import partial

import pytest
import torch

from mptui.engine.checkpoint.files import read_newest
from mptui.engine.checkpoint.saver import Saver
from mptui.engine.trainer import Trainer
from mptui.events import CheckpointSaved, Step
from mptui.runs.store.directory import CHECKPOINTS, read_summary
from mptui.runs.store.journal import read_journal
from tests.data.images import class_folders
from tests.made.runs import QUIET, ended, session_of

slow = partial(pytest.param, marks=pytest.mark.slow)

LIMIT_S = 300.0
SETTINGS = {
    "model.name": "small_cnn",
    "data.image_size": 32,
    "data.cache": "off",
    "data.workers": 0,
    "training.batch_size": 4,
    "training.epochs": 3,
    "training.warmup_epochs": 0.0,
    "checkpoint.every_minutes": None,
    "logging.step_interval_s": 0.0,
    "hardware.device": "cpu",
    **QUIET,
}


@pytest.fixture
def pictures(tmp_path):
    return class_folders(tmp_path / "pictures", {"cats": 10, "dogs": 10})


@pytest.fixture
def trained(tmp_path, pictures, monkeypatch):
    monkeypatch.setenv("MPTUI_CONFIG_DIR", str(tmp_path / "config"))

    def go(resume=False, **more):
        sets = {key.replace("__", "."): value for key, value in more.items()}
        run = tmp_path / "run"
        session = ended(session_of(run, {**SETTINGS, "data.path": str(pictures), **sets}, resume=resume))
        return session.result, run

    return go


def of_step(monkeypatch, number, action):
    """Call `action` once before a training step."""
    whole = Trainer._train_step
    done: list[int] = []

    def step(trainer, window):
        if trainer.state.step == number and not done:
            done.append(number)
            action(trainer)
        whole(trainer, window)

    monkeypatch.setattr(Trainer, "_train_step", step)


def test_data_that_is_gone_in_mid_run_ends_it_with_its_steps_saved(trained, pictures, tmp_path, monkeypatch):
    away = tmp_path / "away"
    of_step(monkeypatch, 6, lambda _: shutil.move(pictures, away))
    result, run = trained()
    assert result.exit_code == 3
    snapshot, _ = read_newest(run / CHECKPOINTS)
    steps = [event.step for event in read_journal(run) if isinstance(event, Step)]
    assert snapshot.step == steps[-1] > 4
    reasons = [event.reason for event in read_journal(run) if isinstance(event, CheckpointSaved)]
    assert reasons[-1] == "error"

    shutil.move(away, pictures)
    again, _ = trained(resume=True)
    assert again.exit_code == 0
    taken = [event.step for event in read_journal(run) if isinstance(event, Step)]
    assert taken == list(range(1, len(taken) + 1))


def test_workers_that_the_system_kills_end_the_run_by_their_cause_and_with_its_steps_saved(
    trained, monkeypatch
):
    ended = threading.Event()

    def kill_workers(trainer):
        while not ended.wait(0.02):
            for pid in trainer.context.job.train_loader.worker_pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    of_step(monkeypatch, 2, lambda trainer: threading.Thread(target=kill_workers, args=(trainer,)).start())
    result, run = trained(data__workers=2, data__prefetch=1, training__epochs=100)
    ended.set()
    assert result.exit_code == 3
    assert "data workers died" in result.error.message
    assert "SIGKILL" in result.error.message
    steps = [event.step for event in read_journal(run) if isinstance(event, Step)]
    assert read_newest(run / CHECKPOINTS)[0].step == steps[-1]
    again, _ = trained(resume=True, training__epochs=1 + steps[-1] // 4)
    assert again.exit_code == 0


@pytest.mark.parametrize(
    "clean_up",
    [
        slow("mptui.runs.session.session.note_figures"),
        "mptui.data.reading.Pool.cancel",
        slow("mptui.data.loader.Loader.close"),
        slow("mptui.engine.checkpoint.saver.Saver.close"),
        slow("mptui.engine.context.TrainContext.save"),
    ],
)
def test_a_clean_up_that_fails_does_not_hide_the_cause(trained, pictures, tmp_path, clean_up, monkeypatch):
    def lose_the_device(*_):
        shutil.move(pictures, tmp_path / "away")
        monkeypatch.setattr(clean_up, fail)

    def fail(*_, **__):
        raise RuntimeError("the device is lost")

    of_step(monkeypatch, 6, lose_the_device)
    result, _ = trained()
    assert result.exit_code == 3
    assert "pictures" in result.error.message


def full_host(*_, **__):
    raise MemoryError


def no_allocation(*_, **__):
    raise RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 1099511627776 bytes. Error code 12 (Cannot allocate memory)"
    )


def no_mapping(*_, **__):
    raise OSError(12, "Cannot allocate memory")


PLACES = (
    "mptui.runs.planning.find_data.open_dataset",
    "mptui.runs.planning.build.build",
    "mptui.engine.epochs.snapshots.take",
    "mptui.engine.epochs.evaluate",
)
FAILS = (full_host, no_allocation, no_mapping)


@pytest.mark.parametrize(
    ("place", "fail"),
    [
        pytest.param(place, fail, marks=() if number % len(FAILS) == kind else pytest.mark.slow)
        for number, place in enumerate(PLACES)
        for kind, fail in enumerate(FAILS)
    ],
)
def test_memory_of_the_host_that_runs_out_anywhere_has_its_exit_code(trained, place, fail, monkeypatch):
    monkeypatch.setattr(place, fail)
    result, run = trained()
    assert (result.status, result.exit_code) == ("out_of_memory", 5)
    assert result.bug is None
    assert "workers" in result.error.hint
    assert read_summary(run)["error"]["message"].startswith("out of host memory")


def test_memory_that_runs_out_while_a_checkpoint_is_written_has_its_exit_code(trained, monkeypatch):
    monkeypatch.setattr("mptui.engine.checkpoint.saver.write_checkpoint", full_host)
    result, _ = trained()
    assert (result.status, result.exit_code) == ("out_of_memory", 5)


def test_memory_that_runs_out_in_a_validation_leaves_the_epoch_saved(trained, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("mptui.engine.epochs.evaluate", full_host)
        result, run = trained()
    assert result.exit_code == 5
    assert read_newest(run / CHECKPOINTS)[0].step == 4
    again, _ = trained(resume=True)
    assert again.exit_code == 0


def test_weights_that_were_half_moved_are_not_saved(trained, monkeypatch):
    def half_moved(trainer):
        trainer.context.parts.updater.applying = True
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Saver, "may_save", lambda saver: False)
    of_step(monkeypatch, 2, half_moved)
    result, run = trained()
    assert result.exit_code == 5
    assert not (run / CHECKPOINTS).exists()


def test_a_bug_is_a_bug(trained, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a fault of the program")

    monkeypatch.setattr("mptui.engine.epochs.evaluate", broken)
    result, _ = trained()
    assert (result.exit_code, str(result.bug)) == (1, "a fault of the program")
