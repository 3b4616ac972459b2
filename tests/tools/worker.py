"""Runs tests in a copy that has a fault, without the seconds that the imports of libraries take."""

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from tests.tools.copies import ROOT

_LIBRARIES = """
asyncio cv2 hypothesis numpy PIL.Image psutil pydantic pytest_asyncio pytest_timeout pyte rich.table
safetensors.torch simplejpeg textual.app textual.widgets tifffile torch torchvision torch.utils.data typer
xdist yaml
"""
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


class Worker:
    """A process in a copy, with all libraries imported, that forks for each run of tests."""

    def __init__(self, root, environ):
        self.root = root
        self._process = subprocess.Popen(
            ["python", "-m", "tests.tools.worker"],
            cwd=root,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._changes = 0

    def first_failing(self, tests, limit_s):
        """Run tests up to the first that fails; return its id, None if none does, or "timed out"."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps({"tests": tests, "limit_s": limit_s}), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())["failed"]

    @contextmanager
    def changed(self, statement, mutation):
        """Have a fault in the copy."""
        path = self.root / statement.path.relative_to(ROOT)
        source, times = path.read_bytes(), path.stat()
        path.write_bytes(mutation.applied(source))
        self._changes += 1
        os.utime(
            path, (times.st_atime, times.st_mtime + 10 * self._changes)
        )  # no old byte code is taken for it
        try:
            yield
        finally:
            path.write_bytes(source)
            os.utime(path, (times.st_atime, times.st_mtime))

    def close(self):
        self._process.communicate()


def main():
    """Serve a `Worker`: fork, run the tests, and answer which failed."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)  # what the tests leave behind becomes a child, and is ended
    answers = os.fdopen(os.dup(1), "w")
    log = os.open("mutants.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for library in _LIBRARIES.split():
        importlib.import_module(library)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps({"failed": _in_a_fork(order["tests"], order["limit_s"])}), file=answers, flush=True)


def _in_a_fork(tests, limit_s):
    progress = Path("mutants.progress")
    progress.unlink(missing_ok=True)
    pid = os.fork()
    if not pid:
        _be_the_tests(tests, progress)
    code: int | None = None
    end = time.monotonic() + limit_s
    while code is None and time.monotonic() < end:
        time.sleep(0.05)
        ended, status = os.waitpid(-1, os.WNOHANG)  # orphans of tests, too, as init does
        code = os.waitstatus_to_exitcode(status) if ended == pid else None
    _end_children()
    lines = [json.loads(line) for line in progress.read_text().splitlines()] if progress.exists() else []
    if failed := next((line["failed"] for line in lines if "failed" in line), None):
        return failed if "::" in failed else next(test for test in tests if test.startswith(failed))
    if code is None:
        return "timed out"
    # the process of the tests was ended, by them or by the fault
    return None if code in (0, 5) else next((line["began"] for line in reversed(lines)), tests[0])


def _be_the_tests(tests, progress) -> NoReturn:
    try:
        os._exit(_run_tests(tests, progress))
    finally:
        os._exit(3)


def _run_tests(tests, progress):
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    options = ["-x", "-n", "0", "-p", "no:cacheprovider", "--timeout", "120", "--tb", "line"]
    return int(pytest.main([*options, *files], plugins=[_Only(tests, progress)]))


class _Only:
    """Runs the given tests of what pytest collects, in their order, and writes down how far they are."""

    def __init__(self, tests, progress):
        self._order = {test: place for place, test in enumerate(tests)}
        self._file = progress.open("a", buffering=1)

    def pytest_collection_modifyitems(self, items):
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order), key=lambda item: self._order[item.nodeid]
        )

    def pytest_runtest_logstart(self, nodeid):
        print(json.dumps({"began": nodeid}), file=self._file)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            print(json.dumps({"failed": report.nodeid}), file=self._file)

    pytest_collectreport = pytest_runtest_logreport


def _end_children():
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.send_signal(signal.SIGKILL)
    with suppress(ChildProcessError):
        while os.waitpid(-1, 0):
            pass


if __name__ == "__main__":
    main()
