"""Processor time of each test: a table at the end of a run, and a limit for unit tests.

It is the time of this process and of children that it has waited for, and the limit grows with the time that
a fixed piece of work takes just then: a busy machine fails nobody. A fixture of several tests has a row of
its own; the first import of a module and the end of all fixtures after the last test, with the children of a
whole run, are charged to nobody.
"""

import resource
import sys
import threading
import time
from typing import Any

import pytest

REPORTED_S = 0.25
REFUSED_S = 2.0
"""On a quiet machine as that on which `PACE_S` was measured; the limit grows with `slowness`."""
PACE_S = 0.05
"""Processor time of the additions of `slowness`."""
ROWS = 20


def slowness():
    """How many times longer this process computes now: on a slower machine, or beside others; at least 1."""
    start, total = time.process_time(), 0
    for number in range(500_000):
        total += number
    return max(1.0, (time.process_time() - start) / PACE_S)


class Meter:
    """Seconds of the test that runs, and of fixtures that it is the first to ask for."""

    def __init__(self):
        self.by_name = {}
        self._others_s = 0.0
        self._is_last = False
        self._start_s = 0.0
        self._seconds = 0.0
        self._importing = threading.local()

    def start(self, *, is_last):
        self.by_name = {}
        self._is_last = is_last
        self._start_s = self._now()

    def seconds(self, when):
        """Seconds so far, at the end of the phase `when` of the test."""
        if not (self._is_last and when == "teardown"):
            self._seconds = self._now() - self._start_s
        return self._seconds

    def shared(self, name):
        """Charges what is spent until the generator goes on to a name."""
        start = self._now()
        try:
            return (yield)
        finally:
            self.by_name[name] = spent = self._now() - start
            self._others_s += spent

    def without(self, exec_module):
        """A loader's `exec_module` that is charged to nobody."""

        def run(module):
            if getattr(self._importing, "now", False):  # it is part of the time of the module that imports it
                return exec_module(module)
            self._importing.now, start = True, time.thread_time()
            try:
                return exec_module(module)
            finally:
                self._importing.now = False
                self._others_s += time.thread_time() - start

        return run

    def _now(self):
        usages = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        return sum(usage.ru_utime + usage.ru_stime for usage in usages) - self._others_s


METER = Meter()


class TimedImports:
    """A finder that asks the others."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        for finder in sys.meta_path:
            if finder is not TimedImports and (spec := finder.find_spec(name, path, target)) is not None:
                loader: Any = spec.loader
                if "exec_module" not in getattr(loader, "__dict__", ("exec_module",)):
                    loader.exec_module = METER.without(loader.exec_module)
                return spec
        return None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    METER.start(is_last=nextitem is None)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    if fixturedef.scope == "function":
        return (yield)
    return (yield from METER.shared(f"{fixturedef.baseid}: fixture {fixturedef.argname}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    seconds = METER.seconds(report.when)
    may_be_refused = report.when == "call" and report.passed and item.get_closest_marker("unit")
    if may_be_refused and seconds >= REFUSED_S and seconds >= REFUSED_S * slowness():
        report.outcome = "failed"
        report.longrepr = f"{seconds:.1f} s of processor time: a unit test takes less than {REFUSED_S:g} s"
    if report.when == "teardown":
        report.user_properties.append(("processor_s", {item.nodeid: seconds, **METER.by_name}))
    return report


class Table:
    """What the reports of all processes say, at the end of a run."""

    def __init__(self):
        self._seconds = {}

    def pytest_runtest_logreport(self, report):
        for name, seconds in dict(report.user_properties).get("processor_s", {}).items():
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds  # each process has its fixtures

    def pytest_terminal_summary(self, terminalreporter):
        rows = sorted(self._seconds.items(), key=lambda row: -row[1])
        dear = [row for row in rows if row[1] >= REPORTED_S]
        if not dear:
            return
        terminalreporter.section("processor time")
        for name, seconds in dear[:ROWS]:
            terminalreporter.write_line(f"{seconds:7.2f} s  {name}")
        whole, part = sum(self._seconds.values()), sum(seconds for _, seconds in dear)
        terminalreporter.write_line(
            f"{whole:7.1f} s  all; {part:.1f} s the {len(dear)} of {REPORTED_S} s or more"
        )


def pytest_configure(config):
    sys.meta_path.insert(0, TimedImports)
    config.pluginmanager.register(Table())
