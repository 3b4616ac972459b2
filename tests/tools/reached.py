"""Writes down which tests reach which marked statements, and how long each test takes.

`mutants record` puts this file beside a copy of `mptui`: `at(N)` stands there before each marked statement,
and pytest loads it as a plug-in. It imports nothing that the program doesn't import anyway.
"""

import json
import os

_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reached.jsonl")  # noqa: PTH118, PTH120, PTH100
_seen: set[tuple[int, str]] = set()
_controls = False


def at(number):
    """Write the number and the test that runs now, once a process; children inherit the test's name."""
    pair = number, os.environ.get("PYTEST_CURRENT_TEST", "")
    if pair not in _seen:
        _seen.add(pair)
        _write(site=number, test=pair[1].rpartition(" (")[0])


def pytest_configure(config):
    global _controls
    _controls = not hasattr(config, "workerinput")


def pytest_runtest_logreport(report):
    if _controls:
        _write(done=report.nodeid, seconds=round(report.duration, 3), outcome=report.outcome, at=report.when)


def _write(**fields):
    line = json.dumps(fields) + "\n"
    file = os.open(_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)  # one write is one line, from any process
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
