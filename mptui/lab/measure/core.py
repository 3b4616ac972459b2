"""Measures speed, memory and loss in short runs, each in a separate process.

torch's switches, the memory peak and compiled code belong to a process, and one measurement must not affect
the next. Where possible, one process imports torch and forks for each run: before the first tensor, torch
has neither threads nor a device context.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from mptui.errors import MemoryExhaustedError, MptuiError
from mptui.lab.bench.run_listener import LOSS_AT, RunListener
from mptui.lab.bench.stats import Span
from mptui.processes.child import exit_code_name
from mptui.processes.fork_server import ForkServer
from mptui.processes.run_server import RUN_MODULES

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Plan, Request

_INTERVAL_S = 0.1
_POLL_S = 0.2
_PATIENCE_S = 10.0
"""How long a process may take to end once its output is closed."""
_PRELOAD = (*RUN_MODULES, "mptui.lab.bench.unsaved")
_BUILT_IN_STEPS = 32
"""Least steps per epoch of the built-in data, so that the time between epochs is comparatively short."""


@dataclass(frozen=True, slots=True)
class ShortRunResult:
    """The result of one short run. Bytes and seconds.

    Attributes:
        span: Samples of all steps after the warm-up, and their time.
        peak_bytes: Peak memory of tensors on the device; on a CPU, of the process.
        first_step_s: From the start of training to the end of its first step, compiling included.
        loss: Mean training loss of the second half of the first steps; None if not requested.
        wait: Fraction of time that steps waited for data.
        epoch_steps: Optimizer steps per epoch.
        classes: Number of classes of its data.
        run_s: Wall time of the whole run, without the start of its process.
    """

    span: Span
    peak_bytes: int | None
    first_step_s: float | None
    loss: float | None
    wait: float
    epoch_steps: int = 0
    classes: int = 0
    run_s: float = 0.0

    @property
    def samples_per_second(self) -> float:
        """The rate of its span."""
        return self.span.rate


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a run is measured: `seconds` of training after the warm-up, and at least to step `loss_at`.

    A run with `loss_at` above 0 emits an event per step, which slows it down a little: compare it only with
    similar ones. A run that takes longer than `limit_s`, or `first_step_limit_s` for its first step, is
    abandoned.
    """

    seconds: float
    loss_at: int = LOSS_AT
    limit_s: float | None = None
    first_step_limit_s: float | None = None


