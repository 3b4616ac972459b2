"""Make the pictures of the screens, and `mptui.cast`: the program on a pseudo-terminal, driven by its keys.

    PYTHONPATH=$PWD python docs/make_pictures.py MASKS [docs [picker|tour|fork]]

MASKS is a folder of images and masks, a link to it is what the screens name. Those in this folder show 68 of
the nuclei of the 2018 Data Science Bowl (BBBC038v1, Caicedo et al. 2019, CC0).

For the picture of the picker, a short run trains first, which tells the time. For the tour, two do, so that
the list of runs has some. Then the program goes from the devices to the profiles, trains a small U-Net on the
CPU in fp16, is switched to another profile, takes the switch back, and shows numerics and runs: that takes a
CPU whose fp16 is not much slower. For the picture of a fork, an fp32 run trains, and is forked in bf16 from
an early checkpoint. Keys are pressed once the screen shows what they are for. The cast is played by
`asciinema play docs/mptui.cast`.
"""

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from mptui.tui.share import without_fonts
from tests.e2e.terminal import LOOK_S, Terminal

SIZE = (120, 44)
EPOCHS_BEFORE, EPOCHS_SWITCHED, EPOCHS = 12, 18, 20
"""Epochs until the switch, until it is undone, and until the picture of the branch in force."""
LINK = "nuclei"
LONGEST_IDLE_S, FRAME_S = 1.0, 2.0
"""Longest time in the cast in which nothing changes, and the time of a frame."""
SETTINGS = {
    "COLORTERM": "truecolor",
    "CUDA_VISIBLE_DEVICES": "",
    "MPTUI_MODEL_NAME": "unet",
    "MPTUI_MODEL_WIDTH": "8",
    "MPTUI_MODEL_DEPTH": "3",
    "MPTUI_DATA_PATH": LINK,
    "MPTUI_DATA_IMAGE_SIZE": "64",
    "MPTUI_DATA_WORKERS": "1",
    "MPTUI_GUARDS_NUMERICS": "summary",
    "MPTUI_TRAINING_BATCH_SIZE": "6",
    "MPTUI_TRAINING_EPOCHS": "40",
    "MPTUI_TRAINING_WARMUP_EPOCHS": "1",
}
BEFORE_PICKER = (("--profile", "fast", "--epochs", "2"),)
BEFORE = (("--profile", "stable", "--epochs", "2"), ("--profile", "older-gpu", "--epochs", "2"))
"""The runs that are there before."""

FORKED, FORK_FROM, FORK_TO = "stable-fp32", 70, 200
"""The run that is forked, the steps between its checkpoints, and the step of the fork in the picture."""
PARENT = (
    *("--profile", "stable", "--name", FORKED, "--set", f"checkpoint.every_steps={FORK_FROM}"),
    *("--set", "checkpoint.keep=99"),
)


