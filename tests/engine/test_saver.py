"""Failed saves: the run waits until the save is written, and loses nothing."""

import contextlib
import errno
import gc
import math
import os
import shutil
import threading
import time
import weakref

import pytest
import torch

from mptui.config.schema import CheckpointConfig
from mptui.engine.checkpoint import saver as checkpoint_saver
from mptui.engine.checkpoint.files import (
    Snapshot,
    checkpoints,
    keep_only,
    point,
    read_checkpoint,
    read_newest,
    write_checkpoint,
)
from mptui.engine.checkpoint.pointers import target_of
from mptui.engine.checkpoint.saver import Saver
from mptui.errors import DiskError, RunDirectoryError
from mptui.events import CheckpointSaved, Event, Warned
from tests.tools.faulty_disk import Fault, failing, faulty_disk


def snapshot(step):
    return Snapshot(step, {"model": {"weight": torch.full((100,), float(step))}}, {"cursor": {}})


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(checkpoint_saver, "RETRY_S", (0.01, 0.02))
    monkeypatch.setattr(checkpoint_saver, "LOOK_S", 0.001)


class Around:
    """Inputs of a saver, and a record of its actions."""

    def __init__(self, folder, stop_after=math.inf):
        self.events: list[Event] = []
        self.holds: list[str] = []
        self._asked, self._stop_after = 0, stop_after
        self.saver = Saver(
            folder, CheckpointConfig, self.events.append, hold=self._hold, should_stop=self._should_stop
        )

    @contextlib.contextmanager
    def _hold(self, error):
        self.holds.append(error.message)
        yield

    def _should_stop(self):
        self._asked += 1
        return self._asked > self._stop_after


def full(folder, count):
    """A disk on which that many saves fail, at the first file of each."""
    return faulty_disk(folder, Fault(0, "before", failing(errno.ENOSPC), count, only=["write"]))


def test_a_save_that_failed_holds_the_run_at_the_next_look_and_is_written_when_there_is_room(tmp_path):
    around = Around(tmp_path)
    with full(tmp_path, count=4):
        around.saver.save(snapshot(3), "time")
        while not around.saver.idle:
            pass
        assert around.saver.tend()
        assert not around.saver.tend()
        around.saver.close()
    assert len(around.holds) == 1
    assert "no space left" in around.holds[0]
    assert read_newest(tmp_path)[0].step == 3
    assert [event.step for event in around.events if isinstance(event, CheckpointSaved)] == [3]


def test_asked_to_stop_it_tries_once_more_and_says_why_it_can_not(tmp_path):
    around = Around(tmp_path, stop_after=5)
    with full(tmp_path, count=math.inf):
        with pytest.raises(DiskError, match="no space left"):
            around.saver.save(snapshot(3), "stop", wait=True)
        around.saver.close()
    assert checkpoints(tmp_path) == []


def test_asked_to_stop_it_is_saved_if_there_is_room_by_then(tmp_path):
    around = Around(tmp_path, stop_after=0)
    with full(tmp_path, count=1):
        around.saver.save(snapshot(3), "stop", wait=True)
        around.saver.close()
    assert read_newest(tmp_path)[0].step == 3


def test_a_deferred_best_leaves_its_device_while_the_disk_is_slow(tmp_path):
    disk_answers, has_arrived = threading.Event(), threading.Event()

    @contextlib.contextmanager
    def slow():
        assert disk_answers.wait(60)
        yield

    def bring():
        has_arrived.set()
        return snapshot(4).tensors

    with Saver(tmp_path, CheckpointConfig, lambda event: None, guard=slow) as saver:
        saver.save(snapshot(3), "time")
        saver.offer_best(Snapshot(4, {}, {"cursor": {}}, bring=bring))
        assert has_arrived.wait(60)
        disk_answers.set()
    assert torch.equal(read_checkpoint(tmp_path / "best").tensors["model"]["weight"], torch.full((100,), 4.0))


def test_how_a_run_ended_is_not_hidden_by_a_best_that_can_not_be_written(tmp_path):
    around = Around(tmp_path)

    def ends_badly():
        with around.saver:
            around.saver.offer_best(snapshot(2))
            raise ZeroDivisionError

    with full(tmp_path, count=math.inf), pytest.raises(ZeroDivisionError):
        ends_badly()
    assert [event.code for event in around.events if isinstance(event, Warned)] == ["disk"]


def test_a_snapshot_that_is_written_gives_its_memory_back(tmp_path):
    around = Around(tmp_path)
    taken = snapshot(1)
    weight = weakref.ref(taken.tensors["model"]["weight"])
    around.saver.save(taken, "time")
    del taken
    while not around.saver.idle:
        pass
    around.saver.tend()
    until = time.monotonic() + 60
    while weight() is not None:  # the thread releases it shortly after it is done
        gc.collect()
        assert time.monotonic() < until
    around.saver.close()


