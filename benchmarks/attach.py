"""Time until the first full frame of `mptui attach` on the journal of a long run.

    python -m benchmarks.attach                 # a million events
    python -m benchmarks.attach --events 10000

Each figure is a fresh process on a pseudo-terminal of 120x36 cells, timed from its start until the frame
shows the last step of the journal and how the run ended. The journal is in the page cache, as it is while a
run writes it, and has no index, as in runs of older versions. For runs with one see `benchmarks.long_run`.
"""

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common import parser_of, save
from mptui.events import EpochStarted, Event, Step, to_record
from mptui.runs.store.directory import CONFIG
from mptui.runs.store.journal import NAME
from tests.e2e.terminal import Terminal
from tests.tui import events as run
from tests.tui.events import beginning, finished, training

EPOCHS = 120


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with a_run(given.events) as (folder, last):
        figures = [seconds(folder, last) for _ in range(given.rounds)]
        size = (folder / NAME).stat().st_size
    for number, figure in enumerate(figures, 1):
        print(f"  round {number}  {figure:.2f} s")
    median = statistics.median(figures)
    print(f"first full frame of {given.events:,} events ({size >> 20} MiB): {median:.2f} s (median)")
    save("attach", {"events": given.events, "bytes": size, "seconds": figures, "median_s": median})


@contextmanager
def a_run(events: int) -> Iterator[tuple[Path, str]]:
    """Yields the directory of a run that has ended, and its last step as the screen shows it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "long"
        folder.mkdir()
        (folder / CONFIG).touch()
        yield folder, f"{write(folder / NAME, events):,}"


def write(path: Path, count: int) -> int:
    """Writes a run of `count` events and about 120 epochs; returns its last step."""
    run.STEPS_PER_EPOCH = max(run.PER_EVENT, count * run.PER_EVENT // (2 * EPOCHS))
    step = 0
    with path.open("w", encoding="utf-8") as file:
        for event in itertools.islice(itertools.chain(beginning(), training(epochs=10 * EPOCHS)), count - 1):
            step = max(step, event.step if isinstance(event, Step | EpochStarted) else 0)
            file.write(line(event))
        file.write(line(finished(step)))
    return step


def line(event: Event) -> str:
    return json.dumps(to_record(event), separators=(",", ":")) + "\n"


def seconds(folder: Path, last: str) -> float:
    """Returns the seconds from the start of the process to the complete frame."""
    began = time.monotonic()
    terminal = Terminal(folder.parent, size=(120, 36), arguments=("attach", str(folder)), forked=False)
    try:
        while not (last in terminal.text and "✓ completed" in terminal.text and "best" in terminal.text):
            terminal.read(0.01)
        return time.monotonic() - began
    finally:
        terminal.press("q")
        terminal.exit_code()
        terminal.end()


if __name__ == "__main__":
    main()
