"""A pool of worker processes: starts them, assigns tasks, replaces dead ones.

Workers are fresh interpreters: not forks of the trainer, whose threads and CUDA context don't survive a fork,
and not children of `multiprocessing`, which would import the trainer's main module and torch. A worker
answers its tasks in order, so the unfinished tasks of a dead worker are known exactly.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType

from mptui.data.loading.shared_memory import Arena
from mptui.data.loading.worker import Answer, ReadTask, perform
from mptui.errors import DataError, OwnCodeError
from mptui.processes.child import start

_DEATHS_BY_ONE_TASK = 3
_LOOK_S = 0.2
_FADING = 0.98
"""Decay of earlier measurements with each new one, so that about the last fifty count."""
_PATIENCE_S = 10.0
"""Seconds that a worker may take to finish a cancelled sample."""
_NAMES_SHOWN = 5
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Pool:
    """Worker processes and the arena they write to; without workers, the caller's thread does the work.

    Used by one thread at a time. Processes start with the first task.

    Args:
        workers: Number of processes; 0: none.
        check_stop: Called several times per second while waiting for answers; may raise.
        shared: Descriptors that requests read from; processes inherit them with the same numbers.
    """

    def __init__(
        self,
        workers: int,
        check_stop: Callable[[], None] = lambda: None,
        shared: tuple[int, ...] = (),
    ) -> None:
        self.arena = Arena()
        self.size = workers
        self._shared = shared
        self._check_stop = check_stop
        self._workers: list[_Worker] = []
        self._inline: deque[ReadTask] = deque()
        self._last_id = self._cancelled = 0
        self._deaths: Counter[int] = Counter()
        self._read = self._read_s = self._computing_s = 0.0

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the running workers."""
        return [worker.pid for worker in self._workers]

    @property
    def reading(self) -> list[str]:
        """Name of the first sample of each worker's current task."""
        oldest = [next(iter(worker.tasks.copy()), None) for worker in self._workers.copy()]
        return [task.requests[0].name for task in oldest if task is not None]

    def note_read(self, samples: int, seconds: float, computing_s: float) -> None:
        """Record that a process has read `samples` in `seconds`, and computed in `computing_s` of them."""
        self._read = self._read * _FADING + samples
        self._read_s = self._read_s * _FADING + seconds
        self._computing_s = self._computing_s * _FADING + computing_s

    @property
    def unthrottled_rate(self) -> float | None:
        """Samples per second that the workers can read if nothing blocks; None before the first."""
        return self._read / self._read_s * max(1, self.size) if self._read_s else None

    @property
    def computing_share(self) -> float | None:
        """Share of the reading time in which the workers computed or waited for a CPU; None before any."""
        return min(1.0, self._computing_s / self._read_s) if self._read_s else None

    def next_id(self) -> int:
        """Return the id of the next task; ids increase."""
        self._last_id += 1
        return self._last_id

    def submit(self, task: ReadTask) -> None:
        """Assign `task` to the worker with the fewest samples left."""
        if self.size == 0:
            self._inline.append(task)
            return
        while len(self._workers) < self.size:
            self._workers.append(_Worker(self.arena.fd, self._shared))
        min(self._workers, key=lambda worker: worker.load).send(task)

    def collect(self, *, block: bool) -> list[tuple[ReadTask, Answer]]:
        """Collect the answers that have arrived.

        Args:
            block: Wait for an answer; the list is still empty if a worker died.

        Raises:
            DataError: A task has killed its worker several times.
            OwnCodeError: The person's own data set raised an exception.
            RuntimeError: A worker raised an unexpected exception.
        """
        if block:
            self._check_stop()
        if self._inline and block:
            task = self._inline.popleft()
            return [(task, perform(task, self.arena.fd, lambda: False))]
        if not self._workers:
            return []
        ready = self._ready(block)
        answers = []
        for worker in self._workers.copy():
            if worker.connection in ready:
                try:
                    answers.append(worker.receive())
                except (EOFError, OSError):
                    self._replace(worker)
        wanted = [(task, answer) for task, answer in answers if task.id > self._cancelled]
        for _, answer in wanted:
            if answer.error is not None:
                bug = RuntimeError(f"a data worker failed\n{answer.error}")
                if answer.fault is not None:
                    raise OwnCodeError(answer.fault[0], hint=answer.fault[1]) from bug
                raise bug
        return wanted

    def _ready(self, block: bool) -> set[object]:
        """Return the readable connections; with `block`, wait for one."""
        connections = [worker.connection for worker in self._workers]
        while not (ready := wait(connections, timeout=_LOOK_S if block else 0)) and block:
            self._check_stop()
        return set(ready)

    def cancel(self) -> None:
        """Cancel all tasks; after the return, no worker writes to the arena.

        A worker that hangs in a read is killed, and replaced with the next task.
        """
        self._inline.clear()
        self._cancelled = self._last_id
        for worker in self._workers:
            worker.cancel()
        until = time.monotonic() + _PATIENCE_S
        while (busy := [worker for worker in self._workers if worker.load]) and time.monotonic() < until:
            if wait([worker.connection for worker in busy], timeout=_LOOK_S):
                self.collect(block=False)
        for worker in busy:
            worker.end()
            self._workers.remove(worker)

    def close(self) -> None:
        """End the processes and free the arena. The pool can't be used afterwards."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._inline.clear()
        self.arena.close()

    def _replace(self, dead: "_Worker") -> None:
        """Assign the unfinished tasks of `dead` to other workers; without any, the next task starts one."""
        self._workers.remove(dead)  # first: a worker without a pipe must not be waited for
        status = dead.end()
        left = [task for task in dead.tasks if task.id > self._cancelled]
        if left:
            self._blame(left[0], status)
        for task in left:
            self.submit(task)

    def _blame(self, task: ReadTask, status: int) -> None:
        """Count a worker's death for its current task; fail if a task repeatedly kills its worker."""
        self._deaths[task.id] += 1
        if self._deaths[task.id] < _DEATHS_BY_ONE_TASK:
            return
        names = [request.name for request in task.requests]
        more = ["…"] if len(names) > _NAMES_SHOWN else []
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        raise DataError(
            f"data workers died {_DEATHS_BY_ONE_TASK} times ({how}) while reading: "
            + ", ".join(names[:_NAMES_SHOWN] + more),
            hint="Check these files and the free memory; with --workers 0, the run decodes them itself.",
        )


