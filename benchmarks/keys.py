"""Time from a key to the first byte that the program writes after it.

    python -m benchmarks.keys

`mptui attach` on a pseudo-terminal shows a ResNet-18 while it trains in another process with one thread, then
once it has ended. Keys open and close each screen and change the live one, the next after a pause. Each is
typed when nothing has been written for a tenth of a second, as the live screen draws at other times, too.
Escape includes the time in which it could begin a sequence. The first tour over all keys counts, too: what is
loaded as a screen first opens is in it.
"""

import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import parser_of, save
from benchmarks.drawing import a_training, watch
from benchmarks.ui import CASES, PROFILE, environment
from tests.e2e.terminal import Terminal

SIZES = ((80, 24), (200, 60))
STATES = {"training": "● training", "ended": "■ stopped"}
"""States of the run, and what the header has then."""
TOUR = (
    *(("help", "?"), ("help, back", "escape"), ("palette", ":"), ("palette, back", "escape")),
    *(("numerics", "n"), ("numerics, back", "escape"), ("memory", "m"), ("memory, back", "escape")),
    *(("images", "i"), ("images, back", "escape"), ("settings", "e"), ("settings, back", "escape")),
    *(("runs", "o"), ("compare", "c"), ("compare, back", "escape"), ("runs, back", "escape")),
    *(("log axis", "y"), ("all values", "z"), ("smoothing", "s"), ("zoom", "+"), ("all steps", "0")),
    *(("log", "l"), ("log, back", "l"), ("metrics", "/"), ("metrics, back", "escape")),
    *(("earlier", "left"), ("now", "escape")),
)
"""Name of each key and the key, from the live screen back to it."""
QUIET_S, PAUSE_S, LONGEST_S, WARM_S = 0.1, 0.6, 2.0, 10.0


def main() -> None:
    """Measures and writes results/keys.json."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    document: dict[str, Any] = {"rounds": given.rounds}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_another(folder)
        with a_training(folder) as environ:
            document["training"] = measured("training", folder, environ, given.rounds)
        document["ended"] = measured("ended", folder, environ, given.rounds)
    save("keys", document)


def run_another(folder: Path) -> None:
    """Trains a few steps, for a comparison."""
    environ = environment(CASES["resnet18"], folder) | {"MPTUI_TRAINING_MAX_STEPS": "20"}
    command = [sys.executable, "-m", "mptui", "run", "--quiet", "--profile", PROFILE, "--name", "another"]
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)


def measured(state: str, folder: Path, environ: Mapping[str, str], rounds: int) -> dict[str, Any]:
    """Measures and prints the milliseconds of each key at each size, and of all keys."""
    found: dict[str, Any] = {}
    for size in SIZES:
        words = "x".join(map(str, size))
        terminal = Terminal(folder, size=size, environ=environ, arguments=("attach", "drawn"), forked=False)
        try:
            terminal.shows(STATES[state])
            watch(terminal, WARM_S)
            taken = answers_ms(terminal, rounds)
            terminal.shows(STATES[state])
        finally:
            terminal.end()
        every = [each for values in taken.values() for each in values]
        found[words] = summary(every) | {"keys": {name: summary(values) for name, values in taken.items()}}
        for name, figures in (("all keys", found[words]), *found[words]["keys"].items()):
            told = "  ".join(f"{key} {figures[key]:4.0f}" for key in ("median", "p90", "max"))
            print(f"  {state} {words:<7} {name:<15} {told} ms", flush=True)
    return found


def summary(values: Sequence[float]) -> dict[str, float]:
    """Returns the median, the value that a tenth is above, and the largest."""
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "p90": ordered[int(0.9 * len(ordered))],
        "max": ordered[-1],
    }


def answers_ms(terminal: Terminal, rounds: int) -> dict[str, list[float]]:
    """Returns the milliseconds of each key of the tour, in each round."""
    taken: dict[str, list[float]] = {name: [] for name, _ in TOUR}
    for _ in range(rounds):
        for name, key in TOUR:
            taken[name].append(1000 * answer_s(terminal, key))
            watch(terminal, PAUSE_S)
    return taken


def answer_s(terminal: Terminal, key: str) -> float:
    """Types a key in a quiet moment; returns the seconds until the program writes, at most `LONGEST_S`."""
    while terminal.read(QUIET_S):
        pass
    terminal.output = b""  # each read copies it, and the program waits for who reads slowly
    began = time.monotonic()
    terminal.press(key)
    select.select([terminal.fd], [], [], LONGEST_S)
    return time.monotonic() - began


if __name__ == "__main__":
    main()
