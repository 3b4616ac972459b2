"""Measures speed, memory and loss in short runs, each in a process of its own, in alternated rounds."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from math import cos, exp, inf, log, pi, sin, sqrt, tan
from pathlib import Path
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from mptui.config.schema import RunConfig
from mptui.engine.checkpoint.files import Snapshot
from mptui.engine.checkpoint.saver import Saver
from mptui.errors import MemoryExhaustedError, MptuiError
from mptui.events import EpochStarted, Event, RunStarted, Step
from mptui.hardware.devices import Device
from mptui.processes.start import RUN_MODULES, ForkServer, exit_code_name
from mptui.registry.names import SIXTEEN_BIT
from mptui.runs.planning.build import PreparedRun
from mptui.runs.session.session import Session
from mptui.runs.store.directory import CHECKPOINTS

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Plan, Request


# Settings that can make training faster or smaller, each as a switch that is off or on
# -------------------------------------------------------------------------------------

Settings = Mapping[str, object]

COMPILE = "speed.compile"
BASELINE, EVERYTHING = "baseline", "everything"


@dataclass(frozen=True, slots=True)
class Switch:
    """One setting: `table.key` -> value, off and on.

    `together`: whether `everything` includes it; of several alternatives, one is included.
    """

    name: str
    title: str
    off: Settings
    on: Settings
    together: bool = True

    @classmethod
    def of(
        cls, key: str, values: tuple[object, object], name: str, title: str, *, together: bool = True
    ) -> "Switch":
        """Return the switch of one key with its values off and on."""
        return cls(name, title, {key: values[0]}, {key: values[1]}, together)


@dataclass(frozen=True, slots=True)
class Variant:
    """A measured combination of settings.

    Attributes:
        name: The name to ask for, and to show where there is no room for a title.
        title: The name to show.
        settings: `table.key` -> value.
        against: Name of the variant to compare with; None: it is what others are compared with.
        first_s: Additional seconds of its first run, for compiling.
    """

    name: str
    title: str
    settings: Settings
    against: str | None = None
    first_s: float = 0.0


def switches(config: RunConfig, device: Device, cpus: int, precision: str) -> list[Switch]:
    """Return the switches available for a device and a configuration.

    Args:
        config: The configuration.
        device: The device.
        cpus: CPUs that this process may use.
        precision: The 16-bit format that suits the device, which `everything` includes.
    """
    cuda, batch = device.torch_name.startswith("cuda"), config.training.batch_size
    modes = ("default", "reduce-overhead", "max-autotune") if cuda else ("default",)
    found = []
    if device.native.get("tf32") == "native":
        found.append(Switch.of("precision.matmul", ("highest", "high"), "tf32", "TF32"))
    for mode in SIXTEEN_BIT:
        if device.native.get(mode) != "no":
            values = "fp32", mode
            found.append(Switch.of("precision.mode", values, mode, mode, together=mode == precision))
    found += [
        Switch.of("speed.channels_last", (False, True), "channels_last", "channels last"),
        Switch.of("speed.fused", (False, True), "fused", "fused optimizer"),
    ]
    for mode in modes:
        name, title = (f"compile-{mode}", f"compile ({mode})") if cuda else ("compile", "compile")
        found.append(Switch.of(COMPILE, ("off", mode), name, title, together=mode == modes[-1]))
    found.append(Switch.of("training.batch_size", (batch, 2 * batch), "batch", f"batch {2 * batch}"))
    if cpus > 1:
        found.append(Switch.of("data.workers", (1, cpus), "workers", f"{cpus} workers"))
    found += [
        Switch.of("data.cache", ("off", "ram"), "cache-ram", "cache (ram)", together=False),
        Switch.of("data.cache", ("off", "device"), "cache", "cache (device)"),
    ]
    alphas = {"data.mixup_alpha": config.data.mixup_alpha, "data.cutmix_alpha": config.data.cutmix_alpha}
    if mixing := {key: alpha for key, alpha in alphas.items() if alpha}:
        found.append(Switch("no-mixup", "no mixup", mixing, dict.fromkeys(mixing, 0.0)))
    return found


def variants(
    found: list[Switch], plain: list[Switch] | None = None, start_s: Callable[[str], float] = lambda mode: 0.0
) -> list[Variant]:
    """Return the baseline, the baseline with each switch, everything, and everything without each switch.

    Args:
        found: The switches to measure.
        plain: All switches that are off in the baseline, if these are more.
        start_s: Returns the estimated seconds of compiling in a mode.
    """
    off: dict[str, object] = {}
    for switch in plain or found:
        off |= switch.off
    everything = dict(off)
    for switch in found:
        if switch.together:
            everything |= switch.on
    every = [
        Variant(BASELINE, "baseline, all off", off, None),
        *(Variant(f"+{s.name}", f"+ {s.title}", {**off, **s.on}, BASELINE) for s in found),
        Variant(EVERYTHING, "everything", everything, BASELINE),
        *(
            Variant(f"-{s.name}", f"everything - {s.title}", {**everything, **s.off}, EVERYTHING)
            for s in found
            if s.together
        ),
    ]
    return [replace(each, first_s=start_s(str(each.settings.get(COMPILE, "off")))) for each in every]


# Collects the events of a short run until it is measured
# -------------------------------------------------------

LOSS_AT = 10
"""Steps after which the losses of two runs are compared, if they aren't too slow."""