def test_a_best_that_had_to_wait_does_not_become_the_last(tmp_path):
    around = Around(tmp_path)
    around.saver.offer_best(snapshot(1))
    around.saver.wait_until_saved()
    assert (tmp_path / "last").resolve().name == "step-000000001"  # there is no newer one
    around.saver._last_cost = 3600.0
    around.saver.offer_best(snapshot(2))
    around.saver.save(snapshot(3), "time")
    around.saver.close()
    leads = {name: (tmp_path / name).resolve().name for name in ("last", "best")}
    assert leads == {"last": "step-000000003", "best": "step-000000002"}


def test_a_best_that_had_to_wait_does_not_change_when_the_next_save_is_due(tmp_path):
    around = Around(tmp_path)
    around.saver._config = lambda: CheckpointConfig(every_steps=100)
    around.saver._last_cost = 3600.0
    around.saver.offer_best(snapshot(90))
    around.saver.save(snapshot(100), "steps", wait=True)
    around.saver.write_waiting_best(force=True)
    assert around.saver.reason_now(199) is None
    assert around.saver.reason_now(200) == "steps"
    around.saver.close()


@pytest.mark.parametrize("best_before", [None, 4])
def test_an_undone_switch_gives_the_best_of_before_it_back(tmp_path, best_before):
    around = Around(tmp_path)
    if best_before is not None:
        around.saver.offer_best(snapshot(best_before))
    around.saver.save(snapshot(10), "switch")
    around.saver.wait_until_saved()
    around.saver._last_cost = 0.0
    around.saver.offer_best(snapshot(20))
    for step in range(21, 26):  # more than the unnamed ones that are kept
        around.saver.save(snapshot(step), "time")
    around.saver.went_back(10)
    around.saver.save(snapshot(10), "undo", wait=True)
    best = target_of(tmp_path, "best")
    assert (best and read_checkpoint(best).step) == best_before
    assert target_of(tmp_path, "undo") is target_of(tmp_path, "undo-best") is None
    around.saver.close()


def test_after_going_back_the_run_is_resumed_from_what_was_saved_since(tmp_path):
    around = Around(tmp_path)
    for step in (10, 20):
        around.saver.save(snapshot(step), "time")
    around.saver.save(snapshot(15), "time")  # the run rolled back to 10, and continued
    around.saver.close()
    assert read_newest(tmp_path)[0].step == 15


def test_steps_between_two_saves_are_counted_over_a_resume(tmp_path):
    around = Around(tmp_path)
    around.saver._config = lambda: CheckpointConfig(every_steps=100)
    around.saver.go_on_from(1000)
    assert around.saver.reason_now(1099) is None
    assert around.saver.reason_now(1100) == "steps"
    around.saver.close()


@pytest.mark.parametrize("asked", [1, 2, 3, 4])
def test_a_run_that_is_another_process_s_by_now_gets_no_more_however_far_its_save_has_come(tmp_path, asked):
    changes = iter(range(1, 99))

    @contextlib.contextmanager
    def guard():
        if next(changes) >= asked:
            raise RunDirectoryError("taken over", hint="")
        yield

    with Saver(tmp_path, lambda: CheckpointConfig(keep=1), lambda event: None) as first:
        first.offer_best(snapshot(1))
    late = Saver(tmp_path, lambda: CheckpointConfig(keep=1), lambda event: None, guard=guard)
    late.offer_best(snapshot(2))
    with pytest.raises(RunDirectoryError, match="taken over"):
        late.close()
    leads_to = {name: (tmp_path / name).readlink().name for name in ("best", "last")}
    both = ["step-000000001", "step-000000002"]
    assert {path.name for path in checkpoints(tmp_path)} == set(both[:1] if asked < 3 else both)
    assert leads_to == {"best": both[asked == 4], "last": both[0]}
    assert not list(tmp_path.glob(".*"))


def test_older_checkpoints_are_left_to_a_process_that_has_taken_the_run_over(tmp_path):
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, snapshot(step))
    (tmp_path / ".step-000000004.7-abc.partial").mkdir()  # being written by that process
    before = sorted(tmp_path.iterdir())

    def guard():
        raise RunDirectoryError("taken over", hint="")

    with pytest.raises(RunDirectoryError, match="taken over"):
        keep_only(tmp_path, 1, guard)
    assert sorted(tmp_path.iterdir()) == before


# -- a disk without links


