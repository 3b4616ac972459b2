"""Short honest runs, each in a process of its own: how fast, in what memory, and what was learnt by then.

A process of its own since the switches of torch, the memory's peak and what a compiler keeps are a process's:
what was measured before must not be seen in what is measured next. Where the system can, one process imports
torch and forks for each run: before the first tensor it has no thread of torch's and no device to lose.
`python -m mptui.lab.bench.measure` is that process; it reads what to do on stdin and answers on stdout, a
line of JSON each.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mptui.errors import MemoryExhaustedError, MptuiError
from mptui.lab.bench.run_listener import LOSS_AT, RunListener

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Plan, Request

COMPILE_S = {"cpu": 110.0, "gpu": 60.0}
"""Seconds that a cold first step takes to compile, by kind of device: what is expected beforehand."""

_INTERVAL_S = 0.1
_LOOK_S = 0.2
_BUILT_IN_STEPS = 32
"""Steps an epoch of the built-in data has at least, so that it is long beside what comes between two."""
# macOS' own libraries start threads as they are loaded, and Windows can't fork
_FORKS = sys.platform == "linux"
_DIE_WITH_PARENT = 1  # prctl(2): PR_SET_PDEATHSIG


@dataclass(frozen=True, slots=True)
class ShortRunResult:
    """What one short run came to. Bytes and seconds.

    Attributes:
        samples_per_second: Median over the intervals after the warm-up.
        peak_bytes: Most that the tensors took on the device; on a CPU, the process.
        first_step_s: From the start of training to the end of its first step, compiling included.
        loss: Mean training loss of the later half of the first steps; None if it was not wanted.
        wait: Share of the time that steps waited for data.
        epoch_steps: Optimizer steps an epoch.
        run_s: Wall time of the whole run, without the start of its process.
    """

    samples_per_second: float
    peak_bytes: int | None
    first_step_s: float | None
    loss: float | None
    wait: float
    epoch_steps: int = 0
    run_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a run is measured: `seconds` of training after the warm-up, and to the step `loss_at`; 0: any.

    For its loss a run tells of every step, which costs it a little speed: compare it with its like. A run
    that has not ended `limit_s` after it was asked for is given up, as is one whose first step takes longer
    than `first_step_limit_s`.
    """

    seconds: float
    loss_at: int = LOSS_AT
    limit_s: float | None = None
    first_step_limit_s: float | None = None


