import os
import resource
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from mptui.data import reading
from mptui.data.reading import Pool
from mptui.data.transforms import Geometry
from mptui.data.types import SampleRequest
from mptui.data.worker import Answer, ReadTask, anonymous_file, write_at
from mptui.errors import DataError
from mptui.processes.start import start
from mptui.registry.names import SampleKind
from tests.data.samples import Chatty, Deadly, Drawn, Faulty, Hanging, Slow
from tests.program import run_to_end

SIDE = 16
BYTES = SIDE * SIDE * 3


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes workers fresh interpreters, as they are in a run."""
    monkeypatch.setattr(reading, "start", start)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Two workers: a test that ends them finds others at work."""
    with Pool(2) as workers:
        yield workers


def read(pool: Pool, requests: list[SampleRequest]) -> dict[str, Answer]:
    """Read each request as a separate task; return the answers by the requests' names."""
    pool.arena.reserve(len(requests) * BYTES)
    for row, request in enumerate(requests):
        pool.submit(task(pool, request, row))
    answers: dict[str, Answer] = {}
    while len(answers) < len(requests):
        for done, answer in pool.collect(block=True):
            assert done.requests[0].name not in answers, "answered twice"
            answers[done.requests[0].name] = answer
    return answers


def task(pool: Pool, request: SampleRequest, row: int) -> ReadTask:
    geometry = Geometry.for_validation(SampleKind.CLASS, SIDE)
    return ReadTask(pool.next_id(), (request,), (row,), 0, 0, geometry, classes=10, pixels_offset=row * BYTES)


def test_workers_write_what_the_caller_would(pool: Pool) -> None:
    requests: list[SampleRequest] = [Drawn(i) for i in range(12)]
    with Pool(0) as alone:
        expected, found = read(alone, requests), read(pool, requests)
        np.testing.assert_array_equal(alone.arena.pixels(0, 12, SIDE), pool.arena.pixels(0, 12, SIDE))
    assert {name: answer.labels for name, answer in expected.items()} == {
        name: answer.labels for name, answer in found.items()
    }


@pytest.mark.usefixtures("fresh")
def test_workers_import_no_torch_and_keep_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    assert torch.__name__ in sys.modules
    with Pool(1) as pool:
        answers = read(pool, [Chatty(0)])
    assert answers["chatty"].labels == [0]
    assert capfd.readouterr() == ("", "")