_WARM_UP, _WARM_UP_S = 5, 2.0
"""Steps, or seconds after the first step, that are excluded."""


class RunListener:
    """Collects the events of a run until it is measured.

    Args:
        seconds: Required seconds of training after the warm-up.
        loss_at: Number of steps whose loss is needed; 0: none.

    Attributes:
        epoch_steps: Optimizer steps per epoch.
        classes: Number of classes of the data.
        span: The steps after the warm-up, with all that held them up but validations.
    """

    def __init__(self, seconds: float, *, loss_at: int = LOSS_AT) -> None:
        self._seconds = seconds
        self._loss_at = loss_at
        self._warm = 0
        self._warm_s = 0.0
        self._waited_s = 0.0
        self._losses: list[float] = []
        self._training_since: float | None = None
        self._stepped = False
        self.epoch_steps = self.classes = 0
        self.span = SampleSpan(0.0, 0.0)

    def handle(self, event: Event) -> None:
        """Handle an event of the run."""
        if isinstance(event, RunStarted):
            self._training_since = time.monotonic()
            self.classes = len(event.classes)
        self._stepped |= isinstance(event, Step)
        if isinstance(event, EpochStarted):
            self.epoch_steps = event.steps
        if not isinstance(event, Step):
            return
        if self._loss_at // 2 < event.step <= self._loss_at:
            self._losses.append(event.loss)
        if self._is_warm_up(event):
            return
        if event.samples_per_second is None or event.step_time_s is None:
            return
        seconds = event.step_time_s * event.steps
        self.span = SampleSpan(
            self.span.samples + event.samples_per_second * seconds, self.span.seconds + seconds
        )
        self._waited_s += (event.data_wait_fraction or 0.0) * seconds

    def _is_warm_up(self, event: Step) -> bool:
        long_enough = self._warm_s >= _WARM_UP_S
        if self._warm:  # compiling and measuring in the first steps are not warm-up
            self._warm_s += (event.step_time_s or 0.0) * event.steps
        self._warm += event.steps
        return self._warm <= _WARM_UP and not long_enough

    @property
    def first_step_s(self) -> float:
        """Seconds that the first step has been running; 0 before it, and when it has ended."""
        since = self._training_since
        return 0.0 if since is None or self._stepped else time.monotonic() - since

    @property
    def enough(self) -> bool:
        """Whether the measurement is complete."""
        return self.span.seconds >= self._seconds and (self.loss is not None or not self._loss_at)

    @property
    def loss(self) -> float | None:
        """Mean loss of the second half of the first steps; None before their end, or if one is missing."""
        wanted = self._loss_at - self._loss_at // 2
        return sum(self._losses) / wanted if wanted and len(self._losses) == wanted else None

    @property
    def wait(self) -> float:
        """Fraction of the span that steps waited for data."""
        return self._waited_s / self.span.seconds if self.span.seconds else 0.0


