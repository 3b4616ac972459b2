"""`mptui sync`: what trackers have missed, and how it ends where that can't be sent."""

import json

import pytest

from mptui.cli.main import _exit_code
from mptui.registry.trackers import TRACKERS
from mptui.runs.trackers import feeder
from mptui.testing.tracker import course, scalars_in, write
from tests.made.json_documents import checked
from tests.runs.trackers import toys
from tests.runs.trackers.journals import end

pytestmark = pytest.mark.slow  # each starts an interpreter


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run with the tracker `lines`, whose process was killed before it got anything."""
    for name, spec in toys.TOYS.items():
        monkeypatch.setitem(TRACKERS, name, spec)
    monkeypatch.setattr(feeder, "FEEDER", toys.CALL)
    run = tmp_path / "runs" / "20261120-fast"
    run.mkdir(parents=True)
    (run / "run.toml").write_text('[logging]\ntrackers = ["lines"]\n')
    write(run, *course(1, 1200), end(1200))
    monkeypatch.chdir(tmp_path)
    return run


def sync(*arguments):
    return _exit_code(["sync", *arguments], debug=False)


def test_it_sends_once_what_was_missed_also_to_a_new_tracker(run, capsys):
    assert sync("2026") == 0
    assert capsys.readouterr().out == "lines: 1,202 events sent\n"
    assert sync("2026", "--set", 'logging.trackers=["lines", "csv"]') == 0
    assert capsys.readouterr().out.splitlines() == ["csv: 1,202 events sent", "lines: nothing was missing"]
    assert toys.lines_of(run, "lines") == scalars_in(run)
    assert sync("2026", "--json") == 0
    document = checked("sync", json.loads(capsys.readouterr().out))
    assert document == {"version": 1, "run": run.name, "sent": {"lines": 0}}


@pytest.mark.parametrize(
    ("trackers", "code", "message", "hint"),
    [
        ("[]", 2, "no tracker is chosen", "logging.trackers="),
        ('["absent"]', 2, "absent is not installed: pip install 'mptui[absent]'", "pip install"),
        ('["raises", "lines"]', 8, "raises: no server", "mptui sync"),
        ('["nosuch"]', 2, "nosuch", "lines"),
    ],
)
def test_a_tracker_that_gets_nothing_is_an_error(run, capsys, trackers, code, message, hint):
    assert sync("2026", "--set", f"logging.trackers={trackers}") == code
    told = capsys.readouterr().err
    assert message in told
    assert hint in told


def test_a_run_that_is_not_there_is_an_error(run):
    assert sync("2025") == 6
