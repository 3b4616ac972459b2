"""Processor time of the live screen while the run that it shows trains.

    python -m benchmarks.drawing

`mptui attach` on a pseudo-terminal draws a ResNet-18 that trains in another process, at its default refresh
rate. The figure is the processor time of the screen's processes over wall time, in windows after the first
frame; the output is read and not interpreted.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import parser_of, save, spread
from benchmarks.ui import CASES, PROFILE, environment
from mptui.runs.store.journal import NAME as JOURNAL
from tests.e2e.terminal import Terminal

SIZES = ((80, 24), (140, 45), (200, 60))
WINDOW_S = 20.0
ENDLESS = "1000000"


def main() -> None:
    """Measures and writes results/drawing.json."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    document: dict[str, Any] = {"window_s": WINDOW_S}
    with tempfile.TemporaryDirectory() as name, a_training(Path(name)) as environ:
        for size in SIZES:
            found = spread(shares(Path(name), environ, size, given.rounds))
            words = "x".join(map(str, size))
            print(f"  {words:<8} {100 * found['median']:.2f} % of a core", flush=True)
            document[words] = {"share": found}
    save("drawing", document)


@contextmanager
def a_training(folder: Path) -> Iterator[dict[str, str]]:
    """Trains until the end of the block; yields the environment of the run."""
    environ = environment(CASES["resnet18"], folder) | {"MPTUI_TRAINING_MAX_STEPS": ENDLESS}
    command = [sys.executable, "-m", "mptui", "run", "--json", "--profile", PROFILE, "--name", "drawn"]
    run = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (folder / "runs" / "drawn" / JOURNAL).exists() and run.poll() is None:
            time.sleep(0.1)
        yield environ
    finally:
        run.terminate()
        run.wait()


def shares(folder: Path, environ: dict[str, str], size: tuple[int, int], rounds: int) -> list[float]:
    """Returns the processor time of the screen over wall time, of each window."""
    terminal = Terminal(folder, size=size, environ=environ, arguments=("attach", "drawn"), forked=False)
    try:
        terminal.shows("● training")
        watch(terminal, 5.0)
        return [share(terminal) for _ in range(rounds)]
    finally:
        terminal.press("q")
        terminal.end()


def share(terminal: Terminal) -> float:
    """Returns the processor time of a window over its wall time."""
    before, began = cpu_s(terminal.pid), time.monotonic()
    watch(terminal, WINDOW_S)
    return (cpu_s(terminal.pid) - before) / (time.monotonic() - began)


def watch(terminal: Terminal, seconds: float) -> None:
    """Reads the output for `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        terminal.read(0.1)


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds of a process and its children."""
    process, total = psutil.Process(pid), 0.0
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            total += times.user + times.system
    return total


if __name__ == "__main__":
    main()