# Rates of measured spans, and their ratio with a confidence interval, for few rounds on a busy machine
# -----------------------------------------------------------------------------------------------------

ROUNDS = 6
"""Rounds that distinguish a difference of 10 % from the noise of a busy machine, with one outlier."""

_TRIMMED = 0.2
# Above the usual 95 %: of so few rounds a trimmed interval holds the truth about a percent less often than
# it says, and the noise of a machine that drifts is not independent.
_CONFIDENCE = 0.97


def rounds_text(rounds: int) -> str:
    """Describe the figures of a table, with a warning if there are too few rounds."""
    sure = "" if rounds >= ROUNDS else f", too few to tell noise from a difference: use --rounds {ROUNDS}"
    return f"{rounds} round{'s' if rounds > 1 else ''}{sure}"


class SampleSpan(NamedTuple):
    """Samples that were trained on, and the seconds that this took, with whatever held them up."""

    samples: float
    seconds: float

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


def total(spans: Iterable[SampleSpan]) -> SampleSpan:
    """Return the sum of spans, whose rate weighs each by its time: a stall counts as long as it was."""
    samples, seconds = zip(*spans, strict=True)
    return SampleSpan(sum(samples), sum(seconds))


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two total rates, with an interval for it (0 to inf after one round)."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """faster, slower, or same if the interval contains 1: the difference may be noise."""
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "same"

    @property
    def document(self) -> dict[str, float | None]:
        """Return the ratio for JSON; infinite ends are null."""
        ends = {"low": self.low, "high": self.high} if self.high < inf else {"low": None, "high": None}
        return {"value": self.value, **ends}


def ratio(ours: Sequence[SampleSpan], theirs: Sequence[SampleSpan]) -> Ratio:
    """Return the ratio of our total rate to theirs; the two sides of a round were measured in turn.

    The interval is Yuen's for the trimmed mean of the logarithms, without the lowest and highest fifth (K.
    Yuen, "The two-sample trimmed t for unequal population variances", Biometrika 61, 1974): from five rounds
    on, one outlier moves it little. It is widened to hold the ratio of the totals, which counts each outlier:
    whether other work on the machine or the setting itself held up that round can't be known.

    Raises:
        ValueError: There are no rounds, or their numbers differ.
    """
    logs = sorted(log(a.rate / b.rate) for a, b in zip(ours, theirs, strict=True))
    if not logs:
        raise ValueError("no rounds")
    value = total(ours).rate / total(theirs).rate
    if len(logs) == 1:
        return Ratio(value, 0.0, inf)
    centre, half = _trimmed(logs)
    return Ratio(value, min(value, exp(centre - half)), max(value, exp(centre + half)))


def _trimmed(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the trimmed mean of ordered values, and half the width of its interval."""
    count = len(ordered)
    cut = int(_TRIMMED * count)
    trimmed = ordered[cut : count - cut]
    winsorized = [trimmed[0]] * cut + list(trimmed) + [trimmed[-1]] * cut
    left = len(trimmed)
    error = stdev(winsorized) * sqrt((count - 1) / (left * (left - 1)))
    return mean(trimmed), t_quantile(_CONFIDENCE, left - 1) * error


@cache
def t_quantile(confidence: float, freedom: int) -> float:
    """Between minus this value and this value lies Student's t with probability `confidence`.

    Found by bisection of the distribution's finite series (Abramowitz and Stegun, Handbook of Mathematical
    Functions, 26.7.3 and 26.7.4).

    Args:
        confidence: Above 0 and below 1.
        freedom: Degrees of freedom, from 1.
    """
    odd = freedom % 2

    def within(angle: float) -> float:
        term, total = cos(angle) ** odd, 0.0
        for power in range(odd, freedom - 1, 2):
            total += term
            term *= (power + 1) / (power + 2) * cos(angle) ** 2
        return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total

    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) < confidence else (low, middle)
    return sqrt(freedom) * tan(low)