class _Worker:
    """One process, its pipe, and its unanswered tasks, oldest first."""

    def __init__(self, arena_fd: int, shared: tuple[int, ...]) -> None:
        self.connection, theirs = Pipe()
        self.tasks: deque[ReadTask] = deque()
        self._process = _started(theirs, arena_fd, shared)
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def load(self) -> int:
        """Number of unread samples."""
        return sum(len(task.requests) for task in self.tasks)

    def send(self, task: ReadTask) -> None:
        self.tasks.append(task)
        self._send_bytes(pickle.dumps(task))

    def cancel(self) -> None:
        if self.tasks:
            self._send_bytes(b"")

    def receive(self) -> tuple[ReadTask, Answer]:
        answer = self.connection.recv()
        return self.tasks.popleft(), answer

    def end(self) -> int:
        """End the process and return its exit status."""
        self.connection.close()
        # A worker exits when its pipe closes, unless it hangs in a read from a dead disk.
        self._process.kill()
        try:
            return self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:  # hangs in the kernel, in a read from a dead disk
            return -signal.SIGKILL

    def _send_bytes(self, message: bytes) -> None:
        # `collect` detects a dead worker and reassigns its tasks.
        with contextlib.suppress(OSError):
            self.connection.send_bytes(message)


def _started(connection: Connection, arena_fd: int, shared: tuple[int, ...]) -> "subprocess.Popen[bytes]":
    descriptors = (connection.fileno(), arena_fd)
    environ = {**os.environ, **_ONE_THREAD}
    call = "mptui.data.loading.worker:main"
    return start(call, *map(str, descriptors), env=environ, pass_fds=(*descriptors, *shared))
