"""Trains in FP32 and in 16 bits from the same seeds, and compares the results."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf, isfinite
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mptui.config.resolve import RESERVED_VARIABLES, to_toml
from mptui.errors import ConfigError, MptuiError, RunDirectoryError, error_of_code
from mptui.events import EpochFinished, RunStarted, Step, Validated
from mptui.hardware.devices import Machine, find_machine
from mptui.io.records import as_number
from mptui.lab.measure.core import peak_bytes
from mptui.lab.measure.noise import MOST_SEEDS, TOLERANCE, Difference, Verdict, between_seeds, difference
from mptui.processes.start import MAIN, ForkedChild, ForkServer, exit_code_name
from mptui.runs.planning.plan import Plan, Request, plan_run
from mptui.runs.store import directory
from mptui.runs.store.journal import read_journal

if TYPE_CHECKING:
    import subprocess


# Reads the curves of runs from their journals, and finds their largest differences
# ---------------------------------------------------------------------------------

WINDOWS = 50
"""Largest number of equal windows that a training loss curve is divided into."""


@dataclass(slots=True)
class Curves:
    """The curves in a run's journal.

    `steps`: (last step, number of steps, mean loss) of each event; the others are by epoch. `metric`: name of
    the primary metric, a fraction of 1.
    """

    steps: list[tuple[int, int, float]] = field(default_factory=list)
    val_loss: dict[int, float] = field(default_factory=dict)
    metrics: dict[int, float] = field(default_factory=dict)
    metric: str = ""
    final: float | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """The largest difference of a curve from FP32's: `value` is the precision's minus FP32's."""

    curve: str
    where: str
    value: float
    fp32: float


def read_curves(run: Path) -> Curves:
    """Read the curves of a run; steps repeated after a resume count once."""
    curves = Curves()
    for event in read_journal(run):
        if isinstance(event, RunStarted) and event.resumed_from_step is not None:
            resumed = event.resumed_from_step
            curves.steps = [step for step in curves.steps if step[0] <= resumed]
        elif isinstance(event, Step):
            curves.steps.append((event.step, event.steps, event.loss))
        elif isinstance(event, Validated) and event.metrics:
            curves.metric = next(iter(event.metrics))
            curves.val_loss[event.epoch] = event.loss
            curves.metrics[event.epoch] = event.metrics[curves.metric]
        elif isinstance(event, EpochFinished) and event.val_metrics:
            curves.final = event.val_metrics[next(iter(event.val_metrics))]
    return curves


def largest_gaps(ours: Sequence[Curves], theirs: Sequence[Curves]) -> list[Gap]:
    """Return the largest difference of each curve, between the means over the seeds.

    Args:
        ours: Curves of the precision, by seed.
        theirs: Curves of FP32, by the same seeds.
    """
    gaps = [
        _by_steps(ours, theirs),
        _by_epochs("validation loss", [c.val_loss for c in ours], [c.val_loss for c in theirs]),
        _by_epochs(ours[0].metric, [c.metrics for c in ours], [c.metrics for c in theirs]),
    ]
    return [gap for gap in gaps if gap is not None]


def _by_steps(ours: Sequence[Curves], theirs: Sequence[Curves]) -> Gap | None:
    curves = [*ours, *theirs]
    if not all(curve.steps for curve in curves):
        return None
    last = min(curve.steps[-1][0] for curve in curves)
    count = min(WINDOWS, last, *(len(curve.steps) for curve in curves))
    edges = np.linspace(0, last, count + 1)
    ours_mean, theirs_mean = (np.mean([_windowed(c, edges) for c in side], axis=0) for side in (ours, theirs))
    gap = ours_mean - theirs_mean
    at = int(np.argmax(np.where(np.isfinite(gap), np.abs(gap), inf)))
    first, end = int(edges[at]) + 1, int(edges[at + 1])
    where = f"steps {first} to {end}" if end > first else f"step {first}"
    return Gap("training loss", where, float(gap[at]), float(theirs_mean[at]))