# Measures speed, memory and loss in short runs, each in a separate process
# -------------------------------------------------------------------------
# torch's switches, the memory peak and compiled code belong to a process, and one measurement must not
# affect the next. Where possible, one process imports torch and forks for each run: before the first
# tensor, torch has neither threads nor a device context.

_INTERVAL_S = 0.1
_POLL_S = 0.2
_PATIENCE_S = 10.0
"""How long a process may take to end once its output is closed."""
_PRELOAD = (*RUN_MODULES, "mptui.lab.measure.core")
NOT_MEASURED = "the run ended before it was measured"
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

    span: SampleSpan
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

    def check_first_step(self, seconds: float) -> None:
        """Raise a MeasureError if the first step takes too long."""
        limit_s = self.first_step_limit_s
        if limit_s is not None and seconds > limit_s:
            raise MeasureError(f"its first step took more than {limit_s:.1f} s")


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
        self._environ = dict(environ)
        self._should_stop = should_stop
        self._server: ForkServer | None = None

    def __enter__(self) -> "Measurer":
        return self

    def __exit__(self, *_error: object) -> None:
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
        asked = {"profile": request.profile, "flags": flags, "sets": sets, "trust_code": request.trust_code}
        # an abandoned run can write into its directory until its process has ended
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            return self.ask(f"{__name__}:main", {**asked, "folder": folder}, effort)

    def ask(self, call: str, asked: Mapping[str, object], effort: Effort) -> ShortRunResult:
        """Return the answer of a separate process.

        Args:
            call: `module:function`, which calls `reply`.
            asked: The keywords of what it replies with, for JSON; `effort` is one more, by its fields.
            effort: How long to measure.

        Raises:
            MeasureError: It failed, or took too long.
            StoppedError: `should_stop` returned True; the process has ended.
        """
        if self._should_stop():
            raise StoppedError
        if self._server is None:
            self._server = ForkServer(_PRELOAD, self._environ, subprocess.DEVNULL)
        try:
            text = json.dumps({**asked, "effort": asdict(effort)})
            answer = self._ask(self._server, call, text, effort.limit_s)
        except RuntimeError as error:
            self._end()
            raise MeasureError(str(error)) from None
        except BaseException:
            self._end()
            raise
        if "error" in answer:
            raise MeasureError(answer["error"], answer["code"])
        return ShortRunResult(**{**answer, "span": SampleSpan(*answer["span"])})

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
    *,
    profile: str | None,
    flags: dict[str, Any],
    sets: Sequence[str],
    trust_code: bool,
    folder: str,
    effort: Effort,
) -> ShortRunResult:
    from mptui.runs.planning.plan import Request, plan_run
    from mptui.runs.store.directory import create_run

    began = time.monotonic()
    given = {key: (str(flag), value) for key, (flag, value) in flags.items()}
    given["logging.step_interval_s"] = ("bench", 0.0 if effort.loss_at else _INTERVAL_S)
    given["guards.on_nan"] = ("bench", "ignore")  # a recovery would change the measured settings
    given["guards.on_oom"] = ("bench", "stop")
    plan = plan_run(Request(profile, given, sets, os.environ, trust_code))
    watch = RunListener(effort.seconds, loss_at=effort.loss_at)
    run = create_run(Path(folder), "bench", str(plan.config.model.name), None)
    session = UnsavedSession(plan, run, force_compile=plan.config.speed.compile != "off")
    events = session.listen()
    session.start()
    while not session.finished:
        events.wait(_INTERVAL_S)
        for event in events.drain():
            watch.handle(event)
        # a running step can't be stopped: the process ends with this answer
        effort.check_first_step(watch.first_step_s)
        if watch.enough:
            session.mailbox.stop(None)
    result = session.result
    if result.bug is not None:
        raise result.bug
    if result.error is not None:
        raise result.error
    if result.summary["recoveries"]:
        raise MeasureError(str(result.summary["recoveries"][0]["action"]))
    if not watch.span.samples:
        raise MeasureError(NOT_MEASURED)
    return ShortRunResult(
        span=watch.span,
        peak_bytes=peak_bytes(result.summary),
        first_step_s=result.summary["time"]["first_step_s"],
        loss=watch.loss,
        wait=watch.wait,
        epoch_steps=watch.epoch_steps,
        classes=watch.classes,
        run_s=time.monotonic() - began,
    )