class MeasureError(Exception):
    """A run could not be measured; the message is a sentence for users.

    Attributes:
        exit_code: The exit code that `mptui run` would have.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        self.exit_code = exit_code
        super().__init__(message)

    @property
    def out_of_memory(self) -> bool:
        """Whether it ran out of memory."""
        return self.exit_code == MemoryExhaustedError.exit_code


class StoppedError(Exception):
    """A stop was requested during a measurement."""


def endless(request: "Request", plan: "Plan") -> "Request":
    """Return the request on the plan's device, with many epochs of some length.

    Then no run ends before it is measured, and none moves to another device because this one is busy.
    """
    flags = {**request.flags, "training.epochs": ("bench", 100_000)}
    flags["hardware.device"] = ("bench", plan.device.torch_name)
    if plan.resolved.sources["data.samples"].startswith("chosen"):
        flags["data.samples"] = ("bench", 2 * _BUILT_IN_STEPS * plan.config.training.batch_size)
    return replace(request, flags=flags)


class Measurer:
    """Measures one run at a time; a context manager that ends its processes.

    Args:
        environ: Environment of the runs.
        should_stop: Polled several times per second.
    """

    def __init__(self, environ: Mapping[str, str], should_stop: Callable[[], bool] = lambda: False) -> None:
        self._environ, self._should_stop = dict(environ), should_stop
        self._server: ForkServer | None = None

    def __enter__(self) -> "Measurer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def measure(self, request: "Request", settings: Mapping[str, object], effort: Effort) -> ShortRunResult:
        """Run `request` with `settings` (table.key -> value) in a separate process.

        Args:
            request: The training.
            settings: Settings that take precedence over the request's.
            effort: How long to measure.

        Raises:
            MeasureError: The run failed before it was measured, for example out of memory.
            StoppedError: `should_stop` returned True; the run has ended.
        """
        flags = {key: list(value) for key, value in request.flags.items() if key not in settings}
        flags |= {key: ["bench", value] for key, value in settings.items()}
        sets = [given for given in request.sets if given.partition("=")[0].strip() not in settings]
        asked: dict[str, object] = {"profile": request.profile, "flags": flags, "sets": sets}
        asked |= {"trust_code": request.trust_code}
        asked |= {"seconds": effort.seconds, "loss_at": effort.loss_at}
        asked |= {"first_step_limit_s": effort.first_step_limit_s}
        # an abandoned run can write into its directory until its process has ended
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            return self.ask(f"{__name__}:main", {**asked, "folder": folder}, effort.limit_s)

    def ask(self, call: str, asked: Mapping[str, object], limit_s: float | None) -> ShortRunResult:
        """Return the answer of a separate process.

        Args:
            call: `module:function`, which calls `reply`.
            asked: The keywords of what it replies with, for JSON.
            limit_s: Time limit in seconds.

        Raises:
            MeasureError: It failed, or took too long.
            StoppedError: `should_stop` returned True; the process has ended.
        """
        if self._should_stop():
            raise StoppedError
        if self._server is None:
            self._server = ForkServer(_PRELOAD, self._environ, subprocess.DEVNULL)
        try:
            answer = self._ask(self._server, call, json.dumps(asked), limit_s)
        except RuntimeError as error:
            self._end()
            raise MeasureError(str(error)) from None
        except BaseException:
            self._end()
            raise
        if "error" in answer:
            raise MeasureError(answer["error"], answer["code"])
        return ShortRunResult(**{**answer, "span": Span(*answer["span"])})

    def _ask(self, server: ForkServer, call: str, asked: str, limit_s: float | None) -> dict[str, Any]:
        until = None if limit_s is None else time.monotonic() + limit_s
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as answers:
            try:
                child = server.start(call, asked, streams=(None, writing, None))
            finally:
                os.close(writing)
            while not select.select([answers], [], [], _POLL_S)[0]:
                if self._should_stop():
                    raise StoppedError
                if until is not None and time.monotonic() > until:
                    raise MeasureError(f"no result within {limit_s:.0f} s")
            answer = answers.readline()
        code = child.wait(_PATIENCE_S)
        if answer:
            return dict(json.loads(answer))
        return {"error": f"the measured run ended with {exit_code_name(code)}", "code": 1}

    def _end(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


def _run(
    profile: str | None,
    flags: dict[str, Any],
    sets: Sequence[str],
    trust_code: bool,
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
    given["guards.on_nan"] = ("bench", "ignore")  # a recovery would change the measured settings
    given["guards.on_oom"] = ("bench", "stop")
    plan = plan_run(Request(profile, given, sets, os.environ, trust_code))
    watch = RunListener(seconds, loss_at=loss_at)
    run = create_run(Path(folder), "bench", str(plan.config.model.name), None)
    session = UnsavedSession(plan, run, force_compile=plan.config.speed.compile != "off")
    events = session.listen()
    session.start()
    while not session.finished:
        events.wait(_INTERVAL_S)
        for event in events.drain():
            watch.handle(event)
        if first_step_limit_s is not None and watch.is_slow(first_step_limit_s):
            # a running step can't be stopped: the process ends with this answer
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
    if not watch.span.samples:
        raise MptuiError("the run ended before it was measured", hint="")
    memory = result.summary["memory"]
    return asdict(
        ShortRunResult(
            span=watch.span,
            peak_bytes=memory.get("peak_allocated_bytes") or memory.get("host_peak_bytes"),
            first_step_s=result.summary["time"]["first_step_s"],
            loss=watch.loss,
            wait=watch.wait,
            epoch_steps=watch.epoch_steps,
            classes=watch.classes,
            run_s=time.monotonic() - began,
        )
    )


def _answer(measure: Callable[..., dict[str, Any]], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Run the measurement in this process."""
    from mptui.hardware.memory import keep_freed_memory

    keep_freed_memory()
    try:
        return measure(**asked)
    except MptuiError as error:
        return {"error": error.message, "code": error.exit_code}
    except Exception as error:  # noqa: BLE001 - a bug is told to the person too: nobody else hears of it
        from mptui.engine.guards.oom_errors import is_out_of_memory

        if is_out_of_memory(error):
            return {"error": "out of memory", "code": MemoryExhaustedError.exit_code}
        last = (str(error).strip() or type(error).__name__).splitlines()[-1]
        return {"error": f"the measured run failed: {type(error).__name__}: {last}", "code": 1}


def main() -> None:
    """Measure the run that `argv` describes in JSON, and print the result."""
    reply(_run)


def reply(measure: Callable[..., dict[str, Any]]) -> NoReturn:
    """Print what `measure` returns for the keywords in `argv`, in JSON, and exit, even if threads are busy.

    It returns the fields of a `ShortRunResult`, or `error` and `code`, those of a `MeasureError`.
    """
    answers = os.dup(1)
    os.dup2(2, 1)  # keep output of libraries out of the answers
    answer = json.dumps(_answer(measure, json.loads(sys.argv[1]))).encode() + b"\n"
    while answer:
        answer = answer[os.write(answers, answer) :]
    os._exit(0)
