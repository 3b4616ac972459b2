"""Memory, time, attach and resume of a run of ten million steps against one of a hundred thousand.

    python -m benchmarks.long_run                                # some minutes, and 0.8 GB of disk
    python -m benchmarks.long_run --each-step --steps 1000000    # as under logging.step_interval_s=0

A run is simulated in fast forward, with a simulated clock: its events go into a real journal and into the
view of a live screen, and its index is rewritten every 30 s of that clock, as by a run's heartbeat. It emits
as many events as a real run: a step event and a device sample per second and those at the end of an epoch,
or an event for each step. Memory is the resident set. Time per step is CPU time of journal and view, over
the last hundred thousand steps before each of the two points; the time to rewrite the index, once in 30 s,
is listed with it: it levels off when log and curves are full, after a million steps.

`attach` is the CPU time of a fresh process until a view holds the whole run, `screen` the wall time of
`mptui attach` until its first full frame, `resume` that of `mptui resume` on a small real run with the long
journal. Both journals end some time after their index, as those of a killed run do. The two sides alternate.
"""

import gc
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks import attach
from benchmarks.common import alternate, parser_of, ratios, save
from mptui.events import Event, Step
from mptui.runs.store.directory import CONFIG
from mptui.runs.store.files import WRITTEN_EVERY_S
from mptui.runs.store.index import NAME as INDEX
from mptui.runs.store.index import Index
from mptui.runs.store.journal import NAME as JOURNAL
from mptui.runs.store.journal import Journal
from mptui.runs.view.run_view import RunView
from tests.tui import events as story

SHORT = 100_000
"""Steps of the reference run."""

TAIL_S = 20.0
"""Seconds between the last write of the index and the end of the journal."""

SMALL = {
    "model.name": "unet",
    "model.width": 2,
    "model.depth": 2,
    "data.image_size": 32,
    "data.samples": 16,
    "data.workers": 0,
    "training.batch_size": 4,
    "training.max_steps": 2,
}
"""Settings of the real run that is resumed; it has no steps left."""

ATTACH = """
import sys, time
from pathlib import Path
from mptui.runs.remote.feed import AttachedRun
source = AttachedRun(Path(sys.argv[1])).start()
view = source.view
while not source.finished:
    for event in source.poll():
        view.handle(event)
    time.sleep(0.001)
assert view.step == int(sys.argv[2]), view.step
print(time.process_time())
"""


@dataclass
class Point:
    """Figures of a run after a number of steps."""

    steps: int
    events: int
    resident_mib: float
    us_a_step: float
    renew_ms: float
    journal_bytes: int
    index_bytes: int


@dataclass
class Player:
    """Plays a simulated run into a journal, its index and a view."""

    run: Path
    view: RunView = field(default_factory=RunView)
    events: int = 0
    renewals: int = 0
    renewing_s: float = 0.0
    _renewed: float = 0.0

    def __post_init__(self) -> None:
        self.journal, self.index = Journal(self.run), Index(self.run)

    def take(self, event: Event) -> None:
        """Handles one event of the run."""
        self.journal.write(event)
        self.view.handle(event)
        self.events += 1
        if event.time - self._renewed > WRITTEN_EVERY_S:
            self._renewed = event.time
            before = time.process_time()
            self.index.renew()
            self.renewing_s += time.process_time() - before
            self.renewals += 1

    def point(self, steps: int, seconds: float) -> Point:
        """Measures the run; `seconds` is the CPU time of the last hundred thousand steps."""
        gc.collect()
        resident = psutil.Process().memory_info().rss / (1 << 20)
        sizes = [(self.run / name).stat().st_size for name in (JOURNAL, INDEX)]
        a_step_s = (seconds - self.renewing_s) / SHORT
        renew_s = self.renewing_s / max(1, self.renewals)
        return Point(steps, self.events, resident, 1e6 * a_step_s, 1e3 * renew_s, *sizes)