def without_links(*_, **__):
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_a_disk_without_links_gets_files_that_name_the_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "symlink", without_links)
    around = Around(tmp_path)
    around.saver.offer_best(snapshot(1))
    for step in range(2, 6):
        around.saver.save(snapshot(step), "time")
    around.saver.close()
    assert around.holds == []
    assert not any(path.is_symlink() for path in tmp_path.iterdir())
    assert target_of(tmp_path, "best") == tmp_path / "step-000000001"
    assert target_of(tmp_path, "last") == tmp_path / "step-000000005"
    assert read_checkpoint(tmp_path / "best").step == 1
    assert read_checkpoint(tmp_path / "last").step == 5
    assert tmp_path / "step-000000001" in checkpoints(tmp_path)  # kept, though three are newer


def test_after_going_back_a_file_that_names_the_last_one_counts_as_a_link_does(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "symlink", without_links)
    around = Around(tmp_path)
    for step in (10, 20, 15):
        around.saver.save(snapshot(step), "time")
    around.saver.close()
    assert read_newest(tmp_path)[0].step == 15


def test_a_copy_to_another_disk_turns_files_into_links_and_back(tmp_path, monkeypatch):
    for step, links in ((1, False), (2, True), (3, False)):
        with monkeypatch.context() as patch:
            if not links:
                patch.setattr(os, "symlink", without_links)
            point(tmp_path, "last", write_checkpoint(tmp_path, snapshot(step)))
        assert (tmp_path / "last").is_symlink() is links
        assert read_checkpoint(tmp_path / "last").step == step


def test_a_checkpoint_that_only_could_not_be_pointed_at_is_not_written_again(tmp_path):
    around = Around(tmp_path)
    wrong = failing(errno.EIO)
    with faulty_disk(tmp_path, Fault(1, "before", wrong, count=3, only=["rename"])) as calls:
        around.saver.save(snapshot(3), "time", wait=True)
        around.saver.close()
    assert len(around.holds) == 1
    assert calls.count("mkdir") == 2  # the checkpoints' folder, which exists, and the checkpoint's: one save
    assert read_checkpoint(tmp_path / "last").step == 3
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000003"]


def test_a_checkpoint_that_went_with_its_disk_is_written_again(tmp_path):
    around = Around(tmp_path)

    @contextlib.contextmanager
    def hold(error):
        shutil.rmtree(tmp_path / "step-000000003")
        yield

    around.saver._hold = hold
    with faulty_disk(tmp_path, Fault(1, "before", failing(errno.EIO), count=1, only=["rename"])):
        around.saver.save(snapshot(3), "time", wait=True)
    around.saver.close()
    assert read_checkpoint(tmp_path / "last").step == 3


# -- a lost disk


def test_a_directory_that_is_gone_for_a_while_holds_the_run_and_none_is_made_in_its_place(tmp_path):
    run, away = tmp_path / "run", tmp_path / "away"
    run.mkdir()
    around = Around(run / "checkpoints")
    around.saver.save(snapshot(1), "time", wait=True)

    @contextlib.contextmanager
    def hold(error):
        around.holds.append(f"{error.message}; {error.hint}")
        assert not run.exists()
        away.rename(run)
        yield

    around.saver._hold = hold
    run.rename(away)
    around.saver.save(snapshot(2), "time", wait=True)
    around.saver.close()
    assert len(around.holds) == 1
    assert "move it back" in around.holds[0]
    assert read_newest(run / "checkpoints")[0].step == 2
    assert not away.exists()


def test_a_save_that_nobody_asked_for_waits_twenty_times_as_long_as_the_last_one_took(tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr("mptui.engine.checkpoint.saver.time.monotonic", lambda: now)

    def slow(folder, snapshot, check):
        nonlocal now
        now += 3.0
        return write_checkpoint(folder, snapshot, check)

    monkeypatch.setattr(checkpoint_saver, "write_checkpoint", slow)
    around = Around(tmp_path)
    around.saver.save(snapshot(1), "epoch", wait=True)
    now += 59.5
    assert not around.saver.may_save()
    around.saver.offer_best(snapshot(2))
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000001"]
    now += 0.5
    assert around.saver.may_save()
    around.saver.tend()
    around.saver.wait_until_saved()
    assert len(checkpoints(tmp_path)) == 2
    around.saver.close()


def test_how_many_are_kept_is_read_when_a_checkpoint_is_written(tmp_path):
    keep = 3
    with Saver(tmp_path, lambda: CheckpointConfig(keep=keep), lambda event: None) as saver:
        for step in range(1, 5):
            saver.save(snapshot(step), "steps", wait=True)
        before = len([*tmp_path.glob("step-*")])
        keep = 1
        saver.save(snapshot(5), "steps", wait=True)
    assert (before, len([*tmp_path.glob("step-*")])) == (3, 1)
