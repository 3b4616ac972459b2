"""The end of a session: it emits no events afterwards, and is reached whatever fails before."""

import threading
from functools import partial

import pytest

from mptui.engine.ranks.group import Ranks
from mptui.events import RunFinished
from mptui.runs.session.session import Session
from mptui.runs.store.directory import read_summary
from mptui.runs.store.files import Records
from mptui.runs.store.journal import read_journal
from tests.made.runs import LIMIT_S, UNET, ended, session_of

slow = partial(pytest.param, marks=pytest.mark.slow)

SMALL = UNET | {"training.max_steps": 1}


def test_a_command_after_the_end_is_told_to_nobody(tmp_path):
    one = session_of(tmp_path / "one", SMALL)
    heard = one.listen()
    assert ended(one).result.exit_code == 0
    journal = (one.run / "events.jsonl").read_bytes()
    one.send("pause")
    assert isinstance(heard.drain()[-1], RunFinished)
    assert (one.run / "events.jsonl").read_bytes() == journal


def test_what_is_told_while_the_end_is_written_comes_not_after_it(tmp_path, monkeypatch):
    one = session_of(tmp_path / "one", SMALL)
    handle, tellers = Records.handle, []

    def taken(records, event):
        handle(records, event)
        if isinstance(event, RunFinished):
            teller = threading.Thread(target=one.send, args=("pause",))
            teller.start()
            teller.join(0.2)  # it waits for the end, or returns at once
            tellers.append(teller)

    monkeypatch.setattr(Records, "handle", taken)
    heard = one.listen()
    assert ended(one).result.exit_code == 0
    tellers[0].join(LIMIT_S)
    assert isinstance(heard.drain()[-1], RunFinished)
    assert isinstance(list(read_journal(one.run))[-1], RunFinished)


@pytest.mark.parametrize("broken", ["write_summary", "close", "handle"])
def test_an_end_that_fails_ends_the_session_all_the_same(tmp_path, monkeypatch, broken):
    one = session_of(tmp_path / "one", SMALL)
    whole = getattr(Records, broken)

    def fails(records, *given):
        if (
            one._trainer is not None
            and one._trainer.state.step
            and (not given or isinstance(given[0], RunFinished))
        ):
            raise RuntimeError("broken")
        return whole(records, *given)

    monkeypatch.setattr(Records, broken, fails)
    one.start()
    assert one.wait(60)
    assert (one.result.status, one.result.exit_code) == ("failed", 1)
    assert str(one.result.bug) == "broken"
    assert not (one.run / "lock.json").exists()
    assert not (one.run / "control.sock").exists()


@pytest.mark.parametrize(
    ("environ", "status"),
    [
        slow({}, "failed"),
        ({"TORCHELASTIC_RUN_ID": "mptui-7"}, "running"),
        slow({"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_MAX_RESTARTS": "2"}, "running"),
        ({"TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "2"}, "failed"),
    ],
    ids=["alone", "of a launcher", "of torchrun", "of torchrun, for the last time"],
)
def test_a_bug_is_not_the_end_of_a_run_that_its_launcher_starts_again(tmp_path, monkeypatch, environ, status):
    def broken(*_, **__):
        raise RuntimeError("a bug")

    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    one = session_of(tmp_path / "one", SMALL)
    with monkeypatch.context() as patched:
        patched.setattr("mptui.engine.epochs.evaluate", broken)
        assert ended(one).result.exit_code == 1
    summary = read_summary(one.run)
    assert (summary["status"], "error" in summary) == (status, status == "failed")
    assert "a bug" in (one.run / "traceback.txt").read_text()
    ends = [event for event in read_journal(one.run) if isinstance(event, RunFinished)]
    assert len(ends) == (status == "failed")
    again = Session(one.plan, one.run, resume=True)
    assert ended(again).result.exit_code == 0
    summary = read_summary(one.run)
    assert (summary["status"], "error" in summary) == ("completed", False)


class _Unanswered(Ranks):
    """Others that don't answer: notes which status the run has on disk when it turns to them."""

    def __init__(self, run):
        super().__init__()
        self._run, self.found = run, []

    def fail(self, error):
        self.found.append(read_summary(self._run)["status"])

    def close(self, *, at_once=False):
        self.found.append((read_summary(self._run)["status"], at_once))


def test_the_result_of_a_run_that_fails_is_written_before_its_group_is_left(tmp_path, monkeypatch):
    made = session_of(tmp_path / "one", SMALL)
    ranks = _Unanswered(made.run)
    one = Session(made.plan, made.run, ranks=ranks)
    with monkeypatch.context() as patched:
        patched.setattr("mptui.engine.epochs.evaluate", lambda *_, **__: 1 / 0)
        assert ended(one).result.status == "failed"
    assert ranks.found[-2:] == ["failed", ("failed", True)]
