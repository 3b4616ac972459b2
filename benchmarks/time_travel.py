"""Time from a key to the frame of an earlier moment, on the timeline of a long run.

    python -m benchmarks.time_travel            # a million events
    python -m benchmarks.time_travel --events 10000

The run is opened by `mptui attach` on a pseudo-terminal of 120x36 cells. A key moves the cursor, and the
frame is complete with the last cell that changes; nothing else changes on the screen of a run that has ended.
The journal is in the page cache.
"""

import statistics
import time
from pathlib import Path

from benchmarks.attach import a_run
from benchmarks.common import parser_of, save
from tests.e2e.terminal import Terminal

LEFT, RIGHT, PAGE_UP, PAGE_DOWN, HOME = "\x1b[D", "\x1b[C", "\x1b[5~", "\x1b[6~", "\x1b[H"
KEYS = {"left": LEFT, "right": RIGHT, "pageup": PAGE_UP, "pagedown": PAGE_DOWN}
QUIET_S = 0.4
"""No cell changes for this long after a complete frame, in seconds."""


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with a_run(given.events) as (folder, last):
        figures = seconds(folder, last, given.rounds)
    for key, values in figures.items():
        low, middle, high = (1e3 * of(values) for of in (min, statistics.median, max))
        print(f"  {key:<9} {middle:5.0f} ms ({low:.0f} to {high:.0f})")
    median = statistics.median(value for values in figures.values() for value in values)
    print(f"key to frame over {given.events:,} events: {median * 1e3:.0f} ms (median)")
    save("time_travel", {"events": given.events, "seconds": figures, "median_s": median})


def seconds(folder: Path, last: str, rounds: int) -> dict[str, list[float]]:
    """Returns the seconds from each key to its frame, by key."""
    figures: dict[str, list[float]] = {"home": [], **{key: [] for key in KEYS}}
    terminal = Terminal(folder.parent, size=(120, 36), arguments=("attach", str(folder)), forked=False)
    try:
        terminal.until(lambda: last in terminal.text and "✓ completed" in terminal.text, "the end of the run")
        until_still(terminal)
        for number in range(rounds):
            terminal.press("escape")
            until_still(terminal)
            figures["home"].append(key_to_frame(terminal, HOME))
            for _ in range(number + 1):  # another place of the run each round
                terminal.press(PAGE_DOWN)
                until_still(terminal)
            for key in ("right", "pagedown", "left", "pageup"):
                figures[key].append(key_to_frame(terminal, KEYS[key]))
        return figures
    finally:
        terminal.press("q")
        terminal.exit_code()
        terminal.end()


def key_to_frame(terminal: Terminal, key: str) -> float:
    """Returns the seconds from a key to the last cell that it changes."""
    before, began = terminal.text, time.monotonic()
    terminal.press(key)
    done = until_still(terminal)
    assert terminal.text != before, f"nothing moved\n{before}"
    return done - began


def until_still(terminal: Terminal) -> float:
    """Reads until nothing changes; returns when the last cell did."""
    changed, text = time.monotonic(), terminal.text
    while (now := time.monotonic()) - changed < QUIET_S:
        if terminal.read(0.002) and terminal.text != text:
            changed, text = now, terminal.text
    return changed


if __name__ == "__main__":
    main()
