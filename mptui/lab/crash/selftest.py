"""The kill-and-resume test of `mptui selftest`, on this disk and device.

A small ResNet is trained in a folder next to the runs, once undisturbed and then with many kills, half of
them inside a save; every run must end with the same losses and weights, bit for bit.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mptui.errors import DiskError
from mptui.lab.crash.kills import Killer, Tally
from mptui.lab.crash.run_server import RunServer

_FLAGS = ("--model", "resnet18", "--batch-size", "4", "--epochs", "2", "--workers", "0", "--no-compile", "-q")
_SETS = (
    *("data.image_size=32", "data.samples=16", "training.deterministic=true"),
    *("logging.step_interval_s=0", "checkpoint.every_steps=1", "precision.matmul=highest"),
)


@dataclass(frozen=True, slots=True)
class SelftestReport:
    """The result. `seconds` is the duration."""

    tally: Tally
    folder: Path
    device: str
    seconds: float


def selftest(runs: Path, device: str, kills: int, on_kill: Callable[[Tally], None]) -> SelftestReport:
    """Run the test; all of its files are removed.

    Args:
        runs: Folder of the runs, whose disk is tested.
        device: As for `mptui run --device`.
        kills: Number of kills.
        on_kill: Called after each kill.

    Raises:
        DiskError: The folder can't be written, or the disk is full.
        RunDirectoryError: A run could not be resumed.
    """
    started = time.monotonic()
    with _folder_beside(runs) as folder, RunServer() as server:

        def arguments(name: str) -> list[str]:
            sets = [text for value in _SETS for text in ("--set", value)]
            where = ["--runs-dir", str(folder), "--device", device]
            return ["run", "--resume", "--name", name, *where, *_FLAGS, *sets]

        tally = Killer(server, arguments, folder, on_kill=on_kill).run(kills)
    return SelftestReport(tally, runs, device, time.monotonic() - started)


@contextmanager
def _folder_beside(runs: Path) -> Iterator[Path]:
    try:
        runs.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=runs, prefix=".selftest-", ignore_cleanup_errors=True)
    except OSError as error:
        raise DiskError(
            f"{runs}: cannot write here: {error.strerror}", hint="choose another folder with --runs-dir"
        ) from error
    with folder as path:
        yield Path(path)
