"""Loaders with dead workers or bad samples, and loaders abandoned or closed in the middle of an epoch."""

import os
import signal
import threading
from typing import cast

import psutil
import pytest

from mptui.data.batch import Batch, Window
from mptui.data.to_device import Transfer
from mptui.data.types import Problem, SampleRequest
from mptui.errors import DataError
from tests.data.loaders import (
    assert_same,
    batches,
    broken_every_ninth,
    joined,
    loader,
)
from tests.data.samples import Broken, Drawn, Faulty, Samples


def test_killed_workers_change_nothing() -> None:
    with loader(workers=2, prefetch=1) as it:
        expected = batches(it)
        found = []
        for number, window in enumerate(it.windows(0, 1)):
            if number in {1, 3}:
                os.kill(it.worker_pids[number // 2], signal.SIGKILL)
            found += list(window)
    assert_same(found, expected)


def test_bad_samples_are_replaced_and_listed_alike_for_any_number_of_workers() -> None:
    told: list[Problem] = []
    found, listed = [], []
    for workers in (0, 3):
        with loader(
            Samples(52, broken_every_ninth), workers=workers, bad_budget=0.2, on_bad=told.append
        ) as it:
            found.append(batches(it))
            batches(it, epoch=1)
            listed.append(sorted(problem.path for problem in it.bad))
    assert_same(found[1], found[0])
    assert listed[0] == listed[1] == sorted(f"broken-{index}.png" for index in range(4, 52, 9))
    assert sorted(problem.path for problem in told) == sorted(listed[0] * 2)
    indices = joined(found[0])[2]
    assert len(indices) == 52
    assert not [index for index in indices if index % 9 == 4]


def test_a_validation_sample_has_the_same_replacement_in_every_epoch() -> None:
    with loader(Samples(52, broken_every_ninth), train=False, bad_budget=0.2) as it:
        assert_same(batches(it, epoch=1), batches(it, epoch=0))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cache", ["off", "device", "ram"])
def test_too_many_bad_samples_end_the_run_by_name(workers: int, cache: str) -> None:
    with (
        loader(Samples(52, broken_every_ninth), workers=workers, bad_budget=0.04, cache=cache) as it,
        pytest.raises(DataError, match=r"allows 2\n(broken-\d+\.png: truncated\n?){3}"),
    ):
        batches(it)


def test_one_bad_sample_is_one_too_many_only_where_none_is_allowed() -> None:
    def make(index: int) -> SampleRequest:
        return Broken(index) if index == 3 else Drawn(index)

    with loader(Samples(20, make), bad_budget=0.01) as it:
        assert len(joined(batches(it))[2]) == 20
    with loader(Samples(20, make), bad_budget=0.0) as it, pytest.raises(DataError):
        batches(it)
    with loader(Samples(1, Broken), bad_budget=1.0) as it, pytest.raises(DataError):
        batches(it)


def test_a_class_that_the_network_does_not_have_makes_a_sample_bad() -> None:
    with loader(Samples(20), num_classes=9, bad_budget=0.1) as it:
        assert 9 not in joined(batches(it))[1]
        assert {problem.reason for problem in it.bad} == {"label 9, but there are 9 classes"}


def test_a_bug_in_a_reader_is_raised_and_the_loader_can_be_closed() -> None:
    with loader(Samples(20, Faulty), workers=2) as it:
        with pytest.raises(RuntimeError, match="KeyError"):
            batches(it)
        pids = it.worker_pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_an_abandoned_pass_leaves_the_loader_as_it_was() -> None:
    with loader(workers=2) as it:
        expected = batches(it, epoch=1)
        kept: Window | None = None
        for window in it.windows(0, 2):
            kept = window
            break
        assert_same(batches(it, epoch=1), expected)
        with pytest.raises(RuntimeError, match="has ended"):
            list(cast(Window, kept))


def test_a_new_pass_ends_the_one_before() -> None:
    with loader(workers=2) as it:
        old = it.windows(0, 1)
        first = next(old)
        assert_same(batches(it, epoch=1), batches(it, epoch=1))
        with pytest.raises(RuntimeError, match="has ended"):
            list(first)


def test_closing_in_the_middle_ends_the_workers() -> None:
    it = loader(workers=2)
    window = next(it.windows(0, 1))
    assert window.size == 8
    pids = it.worker_pids
    assert len(pids) == 2
    it.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_thread_can_use_a_loader() -> None:
    found: list[Batch] = []
    with loader(workers=1) as it:
        thread = threading.Thread(target=lambda: found.extend(batches(it)))
        thread.start()
        thread.join()
        assert_same(found, batches(it))


def test_workers_end_also_where_the_device_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(*_: object) -> None:
        raise RuntimeError("device-side assert triggered")

    data = loader(workers=1)
    next(data.windows(0, 1))
    (pid,) = data.worker_pids
    monkeypatch.setattr(Transfer, "wait_for_copies", failed)
    with pytest.raises(RuntimeError, match="device-side assert"):
        data.close()
    assert not psutil.pid_exists(pid)
    monkeypatch.undo()
    data.close()
