"""Tiny real runs of `mptui run`."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mptui.events import Event, PhaseChanged, Step
from mptui.runs.store.journal import NAME, read_events
from tests.cli.calls import call
from tests.run_server import Child, RunServer
from tests.tools.faulty_disk import run_on_disk

LIMIT_S = 300.0
"""Timeout well above the time of any of these runs on a busy machine, in seconds."""

LOOK_S = 0.005


@dataclass(frozen=True)
class Case:
    """A run: its flags, and settings that keep it small."""

    name: str
    flags: tuple[str, ...]
    sets: dict[str, object] = field(default_factory=dict)

    def but(self, **sets: object) -> "Case":
        """Return a copy with other settings; keys have `__` for the dot."""
        return Case(
            self.name, self.flags, {**self.sets, **{k.replace("__", "."): v for k, v in sets.items()}}
        )

    def arguments(self, runs: Path, name: str) -> list[str]:
        """Return the command line that starts or resumes this run."""
        common: dict[str, object] = {
            "training.deterministic": "true",
            "training.epochs": 2,
            "logging.step_interval_s": 0,
            "checkpoint.every_steps": 1,
            "data.workers": 0,
            "logging.pictures": 0,
            "guards.numerics": "off",
            **self.sets,
        }
        sets = [text for key, value in common.items() for text in ("--set", f"{key}={value}")]
        return ["run", "--resume", "--name", name, "--runs-dir", str(runs), "-q", *self.flags, *sets]


RESNET = Case(
    "resnet",
    ("--model", "resnet18", "--batch-size", "4", "--seed", "3"),
    {"data.image_size": 32, "data.samples": 16, "training.ema_decay": 0.9},
)
SHUFFLENET = Case(
    "shufflenet", ("--model", "shufflenet_v2_x0_5", "--batch-size", "4", "--seed", "3"), RESNET.sets
)
"""A small classifier with BatchNorm: a tenth of the weights to save."""

UNET = Case(
    "unet",
    ("--model", "unet", "--batch-size", "4", "--seed", "3"),
    {
        "data.image_size": 32,
        "data.samples": 16,
        "model.width": 2,
        "model.depth": 2,
        "training.optimizer": "adamw",
    },
)


LONG = UNET.but(training__epochs=100_000, checkpoint__every_steps=1_000_000)
"""A run that only a signal ends, and that saves only then and at a new best."""


def started(
    server: RunServer,
    case: Case,
    folder: Path,
    name: str,
    disk: dict[str, object] | None = None,
    output: Path | None = None,
) -> Child:
    """Start or resume a run."""
    folder.mkdir(exist_ok=True)
    arguments, output = case.arguments(folder, name), output or folder / f"{name}.out"
    if disk is None:
        return server.run(arguments, output)
    return run_on_disk(server, {"folder": str(folder / name / "checkpoints"), **disk}, arguments, output)


def finished(server: RunServer, case: Case, folder: Path, name: str) -> Path:
    """Resume a run and let it finish."""
    child = started(server, case, folder, name)
    assert child.wait(LIMIT_S) == 0, child.output()
    return folder / name


def trained(case: Case, folder: Path, name: str) -> Path:
    """Start or resume a run in this process, and let it finish."""
    ended = call(*case.arguments(folder, name))
    assert ended.returncode == 0, ended.stderr
    return folder / name


class Signalled:
    """A run in this process, to which a signal is sent once its journal meets a condition; as a `Child`."""

    def __init__(
        self, case: Case, folder: Path, seen: Callable[[list[Event]], bool], *numbers: signal.Signals
    ) -> None:
        self._run, self._seen, self._numbers = folder / "run", seen, numbers
        self._ended = threading.Event()
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        sender = threading.Thread(target=self._send)
        sender.start()
        try:
            ended = call(*case.arguments(folder, "run"))
        finally:
            self._ended.set()
            sender.join()
            for number, handler in before.items():
                signal.signal(number, handler)
        self.code, self.told = ended.returncode, ended.stderr

    def poll(self) -> int | None:
        """Its exit code as far as the sender needs it."""
        return 1 if self._ended.is_set() else None

    def output(self) -> str:
        """What it has printed is known at its end."""
        return ""

    def _send(self) -> None:
        wait_for(self, self._run, self._seen)
        for number in self._numbers:
            os.kill(os.getpid(), number)


def stepped(count: int) -> Callable[[list[Event]], bool]:
    """Return a condition: the run has emitted `count` step events."""
    return lambda events: sum(isinstance(event, Step) for event in events) >= count


def wait_for(child: "Child | Signalled", run: Path, seen: Callable[[list[Event]], bool]) -> list[Event]:
    """Wait until the events in a run's journal meet a condition; return them."""
    until = time.monotonic() + LIMIT_S
    events: list[Event] = []
    position = 0
    while True:
        with contextlib.suppress(FileNotFoundError):
            for end, read in read_events(run / NAME, position):
                position = end
                events += read
        if seen(events):
            return events
        ended = child.poll()
        assert ended is None, f"ended ({ended}) before it was seen\n{child.output()}"
        assert time.monotonic() < until, "never seen"
        time.sleep(LOOK_S)


def in_phase(phase: str) -> Callable[[list[Event]], bool]:
    """Return a condition: the run has entered a phase."""
    return lambda events: any(isinstance(event, PhaseChanged) and event.phase == phase for event in events)