def played(folder: Path, steps: int) -> tuple[list[Point], list[int]]:
    """Plays a run and saves its directory as `short` and `long`; returns both points and both last steps."""
    (folder / "played").mkdir()
    player = Player(folder / "played")
    events = _endless()
    points, last = [], []
    for name, end in (("short", SHORT), ("long", steps)):
        _play(player, events, end - SHORT)
        player.renewals, player.renewing_s = 0, 0.0
        before = time.process_time()
        _play(player, events, end)
        points.append(player.point(end, time.process_time() - before))
        print(f"  {points[-1]}", flush=True)
        player.index.renew()
        last.append(_keep(player, events, folder / name))
    return points, last


def _endless() -> Iterator[Event]:
    yield from story.beginning()
    yield from story.training(epochs=10**9)


def _play(player: Player, events: Iterator[Event], until: int) -> None:
    while player.view.step < until:
        player.take(next(events))


def _keep(player: Player, events: Iterator[Event], place: Path) -> int:
    """Copies the run, with some seconds of events after its index; returns its last step."""
    index = player.run / INDEX
    kept = index.read_bytes()
    until = player.view.time + TAIL_S
    for event in events:
        player.journal.write(event)
        player.view.handle(event)
        if event.time > until and isinstance(event, Step):
            break
    place.mkdir()
    (place / INDEX).write_bytes(kept)
    shutil.copyfile(player.run / JOURNAL, place / JOURNAL)
    journal = Journal(place)
    journal.write(story.finished(player.view.step))
    journal.close()
    (place / CONFIG).touch()
    return player.view.step


def attached(run: Path, last: int) -> float:
    """Returns CPU seconds of a fresh process until a view holds the whole run."""
    words = [sys.executable, "-c", ATTACH, str(run), str(last)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def small_run(folder: Path) -> Path:
    """Trains a small real run to its end."""
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    words = ["run", "--name", "small", "--runs-dir", str(folder), "--device", "cpu", "-q", *sets]
    subprocess.run([sys.executable, "-m", "mptui", *words], check=True)
    return folder / "small"


def resumable(small: Path, journal: Path) -> Path:
    """Copies the small run with the journal and index of another."""
    run = small.with_name(f"resumed-{journal.name}")
    shutil.copytree(small, run, symlinks=True)
    for name in (JOURNAL, INDEX):
        shutil.copyfile(journal / name, run / name)
    return run


def resumed(run: Path) -> float:
    """Returns the seconds of `mptui resume`."""
    words = ["resume", str(run), "--device", "cpu", "-q"]
    before = time.perf_counter()
    subprocess.run([sys.executable, "-m", "mptui", *words], check=True)
    return time.perf_counter() - before


def main() -> None:
    """Measures and writes results/long_run.json."""
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--each-step", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="where the journals lie meanwhile")
    given = parser.parse_args()
    if given.each_step:
        story.PER_EVENT = 1
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        points, (short_end, long_end) = played(folder, given.steps)
        short, long = folder / "short", folder / "long"
        small = small_run(folder)
        again = {run.name: resumable(small, run) for run in (short, long)}
        figures = alternate(
            {
                "attach short": lambda: attached(short, short_end),
                "attach long": lambda: attached(long, long_end),
                "screen short": lambda: attach.seconds(short, f"{short_end:,}"),
                "screen long": lambda: attach.seconds(long, f"{long_end:,}"),
                "resume short": lambda: resumed(again["short"]),
                "resume long": lambda: resumed(again["long"]),
            },
            given.rounds,
        )
    compared = {
        kind: ratios(figures[f"{kind} long"], figures[f"{kind} short"])
        for kind in ("attach", "screen", "resume")
    }
    grown = points[1].resident_mib - points[0].resident_mib
    print(f"  memory {grown:+.1f} MiB; " + ", ".join(f"{k} {v['median']:.2f}x" for k, v in compared.items()))
    save(
        "long_run_each_step" if given.each_step else "long_run",
        {
            "points": [vars(point) for point in points],
            "grown_mib": grown,
            "us_a_step_ratio": points[1].us_a_step / points[0].us_a_step,
            "seconds": figures,
            "ratios": compared,
        },
    )


if __name__ == "__main__":
    main()