def peak_bytes(summary: Mapping[str, Any]) -> int | None:
    """Return the peak memory in the summary of a run: of tensors on the device, or of the process."""
    memory = summary.get("memory") or {}
    return memory.get("peak_allocated_bytes") or memory.get("host_peak_bytes")


def _answer(measure: Callable[..., ShortRunResult], asked: dict[str, Any]) -> dict[str, Any]:
    """Run the measurement in this process."""
    from mptui.hardware.host import keep_freed_memory

    keep_freed_memory()
    effort = Effort(**asked.pop("effort"))
    try:
        return asdict(measure(**asked, effort=effort))
    except MeasureError as error:
        return {"error": str(error), "code": error.exit_code}
    except MptuiError as error:
        return {"error": error.message, "code": error.exit_code}
    except Exception as error:  # noqa: BLE001 - a bug is told to the person too: nobody else hears of it
        from mptui.engine.micro_batches import is_out_of_memory

        if is_out_of_memory(error):
            return {"error": "out of memory", "code": MemoryExhaustedError.exit_code}
        last = (str(error).strip() or type(error).__name__).splitlines()[-1]
        return {"error": f"the measured run failed: {type(error).__name__}: {last}", "code": 1}


def main() -> None:
    """Measure the run that `argv` describes in JSON, and print the result."""
    reply(_run)


def reply(measure: Callable[..., ShortRunResult]) -> NoReturn:
    """Print what `measure` returns for the keywords in `argv`, in JSON, and exit, even if threads are busy.

    For a result, these are its fields; for an error, `error` and `code`, those of a `MeasureError`.
    """
    answers = os.dup(1)
    os.dup2(2, 1)  # keep output of libraries out of the answers
    answer = json.dumps(_answer(measure, json.loads(sys.argv[1]))).encode() + b"\n"
    while answer:
        answer = answer[os.write(answers, answer) :]
    os._exit(0)


# A contest: variants are measured in rounds, as runs in separate processes
# -------------------------------------------------------------------------

Measure = Callable[[Settings, Effort], ShortRunResult]
"""Measures settings, as `Measurer.measure` does of a request."""

_RUN_S = 6.0
"""Seconds of a run besides the timed ones, estimated before the first run."""
SLOW_STARTS = frozenset({"speed.compile", "data.cache", "data.workers"})
"""Settings whose first step may take long for another reason than slow steps."""


