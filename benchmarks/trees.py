"""Two commits of this repository beside each other: the speed figures of one over those of the other.

    python -m benchmarks.trees 399ddfd                 # beside HEAD; results/trees.json
    python -m benchmarks.trees v0.1.0 HEAD --only loop

Each commit is unpacked into a folder of its own. A round runs each benchmark once in each folder, in
alternating order, in processes of their own; a ratio is taken within its round.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import parser_of, ratios, save, spread, turn

_FIRST_FRAME = """
import tempfile, time
from pathlib import Path
from benchmarks.ui import CASES, Terminal, environment
with tempfile.TemporaryDirectory() as folder:
    begun = time.perf_counter()
    terminal = Terminal(environment(CASES["python"], Path(folder)))
    terminal.shows("workers")
    print(time.perf_counter() - begun)
    terminal.press("q")
    terminal.wait()
"""


@dataclass(frozen=True)
class Tree:
    """An unpacked commit."""

    folder: Path

    def run(self, *arguments: str) -> str:
        """What a Python process that imports this tree alone writes to stdout."""
        environ = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        answer = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode:
            raise SystemExit(f"{' '.join(arguments)} failed in {self.folder}:\n{answer.stderr}")
        return answer.stdout

    def result(self, name: str, *arguments: str) -> dict[str, Any]:
        """The results file that a benchmark of this tree writes."""
        self.run("-m", *arguments)
        document: dict[str, Any] = json.loads((self.folder / f"benchmarks/results/{name}.json").read_text())
        return document


def _loop(tree: Tree) -> float:
    return float(tree.result("loop", "benchmarks.loop")["over_bare_us_quartiles"][1])


def _over_bare(case: str) -> Callable[[Tree], float]:
    def measure(tree: Tree) -> float:
        sides = ("--only", case, "--sides", "bare", "--rounds", "2")
        rates = tree.result(f"peers-{case}", "benchmarks.peers", *sides)["cases"][case]["images_per_second"]
        return ratios(rates["mptui"], rates["bare"])["median"]

    return measure


def _guards(tree: Tree) -> float:
    return float(tree.result("guards-tiny", "benchmarks.guards", "--only", "tiny")["tiny"]["share"]) * 100


def _screen(tree: Tree) -> float:
    document = tree.result("ui-python", "benchmarks.ui", "--only", "python", "--rounds", "1")
    return float(document["python"]["ratio"]["median"])


def _first_frame(tree: Tree) -> float:
    return statistics.median(float(tree.run("-c", _FIRST_FRAME)) for _ in range(3))


def _help(tree: Tree) -> float:
    def seconds() -> float:
        begun = time.perf_counter()
        tree.run("-m", "mptui", "--help")
        return time.perf_counter() - begun

    return statistics.median(seconds() for _ in range(5))


FIGURES: dict[str, tuple[str, Callable[[Tree], float]]] = {
    "loop": ("a step of the tiny network beyond a bare loop's, us", _loop),
    "resnet18": ("ResNet-18 over a bare loop, images/s", _over_bare("resnet18")),
    "unet": ("U-Net over a bare loop, images/s", _over_bare("unet")),
    "guards": ("the guards' share of a step of the tiny network, %", _guards),
    "screen": ("the screen over headless, images/s", _screen),
    "first_frame": ("start to first frame, s", _first_frame),
    "help": ("mptui --help, s", _help),
}


def measure(trees: dict[str, Tree], name: str, rounds: int) -> dict[str, Any]:
    """A figure of both trees, `rounds` times."""
    words, figure = FIGURES[name]
    print(words)
    figures: dict[str, list[float]] = {side: [] for side in trees}
    for number in range(rounds):
        for side in turn(trees, number):
            figures[side].append(figure(trees[side]))
            print(f"  round {number + 1}  {side:<10} {figures[side][-1]:12.4f}", flush=True)
    return {"figure": words, "values": figures, **{side: spread(values) for side, values in figures.items()}}


def unpack(commit: str, folder: Path) -> Tree:
    """The files of a commit, below `folder`."""
    folder.mkdir()
    root = Path(__file__).parents[1]
    archive = subprocess.run(["git", "archive", commit], cwd=root, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return Tree(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write results/trees.json."""
    parser = parser_of(__doc__)
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", nargs="?", default="HEAD", help="another commit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(FIGURES), default=list(FIGURES))
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        commits = {"before": given.before, "after": given.after}
        trees = {side: unpack(commit, Path(folder, side)) for side, commit in commits.items()}
        document = {name: measure(trees, name, given.rounds) for name in given.only}
    save("trees", {"commits": commits, "rounds": given.rounds, "figures": document})


if __name__ == "__main__":
    main()
