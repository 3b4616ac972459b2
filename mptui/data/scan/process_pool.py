"""Child processes that decode files, with a bounded queue of work."""

import json
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from mptui.data.core.parts import title_of
from mptui.data.scan.check_sample import Sample, SampleCheck
from mptui.processes.child import start

_LOOK_AROUND_S = 0.2
_ENDED = "reading it ended the process: out of memory, or an error in the decoder"

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Work(Generic[Found]):
    """The work of the child processes."""

    module: str
    """Module whose `main` answers each line [told, samples] of stdin with a JSON list, a value per sample."""
    told: Any
    """Argument sent with each chunk; ready for JSON."""
    found: Callable[[Any], Found]
    """Converts a value to a result."""
    failed: Callable[[str, str], Found]
    """Creates the result of a sample that ends the child, from its path and the reason."""


def looking(*, whole: bool, stored: bool = False) -> Work[SampleCheck]:
    """Return the work of checking samples: whole, or headers; as they are stored, or as 8-bit RGB."""
    return Work("mptui.data.scan.check_sample", [whole, stored], SampleCheck.from_json, SampleCheck)


class ScanCancelledError(Exception):
    """A stop was requested before the scan was complete."""


class CheckProcess(Generic[Found]):
    """One child process. A file that ends the child is identified and reported; the others are checked."""

    def __init__(self, work: Work[Found]) -> None:
        self._work = work
        self._guard = threading.Lock()
        self._stopped = False
        self._child = self._started()

    def check(self, samples: Sequence[Sample]) -> list[Found]:
        """Process samples in the child.

        Raises:
            ScanCancelledError: `stop` was called in the meantime.
        """
        try:
            return self._ask(samples)
        except (OSError, EOFError):
            self._restart()
        if len(samples) == 1:
            return [self._work.failed(title_of(samples[0][0]), _ENDED)]
        return [found for sample in samples for found in self.check([sample])]

    def stop(self) -> None:
        """End the child, from any thread; a `check` in progress returns at once."""
        with self._guard:
            self._stopped = True
            self._child.kill()

    def close(self) -> None:
        """Release the resources of a stopped child."""
        self._child.communicate()

    def _restart(self) -> None:
        with self._guard:
            if self._stopped:
                raise ScanCancelledError
            self._child.kill()
            self._child.communicate()
            self._child = self._started()

    def _ask(self, samples: Sequence[Sample]) -> list[Found]:
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps([self._work.told, samples]) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line.endswith("\n"):
            raise EOFError("the child ended")
        return [self._work.found(values) for values in json.loads(line)]

    def _started(self) -> subprocess.Popen[str]:
        # The child ends with this process in any case, as its stdin closes.
        call = f"{self._work.module}:main"
        return start(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def check_all(
    chunks: Iterator[list[Sample]], work: Work[Found], processes: int, should_stop: Callable[[], bool]
) -> Generator[list[Found], None, None]:
    """Process chunks of samples in `processes` children; yield the results in the order of the chunks.

    Only a few chunks are in progress at a time.

    Raises:
        ScanCancelledError: `should_stop` returned True.
    """
    checkers = [CheckProcess(work) for _ in range(processes)]
    idle: SimpleQueue[CheckProcess[Found]] = SimpleQueue()
    for checker in checkers:
        idle.put(checker)

    def task(chunk: list[Sample]) -> list[Found]:
        checker = idle.get()
        try:
            return checker.check(chunk)
        finally:
            idle.put(checker)

    under_way: deque[Future[list[Found]]] = deque()
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


def _result(future: Future[list[Found]], should_stop: Callable[[], bool]) -> list[Found]:
    while True:
        if should_stop():
            raise ScanCancelledError
        if wait([future], timeout=_LOOK_AROUND_S).done:
            return future.result()