@dataclass(slots=True)
class Row:
    """A variant and its measurements by round; `failed`: why it could not be measured."""

    variant: Variant
    against: "Row | None" = None
    """The row that it is compared with."""
    rounds: list[ShortRunResult] = field(default_factory=list)
    failed: str | None = None
    seconds: list[float] = field(default_factory=list)
    """Wall time of each round's run."""

    @property
    def rate(self) -> float | None:
        """Samples per second over all rounds."""
        return total(m.span for m in self.rounds).rate if self.rounds else None

    @property
    def latest(self) -> str:
        """The result of the latest round, as text."""
        return self.failed or f"{self.rounds[-1].samples_per_second:,.1f} images/s"

    @property
    def peak_bytes(self) -> float | None:
        """Median of the peak memory."""
        return self._median(m.peak_bytes for m in self.rounds)

    @property
    def loss(self) -> float | None:
        """The loss after the first steps."""
        return self._median(m.loss for m in self.rounds)

    @property
    def first_step_s(self) -> float | None:
        """Median time to the end of the first step."""
        return self._median(m.first_step_s for m in self.rounds)

    @staticmethod
    def _median(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return median(known) if known else None

    @property
    def gain(self) -> Ratio | None:
        """The speed relative to what it is compared with; None before the first round."""
        return None if self.against is None else self.over(self.against)

    def over(self, other: "Row") -> Ratio | None:
        """Return the speed relative to another row, over the rounds that both have; None before the first."""
        count = min(len(self.rounds), len(other.rounds))
        ours, theirs = ([m.span for m in row.rounds[:count]] for row in (self, other))
        return ratio(ours, theirs) if count else None


class Deadline:
    """The end of the time that was given.

    Args:
        seconds: The time; infinite: none ends it.
        clock: Monotonic clock, in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._until = clock() + seconds

    def seconds_left(self) -> float:
        """Return the seconds until then, at least 0."""
        return max(0.0, self._until - self.clock())


def expected_s(rows: Iterable[Row], rounds: int, usual_s: float) -> float:
    """Estimate the seconds until rows have this number of rounds; a run takes `usual_s` if none is known."""
    return sum(
        (rounds - len(row.rounds)) * (row.seconds[-1] if row.seconds else usual_s)
        + (0.0 if row.seconds else row.variant.first_s)
        for row in rows
        if len(row.rounds) < rounds
    )


class Contest:
    """Variants that are measured in rounds; the first is what others are compared with.

    Every other round has the opposite order, so that a drift of the machine's speed favours none, and ratios
    are computed within a round. A variant that fails is measured no further.

    Args:
        variants: The variants.
        measure: Measures one.
        effort: Effort of each run; with the same seed, losses are equal in each round, so the first has them.
        deadline: When all has to end.
        seconds: Wall times of runs that did not compile, before this contest; its own are added.

    Attributes:
        rows: The variants with their measurements.
        live: Those that the next round measures, in its order: whoever knows one to be hopeless drops it.
        slow_step: A variant is abandoned if its first step takes this multiple of the first variant's, and
            more than a second; not if they differ in one of `slow_starts`.
        slow_run: The same for a whole run, as a multiple of a usual one.
    """

    slow_step = 10.0
    slow_starts = SLOW_STARTS
    slow_run = inf

    def __init__(
        self,
        variants: Sequence[Variant],
        measure: Measure,
        effort: Effort,
        *,
        deadline: Deadline,
        seconds: list[float] | None = None,
    ) -> None:
        self.rows: list[Row] = []
        for variant in variants:
            against = next((row for row in self.rows if row.variant.name == variant.against), None)
            self.rows.append(Row(variant, against))
        self.live = list(self.rows)
        self.deadline = deadline
        self._measure = measure
        self._effort = effort
        self._seconds = [] if seconds is None else seconds

    def in_turn(self, number: int) -> list[Row]:
        """Return the rows of a round (from 0) in the order in which they are to be measured."""
        return [row for row in self.live[:: -1 if number % 2 else 1] if row.failed is None]

    def expected_s(self, rounds: int) -> float:
        """Estimate the seconds left until this number of rounds."""
        return self._expected_s(self.in_turn(0), rounds)

    def _expected_s(self, rows: Iterable[Row], rounds: int) -> float:
        usual_s = median(self._seconds) if self._seconds else _RUN_S + self._effort.seconds
        return expected_s(rows, rounds, usual_s)

    def measure(self, row: Row) -> None:
        """Measure a row once more, or set why it failed.

        Raises:
            StoppedError: A stop was requested.
        """
        began = self.deadline.clock()
        limit_s = min(self.deadline.seconds_left(), self._run_limit_s(row))
        effort = replace(
            self._effort,
            loss_at=0 if row.rounds else self._effort.loss_at,
            limit_s=None if limit_s == inf else limit_s,
            first_step_limit_s=self._first_step_limit_s(row),
        )
        try:
            row.rounds.append(self._measure(row.variant.settings, effort))
        except MeasureError as error:
            row.failed = self._failure(error)
            return
        row.seconds.append(self.deadline.clock() - began)
        if len(row.rounds) > 1 or not row.variant.first_s:
            self._seconds.append(row.seconds[-1])

    def _failure(self, error: MeasureError) -> str:
        return str(error)

    def _run_limit_s(self, row: Row) -> float:
        own = inf if self._effort.limit_s is None else self._effort.limit_s
        if row is self.rows[0] or self.slow_run == inf:
            return own
        return min(own, self.slow_run * median(self._seconds) + (0.0 if row.rounds else row.variant.first_s))

    def _first_step_limit_s(self, row: Row) -> float | None:
        """Return the time limit of a first step; None if there is nothing to compare with."""
        first, ours = self.rows[0], row.variant.settings
        incomparable = any(ours.get(key) != first.variant.settings.get(key) for key in self.slow_starts)
        if row is first or incomparable:
            return None
        if not first.rounds or first.rounds[0].first_step_s is None:
            return None
        return max(1.0, self.slow_step * first.rounds[0].first_step_s)


# Measures the effect of each precision and speed setting
# -------------------------------------------------------

NO_TIME = "not measured for lack of time"


class AblationRun(Contest):
    """A running ablation: every variant is measured in every round, as far as time allows."""

    @property
    def rounds(self) -> int:
        """The number of complete rounds."""
        return min((len(row.rounds) for row in self.rows if row.failed is None), default=0)

    def measure_rounds(self, rounds: int, on_row: Callable[[Row], None]) -> bool:
        """Measure this number of rounds; return whether ctrl+c ended them early. Complete rounds count.

        Compiled variants come last in the first round, so that they don't use up the time of the others. A
        later round starts only if there is time for all of it, as figures are compared within a round.

        Args:
            rounds: The number of rounds.
            on_row: Called after each measurement.
        """
        self.live.sort(key=lambda row: row.variant.first_s > 0)
        try:
            for number in range(rounds):
                if number and self.expected_s(number + 1) > self.deadline.seconds_left():
                    break
                for row in self.in_turn(number):
                    if self._expected_s([row], number + 1) <= self.deadline.seconds_left():
                        self.measure(row)
                    elif not row.rounds:
                        row.failed = NO_TIME
                    else:
                        continue
                    on_row(row)
        except KeyboardInterrupt:
            return True
        return False

    def gain(self, row: Row) -> Ratio | None:
        """Return the speed of `row` relative to the variant that it is compared with.

        For a variant without a switch, this is the loss by removing it.
        """
        return None if row.failed or row.against is None or row.against.failed else row.gain

    def over_baseline(self, row: Row) -> Ratio | None:
        """Return the speed of `row` relative to the baseline."""
        return None if row.failed or self.rows[0].failed else row.over(self.rows[0])

    def off_baseline(self, row: Row) -> float | None:
        """Return the relative difference of the loss after the first steps from the baseline's.

        None if they can't be compared: with another batch size, the losses are of other samples.
        """
        batches = {r.variant.settings.get("training.batch_size") for r in (row, self.rows[0])}
        baseline = self.rows[0].loss if len(batches) == 1 else None
        if row.loss is None or not baseline:
            return None
        return row.loss / baseline - 1

    def document(self) -> list[dict[str, Any]]:
        """Return all results for JSON, with the figures of each round."""
        return [self._described(row) for row in self.rows]

    def _described(self, row: Row) -> dict[str, Any]:
        gain = self.gain(row)
        return {
            "name": row.variant.name,
            "title": row.variant.title,
            "settings": dict(row.variant.settings),
            "against": row.variant.against,
            "samples_per_second": row.rate,
            "ratio": None if gain is None else gain.document,
            "verdict": None if gain is None else gain.verdict,
            "peak_bytes": row.peak_bytes,
            "first_step_s": row.first_step_s,
            "loss": row.loss,
            "loss_off_baseline": self.off_baseline(row),
            "rounds": [m.samples_per_second for m in row.rounds],
            "seconds": [m.span.seconds for m in row.rounds],
            "failed": row.failed,
        }


# A session without checkpoints, for measured runs
# ------------------------------------------------


class NoCheckpoints(Saver):
    """A saver that discards everything."""

    def may_save(self) -> bool:
        """Return False."""
        return False

    def offer_best(self, snapshot: Snapshot) -> None:
        """Discard the snapshot."""

    def save(self, snapshot: Snapshot, reason: str, *, wait: bool = False) -> None:
        """Write nothing."""


class UnsavedSession(Session):
    """A session that saves no checkpoints."""

    measures_costs = False

    def _saver(self, run: Path) -> Saver:
        return NoCheckpoints(run / CHECKPOINTS, lambda: self.plan.config.checkpoint, self._emit)

    def _check_space(self, prepared: PreparedRun) -> None:
        """Require no space."""