class MeasureError(Exception):
    """A run that could not be measured; the text is a sentence for people.

    Attributes:
        exit_code: What `mptui run` would have ended with.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        self.exit_code = exit_code
        super().__init__(message)

    @property
    def out_of_memory(self) -> bool:
        """Whether it did not fit."""
        return self.exit_code == MemoryExhaustedError.exit_code


class StoppedError(Exception):
    """It was asked to end while a run was measured."""


def endless(request: "Request", plan: "Plan") -> "Request":
    """The same on the plan's device, in epochs of some length and many of them.

    No run ends before it is measured, and none goes to another device because this one is busy.
    """
    flags = {**request.flags, "training.epochs": ("bench", 100_000)}
    flags["hardware.device"] = ("bench", plan.device.torch_name)
    if plan.resolved.sources["data.samples"].startswith("chosen"):
        flags["data.samples"] = ("bench", 2 * _BUILT_IN_STEPS * plan.config.training.batch_size)
    return replace(request, flags=flags)


class Measurer:
    """Measures one run at a time; a context manager, which ends what it has started.

    Args:
        environ: Of the runs.
        should_stop: Asked several times a second.
    """

    def __init__(self, environ: Mapping[str, str], should_stop: Callable[[], bool] = lambda: False) -> None:
        self._environ, self._should_stop = dict(environ), should_stop
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Measurer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def measure(self, request: "Request", settings: Mapping[str, object], effort: Effort) -> ShortRunResult:
        """Run `request` under `settings` (table.key -> value) in a process of its own.

        Args:
            request: What is trained; what it says of the keys in `settings` is left aside.
            settings: They win over everything.
            effort: How long.

        Raises:
            MeasureError: The run ended before it was measured, out of memory for one.
            StoppedError: `should_stop` said so; the run has ended.
        """
        flags = {key: list(value) for key, value in request.flags.items() if key not in settings}
        flags |= {key: ["bench", value] for key, value in settings.items()}
        sets = [given for given in request.sets if given.partition("=")[0].strip() not in settings]
        asked: dict[str, object] = {"profile": request.profile, "flags": flags, "sets": sets}
        asked |= {"seconds": effort.seconds, "loss_at": effort.loss_at}
        asked |= {"first_step_limit_s": effort.first_step_limit_s}
        answer = self._answer(asked, effort.limit_s)
        if "error" in answer:
            raise MeasureError(answer["error"], answer["code"])
        return ShortRunResult(**answer)

    def _answer(self, asked: Mapping[str, object], limit_s: float | None) -> dict[str, Any]:
        if self._should_stop():
            raise StoppedError
        server = self._server = self._server or self._started()
        assert server.stdin is not None
        assert server.stdout is not None
        until = None if limit_s is None else time.monotonic() + limit_s
        try:
            server.stdin.write(json.dumps(asked).encode() + b"\n")
            server.stdin.flush()
            while not select.select([server.stdout], [], [], _LOOK_S)[0]:
                if self._should_stop():
                    raise StoppedError
                if until is not None and time.monotonic() > until:
                    raise MeasureError(f"no result within {limit_s:.0f} s")
            answer: dict[str, Any] = json.loads(server.stdout.readline())
        except (OSError, ValueError):
            self._end()
            raise MeasureError(f"the process that measures ended with {server.returncode}") from None
        except BaseException:
            self._end()
            raise
        if not _FORKS:
            self._end()
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        # In a session of its own, so that ctrl+c is ours alone. It ends with us, whatever ends us: its stdin
        # closes.
        return subprocess.Popen(
            [sys.executable, "-m", "mptui.lab.bench.measure"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what goes wrong is in the answer; the rest is chatter of libraries
            env=self._environ,
            start_new_session=True,
        )

    def _end(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.communicate()
            self._server = None


def _run(
    profile: str | None,
    flags: dict[str, Any],
    sets: Sequence[str],
    seconds: float,
    loss_at: int,
    first_step_limit_s: float | None,
    folder: str,
) -> dict[str, Any]:
    from mptui.lab.bench.unsaved import UnsavedSession
    from mptui.runs.planning.plan import Request, plan_run
    from mptui.runs.store.directory import create_run

    began = time.monotonic()
    given = {key: (str(flag), value) for key, (flag, value) in flags.items()}
    given["logging.step_interval_s"] = ("bench", 0.0 if loss_at else _INTERVAL_S)
    given["guards.on_nan"] = ("bench", "ignore")  # a repair would change what is being measured
    given["guards.on_oom"] = ("bench", "stop")
    plan = plan_run(Request(profile, given, sets, os.environ))
    watch = RunListener(seconds, loss_at=loss_at)
    run = create_run(Path(folder), "bench", str(plan.config.model.name), None)
    session = UnsavedSession(plan, run, force_compile=plan.config.speed.compile != "off")
    events = session.listen()
    session.start()
    while not session.finished:
        events.wait(_INTERVAL_S)
        for event in events.drain():
            watch.note(event)
        if first_step_limit_s is not None and watch.is_slow(first_step_limit_s):
            # no command reaches a step that is under way: the process ends with this answer
            return {"error": f"its first step took more than {first_step_limit_s:.1f} s", "code": 1}
        if watch.enough:
            session.mailbox.stop(None)
    result = session.result
    if result.bug is not None:
        raise result.bug
    if result.error is not None:
        raise result.error
    if result.summary["recoveries"]:
        raise MptuiError(str(result.summary["recoveries"][0]["action"]), hint="")
    if watch.rate is None:
        raise MptuiError("the run was over before it was measured", hint="")
    memory = result.summary["memory"]
    return asdict(
        ShortRunResult(
            samples_per_second=watch.rate,
            peak_bytes=memory.get("peak_allocated_bytes") or memory.get("host_peak_bytes"),
            first_step_s=result.summary["time"]["first_step_s"],
            loss=watch.loss,
            wait=watch.wait,
            epoch_steps=watch.epoch_steps,
            run_s=time.monotonic() - began,
        )
    )


def _answer(asked: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Be the process that is measured; `folder` takes the run's directory."""
    from mptui.hardware.memory import keep_freed_memory

    keep_freed_memory()
    try:
        return _run(**asked, folder=folder)
    except MptuiError as error:
        return {"error": error.message, "code": error.exit_code}
    except Exception as error:  # noqa: BLE001 - a bug is told to the person too: nobody else hears of it
        last = (str(error).strip() or type(error).__name__).splitlines()[-1]
        return {"error": f"the run to be measured failed: {type(error).__name__}: {last}", "code": 1}


def serve() -> None:
    """Answer requests on stdin until it ends."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print is no answer
    if _FORKS:
        import torch

        from mptui.lab.bench import unsaved
        from mptui.runs.planning import plan

        assert plan
        assert unsaved
        assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # a fork could not use it
    for line in sys.stdin:
        asked = json.loads(line)
        # a run that was given up may still write into its directory until its process has ended
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            answer = _forked(asked, folder) if _FORKS else _answer(asked, folder)
        answers.write(json.dumps(answer).encode() + b"\n")


def _forked(asked: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The answer of a child; this process ends, and the child with it, where nobody waits for it any more."""
    with _pipe() as (reading, writing):
        child = os.fork()
        if not child:
            _be_child(asked, folder, writing)
        os.close(writing)
        answer = b""
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([reading, 0], [], [])
            if 0 in ready:  # the next question comes after this answer, so it is the end of all of them
                os.kill(child, signal.SIGKILL)
                sys.exit()
            piece = os.read(reading, 1 << 16)
            if not piece:
                break
            answer += piece
        _, status = os.waitpid(child, 0)
    if answer.endswith(b"\n"):
        return dict(json.loads(answer))
    return {
        "error": f"the run to be measured ended with {_named(os.waitstatus_to_exitcode(status))}",
        "code": 1,
    }


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)


def _be_child(asked: Mapping[str, Any], folder: str, writing: int) -> None:
    """Be measured, answer, and end: what is left of the parent in this process must not run."""
    try:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        answer = json.dumps(_answer(asked, folder)).encode() + b"\n"
        while answer:
            answer = answer[os.write(writing, answer) :]
    finally:
        os._exit(0)


def _named(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"code {code}"


if __name__ == "__main__":
    serve()