def test_a_script_that_imports_torch_and_has_no_main_guard_can_use_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import torch
        from mptui.data.reading import Pool
        from tests.data.samples import Chatty
        from tests.data.test_pool import read
        pool = Pool(1)
        print(read(pool, [Chatty(0)])["chatty"].labels)
        pool.close()
        """)
    )
    run_as_main = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    done = run_to_end(run_as_main, call="tests.program:execute")
    assert (done.stdout, done.stderr) == ("[0]\n", "")


@pytest.mark.usefixtures("fresh")
def test_a_killed_worker_is_replaced_and_its_tasks_are_done(pool: Pool, tmp_path: Path) -> None:
    answers = read(pool, [*[Drawn(i) for i in range(9)], Deadly(9, tmp_path / "died")])
    assert len(pool.pids) == 2
    pixels = pool.arena.pixels(0, 10, SIDE).copy()
    with Pool(0) as alone:
        read(alone, [Drawn(i) for i in range(10)])
        np.testing.assert_array_equal(pixels, alone.arena.pixels(0, 10, SIDE))
    assert len(answers) == 10


def test_idle_workers_may_be_killed_too(pool: Pool) -> None:
    read(pool, [Drawn(i) for i in range(4)])
    before = pool.pids
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert len(read(pool, [Drawn(i) for i in range(4)])) == 4
    assert not set(before) & set(pool.pids)


def test_a_sample_that_kills_every_worker_ends_the_run_by_name() -> None:
    with Pool(2) as pool, pytest.raises(DataError, match=r"SIGKILL.*deadly-3\.png"):
        read(pool, [*[Drawn(i) for i in range(3)], Deadly(3)])


def test_a_pool_whose_workers_died_is_left_and_used_again(tmp_path: Path) -> None:
    with Pool(2) as pool:
        with pytest.raises(DataError, match="SIGKILL"):
            read(pool, [Drawn(0), Deadly(1), Deadly(2), Drawn(3)])
        pool.cancel()
        assert len(read(pool, [Drawn(i) for i in range(4)])) == 4


def test_workers_live_through_the_signals_that_stop_a_run(pool: Pool) -> None:
    read(pool, [Drawn(0)])
    pids = pool.pids
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        for pid in pids:
            os.kill(pid, number)
    read(pool, [Drawn(1)])
    assert pool.pids == pids


def test_cancelled_tasks_are_neither_answered_nor_written(pool: Pool) -> None:
    pool.arena.reserve(500 * BYTES)
    for row in range(500):
        pool.submit(task(pool, Drawn(row), row))
    pool.cancel()
    pool.arena.pixels(0, 500, SIDE)[:] = 77
    answers = read(pool, [Drawn(0)])
    assert list(answers) == ["drawn-0.png"]
    assert (pool.arena.pixels(BYTES, 499, SIDE) == 77).all()


def test_a_bug_in_a_reader_is_raised_with_its_traceback() -> None:
    with Pool(1) as pool, pytest.raises(RuntimeError, match="KeyError: 'no such thing'"):
        read(pool, [Faulty(0)])


def test_cancelled_tasks_are_not_read(tmp_path: Path) -> None:
    with Pool(1) as pool:
        pool.arena.reserve(200 * BYTES)
        for row in range(200):
            pool.submit(task(pool, Slow(row, tmp_path), row))
        pool.cancel()
    assert len(list(tmp_path.iterdir())) < 200


def test_closing_ends_the_processes() -> None:
    pool = Pool(2)
    read(pool, [Drawn(0), Drawn(1)])
    processes = [psutil.Process(pid) for pid in pool.pids]
    pool.close()
    assert not any(process.is_running() for process in processes)


def test_workers_end_with_a_trainer_that_is_killed() -> None:
    code = """
        import os, signal
        from mptui.data.reading import Pool
        from tests.data.samples import Drawn
        from tests.data.test_pool import read, task
        pool = Pool(2)
        read(pool, [Drawn(0), Drawn(1)])
        print(*pool.pids, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    done = run_to_end(textwrap.dedent(code), call="tests.program:execute")
    pids = [int(pid) for pid in done.stdout.split()]
    assert done.returncode == -signal.SIGKILL
    assert len(pids) == 2
    until = time.monotonic() + 20
    while any(map(lives, pids)):
        assert time.monotonic() < until
        time.sleep(0.005)


def lives(pid: int) -> bool:
    """Whether a process has not ended; who takes its exit code may take a second."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_read_that_never_ends_is_named_and_can_be_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mptui.data.reading._PATIENCE_S", 0.3)
    marker = tmp_path / "reading"

    def stop_once_it_hangs() -> None:
        if marker.exists():
            raise KeyboardInterrupt

    with Pool(1, stop_once_it_hangs) as pool:
        pool.arena.reserve(BYTES)
        pool.submit(task(pool, Hanging(7, marker), 0))
        hung = pool.pids
        with pytest.raises(KeyboardInterrupt):
            pool.collect(block=True)
        assert pool.reading == ["hanging-7.png"]
        pool.cancel()
        assert pool.pids == []
        assert not psutil.pid_exists(hung[0])
        marker.unlink()
        assert len(read(pool, [Drawn(0)])) == 1  # another process handles the next task


def test_pixels_that_find_no_room_are_an_error_and_never_zeros() -> None:
    file, pixels = anonymous_file(), np.ones(100, np.uint8)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150, limits[1]))
        write_at(file, pixels, 0)
        with pytest.raises(OSError, match="No space left"):
            write_at(file, pixels, 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        os.close(file)
