"""Training under the terminal UI against the same run without it.

    python -m benchmarks.ui                 # ResNet-18 at 64 px, and a loop bound by Python
    python -m benchmarks.ui --only python   # only thousands of tiny steps

Each figure is a fresh process and the run's own `samples_per_second`. One side is `mptui` on a real
pseudo-terminal of 120x36 cells, driven by keys and read continuously, at its default refresh rate; the other
is `mptui run`. The settings come from the same environment variables, and the sides alternate.
"""

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyte

from benchmarks.common import alternate, parser_of, ratios, save
from benchmarks.targets import UI

SIZE = 120, 36
PROFILE, DIGIT = "stable", "2"
DEADLINE_S = 1800.0
LOOK_S = 0.2


@dataclass(frozen=True)
class Case:
    """Training settings that differ from the profile, and the goal of the ratio."""

    settings: dict[str, str]
    target: float


_COMMON = {
    "data.name": "shapes",
    "data.augment": "none",
    "data.cache": "device",
    "training.epochs": "1000",
    "training.lr": "0.001",
}
CASES = {
    "resnet18": Case(
        {
            **_COMMON,
            "model.name": "resnet18",
            "data.image_size": "64",
            "data.samples": "3200",
            "training.batch_size": "32",
            "training.max_steps": "100",
        },
        target=UI["resnet18"],
    ),
    # two convolutions of two channels: nearly all step time is the interpreter's
    "python": Case(
        {
            **_COMMON,
            "model.name": "unet",
            "model.width": "2",
            "model.depth": "1",
            "data.image_size": "8",
            "data.samples": "4000",
            "training.batch_size": "2",
            "training.max_steps": "8000",
        },
        target=UI["python"],
    ),
}


def environment(case: Case, folder: Path) -> dict[str, str]:
    """Returns the settings as environment variables, isolated from the user's files."""
    settings = {f"MPTUI_{key.replace('.', '_').upper()}": value for key, value in case.settings.items()}
    places = {
        "MPTUI_RUNS_DIR": str(folder / "runs"),
        "MPTUI_CONFIG_DIR": str(folder / "config"),
        "XDG_STATE_HOME": str(folder / "state"),
    }
    return {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **settings, **places}


def headless_rate(case: Case) -> float:
    """Returns the throughput of `mptui run`."""
    with tempfile.TemporaryDirectory() as folder:
        answer = subprocess.run(
            [sys.executable, "-m", "mptui", "run", "--json", "--profile", PROFILE],
            env=environment(case, Path(folder)),
            capture_output=True,
            text=True,
            check=True,
        )
    return float(json.loads(answer.stdout)["samples_per_second"])


def ui_rate(case: Case) -> float:
    """Returns the throughput of the same run under the terminal UI."""
    with tempfile.TemporaryDirectory() as folder:
        terminal = Terminal(environment(case, Path(folder)))
        terminal.shows("workers")
        terminal.press("\r")
        terminal.shows("enter start")
        terminal.press(DIGIT)
        terminal.shows("Conservative")
        terminal.press("\r")
        terminal.watch(lambda: _completed(Path(folder)))
        terminal.press("q")
        terminal.wait()
        (summary,) = Path(folder).glob("runs/*/summary.json")
        return float(json.loads(summary.read_text())["samples_per_second"])


def _completed(folder: Path) -> bool:
    return any('"completed"' in summary.read_text() for summary in folder.glob("runs/*/summary.json"))


class Terminal:
    """`mptui` on a pseudo-terminal, with a reader."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._screen = pyte.Screen(*SIZE)
        self._stream = pyte.ByteStream(self._screen)
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
            os.execve(sys.executable, [sys.executable, "-m", "mptui"], environ)

    def shows(self, words: str) -> None:
        """Reads until `words` are on the screen."""
        deadline = time.monotonic() + DEADLINE_S
        while not any(words in line for line in self._screen.display):
            if time.monotonic() > deadline or not self._read():
                raise SystemExit(f"the screen never showed: {words}\n" + "\n".join(self._screen.display))

    def press(self, key: str) -> None:
        """Types a key."""
        os.write(self._fd, key.encode())

    def watch(self, over: Callable[[], bool]) -> None:
        """Reads until `over` returns True, without terminal emulation, which would cost CPU time here."""
        deadline = time.monotonic() + DEADLINE_S
        while not over():
            if time.monotonic() > deadline or not self._read(interpret=False):
                raise SystemExit("the run never ended")

    def wait(self) -> None:
        """Reads to the end."""
        while self._read(interpret=False):
            pass
        os.waitpid(self._pid, 0)
        os.close(self._fd)

    def _read(self, *, interpret: bool = True) -> bool:
        """Reads available output; returns whether more may come."""
        time.sleep(LOOK_S)
        while select.select([self._fd], [], [], 0)[0]:
            try:
                data = os.read(self._fd, 1 << 16)
            except OSError:  # the other side has ended
                return False
            if interpret:
                self._stream.feed(data)
        return True


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Measures the ratio of throughput under the screen to that without it."""
    sides = {"mptui": lambda: ui_rate(case), "mptui run": lambda: headless_rate(case)}
    figures = alternate(sides, rounds)
    ratio = ratios(figures["mptui"], figures["mptui run"])
    told = f"{ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})"
    print(f"  under the screen over without: {told}, asked {case.target}")
    return {**figures, "ratio": ratio, "asked": case.target}


def main() -> None:
    """Measures and writes results/ui.json."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=list(CASES))
    arguments = parser.parse_args()
    document: dict[str, Any] = {"rounds": arguments.rounds, "terminal": list(SIZE)}
    for name in [arguments.only] if arguments.only else list(CASES):
        print(name)
        document[name] = measure(CASES[name], arguments.rounds)
    save(f"ui-{arguments.only}" if arguments.only else "ui", document)


if __name__ == "__main__":
    main()
