"""Child processes that look at files, and the bounded stream of work through them."""

import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue

from mptui.data.check import Finding, Sample

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from mptui.data.check import main; main()"
)
_LOOK_AROUND_S = 0.2


class ScanCancelledError(Exception):
    """The scan was asked to stop before it was done."""


class Checker:
    """One child process. A file that ends the child is found, named, and costs no other file its turn."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._stopped = False
        self._child = self._started()

    def check(self, samples: Sequence[Sample], whole: bool) -> list[Finding]:
        """Have the child look at some samples.

        Raises:
            ScanCancelledError: `stop` was called meanwhile.
        """
        try:
            return self._ask(samples, whole)
        except (OSError, EOFError):
            self._restart()
        if len(samples) == 1:
            return [
                Finding(samples[0][0], "reading it ended the process: out of memory, or a decoder's fault")
            ]
        return [finding for sample in samples for finding in self.check([sample], whole)]

    def stop(self) -> None:
        """End the child, from any thread; a `check` under way returns at once."""
        with self._guard:
            self._stopped = True
            self._child.kill()

    def close(self) -> None:
        """Let go of a stopped child."""
        self._child.communicate()

    def _restart(self) -> None:
        with self._guard:
            if self._stopped:
                raise ScanCancelledError
            self._child.kill()
            self._child.communicate()
            self._child = self._started()

    def _ask(self, samples: Sequence[Sample], whole: bool) -> list[Finding]:
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps([whole, samples]) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line.endswith("\n"):
            raise EOFError("the child ended")
        return [Finding.from_json(values) for values in json.loads(line)]

    @staticmethod
    def _started() -> subprocess.Popen[str]:
        # A session of its own: ctrl+c and a closed terminal are the parent's business. The child ends
        # with the parent, whatever ends that: its stdin closes.
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )


def check_all(
    chunks: Iterator[list[Sample]], whole: bool, processes: int, should_stop: Callable[[], bool]
) -> Iterator[list[Finding]]:
    """Look at chunks of samples in `processes` children; yields their findings in the order of the chunks.

    Only a few chunks are under way at a time, however many there are.

    Raises:
        ScanCancelledError: `should_stop` said so.
    """
    checkers = [Checker() for _ in range(processes)]
    idle: SimpleQueue[Checker] = SimpleQueue()
    for checker in checkers:
        idle.put(checker)

    def task(chunk: list[Sample]) -> list[Finding]:
        checker = idle.get()
        try:
            return checker.check(chunk, whole)
        finally:
            idle.put(checker)

    under_way: deque[Future[list[Finding]]] = deque()
    threads = ThreadPoolExecutor(processes)
    try:
        for chunk in chunks:
            under_way.append(threads.submit(task, chunk))
            if len(under_way) >= 4 * processes:
                yield _result(under_way.popleft(), should_stop)
        while under_way:
            yield _result(under_way.popleft(), should_stop)
    finally:
        for checker in checkers:
            checker.stop()
        threads.shutdown(cancel_futures=True)
        for checker in checkers:
            checker.close()


def _result(future: Future[list[Finding]], should_stop: Callable[[], bool]) -> list[Finding]:
    while True:
        if should_stop():
            raise ScanCancelledError
        if wait([future], timeout=_LOOK_AROUND_S).done:
            return future.result()