def _windowed(curve: Curves, edges: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[float]:
    """Return the mean loss between edges, interpolating the cumulative loss, as events end at any step."""
    ends = [0, *(step for step, _, _ in curve.steps)]
    sums = np.cumsum([0.0, *(steps * loss for _, steps, loss in curve.steps)])
    means: list[float] = (np.diff(np.interp(edges, ends, sums)) / np.diff(edges)).tolist()
    return means


def _by_epochs(name: str, ours: Sequence[dict[int, float]], theirs: Sequence[dict[int, float]]) -> Gap | None:
    """Return the largest difference by epoch; a difference that is not finite counts as the largest."""
    epochs = sorted(set.intersection(*(set(curve) for curve in (*ours, *theirs))))
    found: Gap | None = None
    for epoch in epochs:
        fp32 = sum(curve[epoch] for curve in theirs) / len(theirs)
        value = sum(curve[epoch] for curve in ours) / len(ours) - fp32
        is_largest = found is None or abs(value) > abs(found.value)
        if is_largest or not isfinite(value):
            found = Gap(name, f"epoch {epoch}", value, fp32)
        if not isfinite(value):
            break
    return found


# The trainings of a comparison, one per seed and precision, each with its process and run directory
# --------------------------------------------------------------------------------------------------
# runs/NAME/
#   settings.toml          common settings; the same command continues the comparison
#   fp32-seed0/ bf16-seed0/ …   runs
#   parity.json            the result

SETTINGS = "settings.toml"
_STDERR = 2
_ENDED = {"diverged", "out_of_memory"}
"""Failures that count as a result of a precision other than FP32."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One training: its plan, its run directory, and whether the person's own code may run."""

    precision: str
    seed: int
    plan: Plan
    run: Path
    trust_code: bool = False

    @property
    def name(self) -> str:
        """The name to show."""
        return f"{self.precision}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison: the plan of the first seed in the precision, and the seeds."""

    request: Request
    machine: Machine
    plan: Plan
    seeds: tuple[int, ...]

    @property
    def precision(self) -> str:
        """The precision that is compared with FP32."""
        return self.plan.precision.used

    def pieces(self, folder: Path) -> Iterator[Piece]:
        """Yield all trainings; those of a seed follow each other."""
        for seed in self.seeds:
            for precision in ("fp32", self.precision):
                plan = self._plan(precision, seed)
                run = folder / f"{precision}-seed{seed}"
                yield Piece(precision, seed, plan, run, self.request.trust_code)

    def _plan(self, precision: str, seed: int) -> Plan:
        sets = [*self.request.sets, f"precision.mode={precision}", f"training.seed={seed}"]
        if precision == "fp32":
            sets.append("precision.matmul=highest")  # its products have a 10-bit mantissa
        return plan_run(replace(self.request, sets=sets), self.machine)


class Stop:
    """A stop request from a signal, forwarded to the current training and checked before the next one."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._child: ForkedChild | subprocess.Popen[bytes] | None = None

    def requested(self) -> bool:
        """Whether a stop was requested."""
        return self.signal is not None

    def ask(self, number: int) -> None:
        """Stop with a checkpoint; on a second call, at once. Safe in a signal handler."""
        self.signal = number
        self._pass_on()

    @property
    def training(self) -> bool:
        """Whether a training is running."""
        return self._child is not None

    def watch(self, child: "ForkedChild | subprocess.Popen[bytes] | None") -> None:
        """Set the current training."""
        self._child = child
        if self.signal is not None:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._child is not None and self.signal is not None:
            self._child.send_signal(self.signal)


def plan_comparison(request: Request, seeds: int) -> Comparison:
    """Plan a comparison on this machine. Imports torch.

    Raises:
        ConfigError: A value is invalid, or the precision is FP32.
        DataError: The data is missing.
    """
    if not 1 <= seeds <= MOST_SEEDS:
        raise ConfigError(
            f"--seeds {seeds}: from 1 to {MOST_SEEDS}", hint="3 to 5 show the noise between seeds"
        )
    machine = find_machine(with_torch=True)
    plan = plan_run(request, machine)
    if plan.precision.used == "fp32":
        raise ConfigError(
            f"FP32 against FP32: precision {plan.precision.requested} is fp32 on {plan.device.name}",
            hint="choose the precision to compare: --precision bf16 or --precision fp16",
        )
    first = plan.config.training.seed
    return Comparison(request, machine, plan, tuple(range(first, first + seeds)))


def make_folder(comparison: Comparison, runs_dir: Path, name: str | None) -> Path:
    """Return the folder of a comparison; an existing one with the same settings is continued.

    Raises:
        ConfigError: The name is invalid, or in use by something else.
        DiskError: The folder can't be written.
    """
    settings = to_toml(comparison.plan.config)
    folder = runs_dir / str(name)
    if name == folder.name and (folder / SETTINGS).is_file():
        if _shared(folder / SETTINGS) != _shared_text(settings):
            raise ConfigError(
                f"{folder}: a comparison of this name has other settings",
                hint="choose another --name, or use its original settings",
            )
        return folder
    folder = directory.create_run(runs_dir, "parity", str(comparison.plan.config.model.name), name)
    directory.write_text(folder / SETTINGS, settings)
    return folder


def _shared(path: Path) -> list[str]:
    try:
        return _shared_text(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{path}: can't be read", hint="choose another --name") from error


def _shared_text(text: str) -> list[str]:
    """Return the lines of settings without the precision: FP32's runs can serve several comparisons."""
    return [line for line in text.splitlines() if not line.startswith("mode = ")]


def train(
    piece: Piece, server: ForkServer, environ: Mapping[str, str], stop: Stop, *, quiet: bool
) -> dict[str, Any] | None:
    """Run or resume a training, unless it is done.

    Args:
        piece: The training.
        server: Forks its process.
        environ: The environment; its settings are already in the plan.
        stop: The stop request.
        quiet: Print only warnings on stderr.

    Returns:
        Its summary; None if a stop was requested.

    Raises:
        MptuiError: The training failed for a reason other than its precision.
    """
    summary = directory.read_summary(piece.run)
    if is_done(piece, summary):
        return summary
    if stop.requested():
        return None
    code = _run(piece, server, environ, stop, quiet=quiet)
    summary = directory.read_summary(piece.run)
    if stop.requested() and not is_done(piece, summary):
        return None
    if not is_done(piece, summary):
        raise _failure(piece, code, summary)
    return summary


def is_done(piece: Piece, summary: Mapping[str, Any]) -> bool:
    """Whether a training has ended with a result for its precision."""
    status = summary.get("status")
    return status == "completed" or (status in _ENDED and piece.precision != "fp32")


def _run(piece: Piece, server: ForkServer, environ: Mapping[str, str], stop: Stop, *, quiet: bool) -> int:
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "parity.toml"
        profile.write_text(to_toml(piece.plan.config), encoding="utf-8")
        arguments = ["--profile", str(profile), "--runs-dir", str(piece.run.parent), "--name", piece.run.name]
        arguments += ["--resume"]
        arguments += ["--trust-code"] if piece.trust_code else []
        arguments += ["--quiet"] if quiet else []
        arguments += ["--compile"] if piece.plan.resolved.compile_forced else []
        environ = {k: v for k, v in environ.items() if not k.startswith("MPTUI_") or k in RESERVED_VARIABLES}
        # in a session of its own: ctrl+c is forwarded by this process, once
        child = server.start(MAIN, "run", *arguments, streams=(None, None, _STDERR), environ=environ)
        stop.watch(child)
        try:
            return child.wait()
        finally:
            stop.watch(None)


def _failure(piece: Piece, code: int, summary: Mapping[str, Any]) -> MptuiError:
    """Convert the error of a training to an `MptuiError`."""
    recorded = summary.get("error") or {}
    ended = (
        "it was stopped"
        if summary.get("status") == "stopped"
        else f"its process ended with {exit_code_name(code)}"
    )
    message = str(recorded.get("message") or ended).partition("\n")[0]
    hint = str(
        recorded.get("hint") or f"see {piece.run}; to continue, repeat the command with the same --name"
    )
    return error_of_code(code)(f"{piece.name}: {message}", hint=hint)


# The result of a comparison: metrics of both precisions, their difference, and a description
# -------------------------------------------------------------------------------------------

FORMAT_VERSION = 1
RESULT = "parity.json"


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of one training. `metric` is a fraction of 1, None without one; bytes, seconds."""

    precision: str
    seed: int
    run: str
    status: str
    metric: float | None
    val_loss: float | None
    samples_per_second: float | None
    peak_bytes: int | None
    seconds: float
    ended_in: str
    recoveries: tuple[str, ...]
    val_samples: int
    curves: Curves

    @property
    def trouble(self) -> str | None:
        """Why its metric can't count for its precision; None if it counts."""
        if self.status != "completed":
            return f"{self.precision} with seed {self.seed} ended as {self.status.replace('_', ' ')}"
        if self.metric is None:
            return f"{self.precision} with seed {self.seed} has no final metric"
        if self.ended_in != self.precision:
            return f"{self.precision} with seed {self.seed} fell back to {self.ended_in}"
        return None


def read_outcome(piece: Piece, summary: Mapping[str, Any]) -> TrainingResult:
    """Read the result of a training from its run directory."""
    curves = read_curves(piece.run)
    final = summary.get("final") or {}
    return TrainingResult(
        precision=piece.precision,
        seed=piece.seed,
        run=str(piece.run),
        status=str(summary["status"]),
        metric=curves.final if curves.final is not None and isfinite(curves.final) else None,
        val_loss=as_number(final.get("val_loss")),
        samples_per_second=as_number(summary.get("samples_per_second")),
        peak_bytes=peak_bytes(summary),
        seconds=float((summary.get("time") or {}).get("total_s") or 0.0),
        ended_in=str((summary.get("precision") or {}).get("used")),
        recoveries=tuple(str(r.get("action")) for r in summary.get("recoveries") or ()),
        val_samples=int((summary.get("dataset") or {}).get("val_samples") or 0),
        curves=curves,
    )


@dataclass(frozen=True, slots=True)
class ParityResult:
    """A complete comparison. `ours` and `fp32` are by seed; `difference` is None if a metric is missing."""

    folder: Path
    precision: str
    ours: tuple[TrainingResult, ...]
    fp32: tuple[TrainingResult, ...]
    difference: Difference | None
    gaps: tuple[Gap, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict; a precision that failed in a training differs."""
        if self.difference is None or any(outcome.trouble for outcome in self.ours):
            return "differs"
        return self.difference.verdict

    @property
    def metric(self) -> str:
        """The primary metric."""
        return self.fp32[0].curves.metric

    @property
    def speedup(self) -> float | None:
        """Speed relative to FP32's, median over the seeds."""
        return _ratio(self.ours, self.fp32, "samples_per_second")

    @property
    def memory(self) -> float | None:
        """Peak memory relative to FP32's, median over the seeds."""
        return _ratio(self.ours, self.fp32, "peak_bytes")


def pairs_of(outcomes: Sequence[TrainingResult]) -> list[tuple[TrainingResult, TrainingResult]]:
    """Return the results of the precision and of FP32, by seed."""
    fp32 = [outcome for outcome in outcomes if outcome.precision == "fp32"]
    ours = [outcome for outcome in outcomes if outcome.precision != "fp32"]
    return list(zip(ours, fp32, strict=True))


def compare(
    folder: Path,
    precision: str,
    outcomes: Sequence[TrainingResult],
    by_image_SN: npt.NDArray[np.float64] | None,
) -> ParityResult:
    """Compare the results of a precision with FP32's, seed by seed.

    Args:
        folder: Folder of the comparison.
        precision: The precision to compare with FP32.
        outcomes: Results of all trainings, in order.
        by_image_SN: As of `differences_by_image`.
    """
    ours, fp32 = zip(*pairs_of(outcomes), strict=True)
    metrics = [[o.metric for o in side if o.metric is not None] for side in (ours, fp32)]
    whole = len(metrics[0]) == len(metrics[1]) == len(fp32)
    return ParityResult(
        folder,
        precision,
        ours,
        fp32,
        difference(metrics[0], metrics[1], by_image_SN) if whole else None,
        tuple(largest_gaps([o.curves for o in ours], [o.curves for o in fp32])),
    )


def _ratio(ours: Sequence[TrainingResult], fp32: Sequence[TrainingResult], name: str) -> float | None:
    pairs = [(getattr(a, name), getattr(b, name)) for a, b in zip(ours, fp32, strict=True)]
    ratios = [a / b for a, b in pairs if a and b]
    return median(ratios) if ratios else None


def sentences(result: ParityResult) -> list[str]:
    """Describe the result in sentences, the verdict first."""
    return [
        _verdict(result),
        *(trouble for outcome in (*result.fp32, *result.ours) if (trouble := outcome.trouble)),
        *_noise(result),
        *(_gap(gap, result.metric) for gap in result.gaps),
        *_cost(result),
    ]


def _verdict(result: ParityResult) -> str:
    found, name, metric = result.difference, result.precision, result.metric
    if found is None:
        return f"{name} differs from FP32: no final {metric or 'metric'}"
    if any(outcome.trouble for outcome in result.ours):
        return f"{name} differs from FP32: not all of its trainings completed"
    by = f"{found.mean:+.2f} points of {metric}"
    if len(found.each) == 1:
        return f"undecided: one seed does not show the noise between seeds: {by}, {TOLERANCE:g} allowed"
    if found.low is None or found.high is None:
        return f"undecided: {metric} can't be compared image by image: {by}, {len(found.each)} seeds"
    by += f" on average, 95 % interval {found.low:+.2f} to {found.high:+.2f}, {len(found.each)} seeds"
    return {
        "agrees": f"{name} agrees with FP32 within {TOLERANCE:g} points: {by}",
        "differs": f"{name} differs from FP32 by more than {TOLERANCE:g} points: {by}",
        "undecided": f"undecided: the noise is larger than {TOLERANCE:g} points: {by}",
    }[result.verdict]


def _noise(result: ParityResult) -> list[str]:
    lines = []
    values = [[o.metric for o in side if o.metric is not None] for side in (result.fp32, result.ours)]
    if len(result.fp32) > 1:
        fp32, ours = (between_seeds(side) for side in values)
        spread = [
            f"FP32 {fp32:.2f}" if fp32 is not None else "",
            f"{result.precision} {ours:.2f}" if ours else "",
        ]
        lines.append(f"noise between seeds (standard deviation, points): {', '.join(s for s in spread if s)}")
    found = result.difference
    if found is not None and found.noise is not None:
        images, half = found.noise.images, found.noise.half(len(found.each), found.noise.images)
        lines.append(f"the {images:,} validation images alone leave {half:.2f} points either way open")
    return [*lines, *_would_decide(result)]


def _would_decide(result: ParityResult) -> list[str]:
    """Say what would decide an undecided comparison."""
    found = result.difference
    if found is None or result.verdict != "undecided":
        return []
    if len(found.each) == 1:
        return ["to decide: --seeds 3 or more"]
    if found.noise is None:
        return []
    now = (len(found.each), found.noise.images)
    ways = [
        " and ".join(
            text
            for text, is_more in (
                (f"--seeds {seeds}", seeds > now[0]),
                (f"{images:,} validation images", images > now[1]),
            )
            if is_more
        )
        for seeds, images in found.needed()
    ]
    if not ways:
        return [
            f"no practical number of seeds or images would decide: it is as large as {TOLERANCE:g} points"
        ]
    return [f"to decide, if the difference and its noise stay so: {', or '.join(ways)}"]


def _gap(gap: Gap, metric: str) -> str:
    if gap.curve == metric:
        return (
            f"{gap.curve} differs most in {gap.where}: {100 * gap.value:+.2f} points of {100 * gap.fp32:.2f}"
        )
    return f"{gap.curve} differs most in {gap.where}: {gap.value:+.4f} of {gap.fp32:.4f}"


def _cost(result: ParityResult) -> list[str]:
    lines = []
    if result.speedup is not None:
        lines.append(f"speed: {result.speedup:.2f} times FP32's")
    if result.memory is not None:
        lines.append(f"peak memory: {100 * result.memory:.0f} % of FP32's")
    return lines


def to_document(result: ParityResult) -> dict[str, Any]:
    """Return the result for JSON; points are hundredths of the metric, the metric a fraction of 1."""
    return {
        "version": FORMAT_VERSION,
        "directory": str(result.folder),
        "precision": result.precision,
        "metric": result.metric,
        "tolerance_points": TOLERANCE,
        "verdict": result.verdict,
        "difference_points": result.difference.document if result.difference else None,
        "noise_points": {
            "fp32": between_seeds([o.metric for o in result.fp32 if o.metric is not None]),
            result.precision: between_seeds([o.metric for o in result.ours if o.metric is not None]),
        },
        "largest_gaps": [asdict(gap) for gap in result.gaps],
        "speedup": result.speedup,
        "memory_ratio": result.memory,
        "runs": [_outcome(outcome) for outcome in (*result.fp32, *result.ours)],
        "sentences": sentences(result),
    }


def _outcome(outcome: TrainingResult) -> dict[str, Any]:
    document = asdict(outcome)
    del document["curves"]
    return document
