"""A stop request during a compilation, which ignores it: the run saves, ends at once, and can be resumed."""

import os
import signal
import subprocess
import sys
import threading
from functools import partial

import psutil
import pytest
import torch

from mptui.engine.checkpoint.files import read_newest
from mptui.events import CheckpointSaved, EpochFinished, PhaseChanged, RunFinished, Step
from mptui.runs.session import watchdog
from mptui.runs.session.shutdown import worker_left
from mptui.runs.store.directory import read_summary
from mptui.runs.store.journal import read_journal
from tests.made.runs import LIMIT_S, UNET, ended, session_of
from tests.made.waiting import wait_until
from tests.program import Program

slow = partial(pytest.param, marks=pytest.mark.slow)

SETTINGS = {
    **{key: value for key, value in UNET.items() if key != "training.warmup_epochs"},
    "training.epochs": 2,
    "training.deterministic": True,
    "training.ema_decay": 0.9,
    "speed.compile": "default",
}


class Compiler:
    """Stand-in for torch.compile: each forward waits for permission, in the given phases."""

    def __init__(self):
        self.may_go_on = threading.Event()
        self.slow = {"training", "evaluating"}
        self.begun = threading.Event()

    def compile(self, model, **_):
        def compiled(*inputs):
            if ("training" if model.training else "evaluating") in self.slow:
                self.begun.set()
                assert self.may_go_on.wait(LIMIT_S)
            return model.forward(*inputs)

        model._compiled_call_impl = compiled


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    program = tmp_path / "bin" / "c++"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setattr(watchdog, "PULSE_S", 0.05)
    stand_in = Compiler()
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model, **how: stand_in.compile(model, **how))
    yield stand_in
    stand_in.may_go_on.set()
    wait_until(lambda: not worker_left())


def session(runs, name, *, resume=False, **changed):
    return session_of(runs / name, SETTINGS | changed, resume=resume, force_compile=True)


def last_weights(run):
    return read_newest(run / "checkpoints")[0].tensors


def losses(run):
    return {event.step: event.loss for event in read_journal(run) if isinstance(event, Step)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing stopped; torch compiles nothing in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Module, "compile", lambda *_, **__: None)
        done = ended(session(tmp_path_factory.mktemp("runs"), "whole"))
    assert done.result.exit_code == 0
    return done.run


@pytest.mark.parametrize("phase", [slow("training"), "evaluating"])
def test_a_stop_in_a_compile_ends_the_run_at_once_and_it_goes_on_bit_by_bit(tmp_path, whole, compiler, phase):
    compiler.slow = {phase}
    stopped = session(tmp_path, "stopped")
    stopped.start()
    assert compiler.begun.wait(LIMIT_S)
    stopped.mailbox.stop(signal.SIGTERM)
    assert stopped.wait(LIMIT_S)  # during the compilation
    assert not compiler.may_go_on.is_set()
    assert worker_left()
    assert (stopped.result.status, stopped.result.exit_code) == ("stopped", 143)
    summary = read_summary(stopped.run)
    assert (summary["status"], summary["exit_code"]) == ("stopped", 143)
    written = list(read_journal(stopped.run))
    assert isinstance(written[-1], RunFinished)
    assert [e.reason for e in written if isinstance(e, CheckpointSaved)][-1] == "compile"
    assert not (stopped.run / "lock.json").exists()

    compiler.may_go_on.set()  # state that the worker finds when it returns
    wait_until(lambda: not worker_left())
    assert list(read_journal(stopped.run)) == written
    assert read_newest(stopped.run / "checkpoints")[0].step == (0 if phase == "training" else 4)

    assert ended(session(tmp_path, "stopped", resume=True)).result.exit_code == 0
    assert losses(tmp_path / "stopped") == losses(whole)
    one, other = last_weights(tmp_path / "stopped"), last_weights(whole)
    for group in ("model", "optimizer", "average"):
        assert one[group].keys() == other[group].keys()
        for name, value in one[group].items():
            assert torch.equal(value, other[group][name]), name


@pytest.mark.parametrize("asks", ["x", "interrupt"])
def test_a_key_and_an_interrupt_end_it_too(tmp_path, compiler, asks):
    stopped = session(tmp_path, "stopped")
    stopped.start()
    assert compiler.begun.wait(LIMIT_S)
    if asks == "x":
        stopped.send("stop")
    else:
        stopped.mailbox.stop(signal.SIGINT)
    assert stopped.wait(LIMIT_S)
    assert stopped.result.status == "stopped"
    assert stopped.result.exit_code == (0 if asks == "x" else 130)


def test_a_compile_that_ends_before_the_stop_is_seen_goes_on_in_order(tmp_path, compiler):
    compiler.may_go_on.set()
    one = session(tmp_path, "one", **{"training.epochs": 100_000})
    heard = one.listen()
    one.start()
    wait_until(lambda: any(isinstance(event, EpochFinished) for event in heard.drain()))  # both are compiled
    one.mailbox.stop(signal.SIGTERM)
    assert one.wait(LIMIT_S)
    assert one.result.exit_code == 143
    assert "stop" in [e.reason for e in read_journal(one.run) if isinstance(e, CheckpointSaved)]
    assert not worker_left()


def test_a_real_process_ends_by_a_real_signal_while_it_compiles(tmp_path):
    waits = tmp_path / "compiles"
    waits.touch()
    program = tmp_path / "bin" / "c++"
    program.parent.mkdir()
    program.touch(mode=0o755)
    given = {key: str(value).lower() for key, value in SETTINGS.items() if key != "speed.compile"}
    sets = [text for key, value in given.items() for text in ("--set", f"{key}={value}")]
    asked = ["run", "--compile", "--name", "run", "--runs-dir", str(tmp_path), "--json", *sets]
    environ = {"SLOW_COMPILE": str(waits), "PATH": f"{program.parent}:{os.environ['PATH']}"}
    child = Program(*asked, environ=environ, call="tests.runs.slow_compile:run")
    compiles = lambda e: isinstance(e, PhaseChanged) and e.phase == "compiling"  # noqa: E731
    wait_until(lambda: child.poll() is not None or any(map(compiles, read_journal(tmp_path / "run"))))
    child.send_signal(signal.SIGTERM)
    told, complaint = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 143, complaint
    assert waits.exists()  # it would still be compiling
    assert '"status": "stopped"' in told
    assert "Traceback" not in complaint
    assert read_summary(tmp_path / "run")["status"] == "stopped"


ENDS_WITH_COMPILERS = """
import subprocess, sys
from mptui.runs.session.shutdown import end_now
inner = "import subprocess, sys; print(subprocess.Popen(['sleep', '1000']).pid, flush=True); input()"
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
child = subprocess.Popen([sys.executable, "-c", inner], **pipes)
print(child.pid, child.stdout.readline().strip())
end_now(3)
"""


def test_the_end_takes_the_compilers_and_what_they_started_along():
    ended = subprocess.run(
        [sys.executable, "-c", ENDS_WITH_COMPILERS], stdout=subprocess.PIPE, text=True, check=False
    )
    assert ended.returncode == 3
    compilers = [int(pid) for pid in ended.stdout.split()]
    assert len(compilers) == 2
    wait_until(lambda: not any(map(runs, compilers)))


def runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