class RecordedTerminal(Terminal):
    """A terminal that keeps its output with the time at which it came."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._began = time.monotonic()
        self.shown: list[tuple[float, bytes]] = []
        super().__init__(folder, size=SIZE, environ=environ, forked=False)

    def read(self, timeout: float = LOOK_S) -> bool:
        """Read available output; return whether there was any."""
        before = len(self.output)
        there = super().read(timeout)
        if there:
            self.shown.append((time.monotonic() - self._began, self.output[before:]))
        return there

    def rest(self) -> None:
        """Read until the screen has stood still for a moment, or for two seconds."""
        deadline = time.monotonic() + 2
        while self.read(0.5) and time.monotonic() < deadline:
            pass


def cast_of(shown: list[tuple[float, bytes]]) -> str:
    """Return the recording as asciicast v2: https://docs.asciinema.org/manual/asciicast/v2/.

    It has the lines that have changed since the frame before, which are far fewer than the program writes.
    """
    screen = pyte.Screen(*SIZE)
    stream = pyte.ByteStream(screen)
    lines = [json.dumps({"version": 2, "width": SIZE[0], "height": SIZE[1], "title": "mptui"})]
    drawn = [""] * SIZE[1]
    before = moment = due = 0.0
    for came, output in shown:
        stream.feed(output)
        moment, before = moment + min(came - before, LONGEST_IDLE_S), came
        if moment >= due:
            due = moment + FRAME_S
            now = [_ansi(screen, line) for line in range(screen.lines)]
            changed = [n for n, (old, new) in enumerate(zip(drawn, now, strict=True)) if old != new]
            words = "".join(f"\x1b[{n + 1};1H{now[n]}" for n in changed)
            lines.append(json.dumps([round(moment, 2), "o", words], ensure_ascii=False))
            drawn = now
    return "\n".join(lines) + "\n"


def _ansi(screen: pyte.Screen, line: int) -> str:
    """Return a line of a terminal with the sequences of its colours; a space keeps those before it."""
    text, fore, back, bold = "\x1b[0m", "default", "default", False
    for cell in (screen.buffer[line][column] for column in range(screen.columns)):
        now = (fore, bold) if cell.data == " " else (cell.fg, cell.bold)
        codes = [
            *(_codes(38, now[0]) if now[0] != fore else []),
            *(_codes(48, cell.bg) if cell.bg != back else []),
            *(["1" if now[1] else "22"] if now[1] != bold else []),
        ]
        text += (f"\x1b[{';'.join(codes)}m" if codes else "") + cell.data
        (fore, bold), back = now, cell.bg
    return text


def _codes(kind: int, colour: str) -> list[str]:
    return (
        [f"{kind + 1}"] if colour == "default" else [f"{kind};2;{';'.join(map(str, bytes.fromhex(colour)))}"]
    )


def svg_of(screen: pyte.Screen) -> str:
    """Return what a terminal shows as SVG that loads nothing."""
    cells = [screen.buffer[line][column] for line in range(screen.lines) for column in range(screen.columns)]
    back = max({cell.bg for cell in cells}, key=[cell.bg for cell in cells].count)
    console = Console(
        width=screen.columns,
        height=screen.lines,
        file=io.StringIO(),
        record=True,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    for line in range(screen.lines):
        console.print(_line(screen, line, back), end="" if line == screen.lines - 1 else "\n")
    return without_fonts(console.export_svg(title="mptui", theme=_theme(back)))


def _line(screen: pyte.Screen, line: int, back: str) -> Text:
    text = Text(no_wrap=True, overflow="ignore")
    cells = [screen.buffer[line][column] for column in range(screen.columns)]
    for style, alike in groupby(cells, key=lambda cell: _style(cell, back)):
        text.append("".join(cell.data for cell in alike), style)
    return text


def _style(cell: pyte.screens.Char, back: str) -> Style:
    ground = None if cell.bg == back else _colour(cell.bg)
    return Style(color=_colour(cell.fg), bgcolor=ground, bold=cell.bold, reverse=cell.reverse)


def _colour(name: str) -> str | None:
    """Return the name of a colour of pyte, which is a number of six hexadecimal digits, for rich."""
    return None if name == "default" else f"#{name}"


def _theme(back: str) -> TerminalTheme:
    """Return the background of most cells; all other colours are given with the cells."""
    red, green, blue = bytes.fromhex(back)
    return TerminalTheme((red, green, blue), (215, 221, 228), [(0, 0, 0)] * 8)


def drive_picker(program: RecordedTerminal) -> Iterator[tuple[str, str]]:
    """Go from the first screen to the picker; yield name and picture."""
    program.shows("workers")
    program.rest()
    program.press("enter")
    program.shows("enter start")
    program.press("1")
    program.until(lambda: "counting" not in program.text and " as fast as " in program.text, "the figures")
    program.rest()
    yield "picker", svg_of(program.screen)
    program.press("q")
    program.exit_code()


def drive(program: RecordedTerminal) -> Iterator[tuple[str, str]]:
    """Drive the program from its first screen to its end; yield names and pictures."""
    program.shows("workers")
    program.rest()
    program.press("enter")
    program.shows("enter start")
    program.press("7")
    program.shows("Volta and Turing")
    program.until(lambda: "counting" not in program.text, "the memory")
    program.rest()
    program.press("enter")
    program.shows("space pause")
    _epochs(program, EPOCHS_BEFORE)
    program.press("1")
    program.shows("switch to fast?")
    program.press("enter")
    program.shows("mptui  fast")
    _epochs(program, EPOCHS_SWITCHED)
    program.press("u")
    program.shows("undo the switch")
    program.press("enter")
    program.shows("mptui  older-gpu")
    _epochs(program, EPOCHS)
    program.rest()
    yield "live", svg_of(program.screen)
    program.press("n")
    program.shows("layers by risk · step")
    program.rest()
    yield "numerics", svg_of(program.screen)
    program.press("n")
    program.shows("space pause")
    program.press("o")
    program.shows("stable-unet")
    program.rest()
    yield "runs", svg_of(program.screen)
    program.press("o")
    program.shows("space pause")
    program.press("x", "x")
    program.shows("■ stopped")
    program.press("q")
    program.exit_code()


def drive_fork(program: RecordedTerminal) -> Iterator[tuple[str, str]]:
    """Fork the run in bf16 from its first checkpoint, until both can be compared; yield name and picture."""
    program.shows("workers")
    program.rest()
    program.press("o")
    program.shows("enter open")
    program.press("f")
    program.shows(f"fork {FORKED} at")
    program.press("\x1b[F", "tab", "precision.mode=bf16", "enter")
    program.shows("compar")
    program.press("escape")
    program.shows("space pause")

    def is_compared() -> bool:
        step = re.search(r"step +([\d,]+)", program.text)
        far = step is not None and int(step[1].replace(",", "")) >= FORK_TO
        return far and re.search(r"x (ahead|behind)|speed even", program.text) is not None

    program.until(is_compared, "the comparison")
    program.rest()
    yield "fork", svg_of(program.screen)
    program.press("x", "x")
    program.shows("■ stopped")
    program.press("q")
    program.exit_code()


def _epochs(program: RecordedTerminal, number: int) -> None:
    """Wait until so many epochs are done."""

    def done() -> bool:
        shown = re.search(r"epoch +(\d+)/", program.text)
        return shown is not None and int(shown[1]) > number

    program.until(done, f"epoch {number + 1}")


Drive = Callable[[RecordedTerminal], Iterator[tuple[str, str]]]
"""Drives the program to its end; yields names and pictures."""


def make(target: Path, masks: Path, before: Sequence[tuple[str, ...]], drive: Drive) -> RecordedTerminal:
    """Train runs, then drive the program and write its pictures; return the terminal with its recording."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / LINK).symlink_to(masks.resolve())
        for words in before:
            command = [sys.executable, "-m", "mptui", "run", "--quiet", *words]
            subprocess.run(command, cwd=name, env={**os.environ, **SETTINGS}, check=True)  # noqa: S603 - ours
        program = RecordedTerminal(Path(name), SETTINGS)
        try:
            for picture, svg in drive(program):
                (target / f"{picture}.svg").write_text(svg, encoding="utf-8")
        finally:
            program.end()
    return program


def main() -> None:
    """Write the pictures and the cast."""
    masks, target = Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "docs")
    wanted = sys.argv[3:] or ["picker", "tour", "fork"]
    if "picker" in wanted:
        make(target, masks, BEFORE_PICKER, drive_picker)
    if "tour" in wanted:
        program = make(target, masks, BEFORE, drive)
        (target / "mptui.cast").write_text(cast_of(program.shown), encoding="utf-8")
    if "fork" in wanted:
        make(target, masks, [PARENT], drive_fork)


if __name__ == "__main__":
    main()
