"""The trainings of a comparison, one per seed and precision, each with its process and run directory.

runs/NAME/
  settings.toml          common settings; the same command continues the comparison
  fp32-seed0/ bf16-seed0/ …   runs
  parity.json            the result
"""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mptui.config.dump import to_toml
from mptui.config.given import RESERVED_VARIABLES
from mptui.errors import (
    ConfigError,
    DataError,
    DiskError,
    DivergedError,
    MemoryExhaustedError,
    MptuiError,
    RunDirectoryError,
)
from mptui.hardware.devices import Machine, find_machine
from mptui.lab.parity.noise import MOST_SEEDS
from mptui.processes.child import exit_code_name
from mptui.processes.fork_server import ForkedChild, ForkServer
from mptui.processes.run_server import MAIN
from mptui.runs.planning.plan import Plan, Request, plan_run
from mptui.runs.store import directory

if TYPE_CHECKING:
    import subprocess

SETTINGS = "settings.toml"
_STDERR = 2
_ENDED = {"diverged", "out_of_memory"}
"""Failures that count as a result of a precision other than FP32."""
_ERRORS: dict[int, type[MptuiError]] = {
    kind.exit_code: kind
    for kind in (ConfigError, DataError, DivergedError, MemoryExhaustedError, RunDirectoryError, DiskError)
}


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
    return _ERRORS.get(code, MptuiError)(f"{piece.name}: {message}", hint=hint)
