"""The program on a real terminal: from the first frame to the exit code, with all interruptions."""

import os
import signal
from functools import partial
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from mptui.events import (
    DeviceSample,
    EpochFinished,
    Event,
    Paused,
    PresetSwitched,
    Resumed,
    RunFinished,
    Step,
)
from tests.e2e.conftest import TINY
from tests.e2e.native_exit import ENDS
from tests.e2e.terminal import Terminal, busy_share
from tests.made.waiting import wait_until
from tests.program import run_to_end

pytestmark = pytest.mark.program
slow = partial(pytest.param, marks=pytest.mark.slow)

SAMPLES = int(TINY["MPTUI_DATA_SAMPLES"])
SHORT = TINY | {"MPTUI_TRAINING_MAX_STEPS": "6"}
ENDLESS = TINY | {"MPTUI_TRAINING_EPOCHS": "100000"}


def count(terminal: Terminal, kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for event in terminal.journal())


def start_training(terminal: Terminal, digit: str = "4", words: str = "A first run, or debugging") -> None:
    """Go from the first frame to the first step: the devices, a profile (4 is debug), and enter."""
    terminal.shows("workers")
    terminal.press("enter")
    terminal.shows("enter start")
    terminal.press(digit)
    terminal.shows(words)
    terminal.press("enter")
    terminal.shows("space pause")
    terminal.until(lambda: count(terminal, Step) >= 1, "a step")


def test_a_run_from_the_first_frame_to_the_exit_code(terminal):
    program = terminal(environ=SHORT)
    start_training(program)
    program.shows("✓ completed")
    program.press("q")
    assert program.exit_code() == 0
    assert program.is_restored()
    last = program.journal()[-1]
    assert isinstance(last, RunFinished)
    assert (last.status, last.step) == ("completed", 6)
    assert (program.folder / "runs" / Path(last.directory).name / "console.log").exists()


@pytest.mark.slow
def test_presets_switched_in_the_middle_lose_and_repeat_no_sample(terminal):
    environ = {"MPTUI_TRAINING_LR": "0.05", "MPTUI_DATA_AUGMENT": "none", "MPTUI_SPEED_COMPILE": "off"}
    program = terminal(environ=ENDLESS | environ)
    start_training(program, "1", "Quick results")
    program.until(lambda: count(program, EpochFinished) >= 12, "some epochs")
    for digit, words in (("2", "fast → stable"), ("4", "stable → debug")):
        program.press(digit)
        program.shows(f"switch to {words.split()[-1]}?")
        program.press("enter")
        program.shows(words)
        program.until(lambda words=words: words in switches(program), "the preset")
        epochs = count(program, EpochFinished)
        program.until(lambda epochs=epochs: count(program, EpochFinished) >= epochs + 3, "more epochs")
    program.press("xx")
    program.shows("■ stopped")
    program.press("q")
    assert program.exit_code() == 0
    assert program.is_restored()
    events = program.journal()
    steps = [event for event in events if isinstance(event, Step)]
    assert [step.step for step in steps] == list(range(1, len(steps) + 1))
    seen = [step.samples_seen for step in steps]
    assert seen == sorted(set(seen))
    for place, event in enumerate(events):
        if isinstance(event, EpochFinished):
            taken = [each for each in events[:place] if isinstance(each, Step)]
            assert taken[-1].samples_seen == SAMPLES * event.epoch
    assert {step.nonfinite for step in steps} == {0}
    batches = [after - before for before, after in pairwise(seen)]
    assert {8, 2} <= set(batches)
    first = next(place for place, event in enumerate(events) if isinstance(event, PresetSwitched))
    losses, after = (
        [event.train_loss for event in part if isinstance(event, EpochFinished)]
        for part in (events[:first], events[first:])
    )
    assert losses[-1] < 0.8 * losses[0]
    assert max(after) < 0.9 * losses[0]


def switches(terminal: Terminal) -> list[str]:
    """Return the profiles that were applied."""
    events = terminal.journal()
    return [f"{each.previous} → {each.profile}" for each in events if isinstance(each, PresetSwitched)]


@pytest.mark.slow
def test_a_paused_run_takes_no_step(terminal):
    program = terminal(environ=ENDLESS)
    start_training(program)
    program.press("space")
    program.until(lambda: count(program, Paused), "the pause")
    program.shows("■ paused")
    steps, samples = count(program, Step), count(program, DeviceSample)
    program.until(lambda: count(program, DeviceSample) >= samples + 2, "a second")
    assert count(program, Step) == steps
    program.press("space")
    program.until(lambda: count(program, Resumed), "going on")
    program.until(lambda: count(program, Step) > steps, "a step")
    kinds = [event.kind for event in program.journal()]
    assert "step" not in kinds[kinds.index("paused") : kinds.index("resumed")]


@pytest.mark.slow
def test_leaving_while_it_trains_asks_first(terminal):
    program = terminal(environ=ENDLESS)
    start_training(program)
    program.press("q")
    program.shows("the run is still training")
    program.press("escape")
    program.until(lambda: "the run is still training" not in program.text, "staying")
    program.press("q")
    program.shows("the run is still training")
    program.press("x")
    assert program.exit_code() == 0
    assert "in the background" not in program.text
    last = program.journal()[-1]
    assert isinstance(last, RunFinished)
    assert last.status == "stopped"
    assert list((program.folder / "runs").glob("*/checkpoints/*"))
    assert program.is_restored()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_a_signal_saves_leaves_and_restores_the_terminal(training, number, code):
    program = training()
    os.kill(program.pid, number)
    assert program.exit_code() == code
    assert program.is_restored()
    last = program.journal()[-1]
    assert isinstance(last, RunFinished)
    assert (last.status, last.exit_code) == ("stopped", code)
    assert list((program.folder / "runs").glob("*/checkpoints/*"))


@pytest.mark.slow
def test_a_stop_while_it_compiles_is_seen_at_once_and_the_program_can_be_left(terminal, tmp_path):
    waits, compiler = tmp_path / "compiles", tmp_path / "bin" / "c++"
    waits.touch()
    compiler.parent.mkdir()
    compiler.touch(mode=0o755)
    settings = {
        "MPTUI_SPEED_COMPILE": "default",
        "MPTUI_TRAINING_EPOCHS": "1000000",
        "MPTUI_TRAINING_DETERMINISTIC": "false",
        "SLOW_COMPILE": str(waits),
        "PATH": f"{compiler.parent}:{os.environ['PATH']}",
    }
    program = terminal(environ=TINY | settings, call="tests.runs.slow_compile:run")
    start_training(program)
    program.shows("● compiling")
    program.press("xx")
    program.shows("stopped")
    program.press("q")
    assert program.exit_code() == 0
    assert waits.exists()  # it would still be compiling
    assert program.is_restored()
    last = program.journal()[-1]
    assert isinstance(last, RunFinished)
    assert last.status == "stopped"
    assert list((program.folder / "runs").glob("*/checkpoints/*"))


def test_a_killed_screen_leaves_a_terminal_that_works(terminal):
    program = terminal()
    program.shows("q leave")
    assert not program.is_restored()
    program.child.send_signal(signal.SIGKILL)
    assert program.exit_code() == 128 + signal.SIGKILL
    assert program.is_restored()
    assert "mptui was killed by signal 9" in program.text


def test_native_code_that_ends_the_process_leaves_a_terminal_that_works(terminal):
    program = terminal(call="tests.e2e.native_exit:main")
    program.shows("q leave")
    log = program.folder / "state" / "mptui" / "console.log"
    log.write_bytes(b"the last words of a library\x1b[?1049h\n")
    program.child.send_signal(ENDS)
    assert program.exit_code() == 1
    assert program.is_restored()
    assert "ended from within, with exit code 0" in program.text
    assert "the last words of a library" in program.text


def test_a_killed_parent_leaves_a_terminal_that_works_and_no_screen_that_draws_on(terminal):
    program = terminal(call="tests.e2e.native_exit:under_a_shell")
    program.shows("q leave")
    (child,) = program.child.children()
    program.child.kill()
    program.until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "its end")
    while program.read():
        pass
    assert program.is_restored()


def test_bytes_that_are_no_text_end_nothing(terminal):
    program = terminal(size=(140, 40))
    program.shows("q leave")
    for typed in (b"\x1b[200~caf\xe9\x1b[201~", b"\x1b[M\x20\xc8\xc8", b"\xff\xfe\x80", b"\x1b[<999999;;M"):
        os.write(program.fd, typed)
    program.shows("escape leave it")  # what is pasted goes into the field of the data
    program.press("escape")
    program.shows("q leave")
    program.press("question_mark")
    program.shows("everywhere")
    program.press("escape")
    program.until(lambda: "everywhere" not in program.text, "the screen without help")
    program.press("q")
    assert program.exit_code() == 0
    assert "Traceback" not in program.text


def test_a_folder_that_was_deleted_is_told(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    leave = f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r})"
    code = f"{leave}; from mptui.cli.main import main; main()"
    done = run_to_end(code, "runs", call="tests.program:execute")
    assert done.returncode == 2
    assert "the current folder can't be used" in done.stderr
    assert "Traceback" not in done.stderr


def is_stopped(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_STOPPED)


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(training):
    program = training()
    program.press("\x1a")
    program.shows("mptui and the run in its process are suspended; to continue: fg")
    assert program.is_restored()
    steps, before = count(program, Step), len(program.output)
    program.go_on()
    program.until(lambda: b"\x1b[?1049h" in program.output[before:], "the screen again")
    program.until(lambda: count(program, Step) >= steps + 3, "more steps")
    program.press("xx")
    program.until(lambda: count(program, RunFinished), "the end")
    program.press("q")
    assert program.exit_code() == 0
    assert program.is_restored()


def test_ctrl_z_in_a_headless_run_shows_the_cursor_until_it_goes_on(terminal):
    program = terminal(environ=ENDLESS, arguments=("run",))
    program.until(lambda: program.modes().get("25") == b"l" and count(program, Step) > 3, "the bars")
    program.press("\x1a")
    program.until(lambda: is_stopped(psutil.Process(program.pid)), "the stop")
    program.read()
    assert "training is suspended; to continue: fg" in program.text
    assert program.modes()["25"] == b"h"
    steps = count(program, Step)
    os.kill(program.pid, signal.SIGCONT)
    program.until(lambda: program.modes()["25"] == b"l", "the bars again")
    program.until(lambda: count(program, Step) >= steps + 3, "more steps")
    program.press("\x03")
    assert program.exit_code() == 130
    assert program.modes()["25"] == b"h"


def test_a_hang_up_alone_gives_the_terminal_back(terminal):
    program = terminal()
    program.shows("q leave")
    os.kill(program.pid, signal.SIGHUP)
    assert program.exit_code() == 0
    assert program.is_restored()


@pytest.mark.slow
def test_a_closed_terminal_ends_the_screen_and_not_the_run(terminal):
    program = terminal(environ=TINY | {"MPTUI_TRAINING_EPOCHS": "6"})
    start_training(program)
    child = program.child
    (log,) = (program.folder / "runs").glob("*/console.log")

    def opened():
        return [str(Path(f"/proc/{child.pid}/fd/{number}").readlink()) for number in (0, 1, 2)]

    steps = count(program, Step)
    program.close()
    wait_until(lambda: opened() == [os.devnull, str(log), str(log)])
    wait_until(lambda: count(program, RunFinished))
    wait_until(program.ended)
    assert count(program, Step) > steps + 20
    last = program.journal()[-1]
    assert isinstance(last, RunFinished)
    assert (last.status, last.step) == ("completed", 6 * SAMPLES // 2)


@pytest.mark.slow
def test_nothing_spins_after_the_terminal_was_closed(terminal):
    program = terminal(environ=ENDLESS)
    start_training(program)
    program.press("space")
    program.shows("■ paused")
    child = program.child
    program.close()
    wait_until(lambda: str(Path(f"/proc/{child.pid}/fd/0").readlink()) == os.devnull)
    wait_until(lambda: busy_share(child.pid) < 0.15)  # the end of the screen takes a while
    child.terminate()
    wait_until(lambda: count(program, RunFinished))
    last = program.journal()[-1]
    assert isinstance(last, RunFinished)
    assert (last.status, last.exit_code) == ("stopped", 143)


@pytest.mark.parametrize(
    ("environ", "size", "words"),
    [
        slow({"TERM": "tmux-256color"}, (80, 24), "workers"),
        slow({"TERM": "screen"}, (80, 24), "workers"),
        ({"TERM": "linux", "COLUMNS": "40", "LINES": "10"}, (100, 30), "workers"),
        slow({"NO_COLOR": "1"}, (80, 24), "workers"),
        slow({"LANG": "C"}, (80, 24), "workers"),
        slow({}, (60, 16), "workers"),
        ({}, (50, 10), "mptui needs 60x16 cells"),
    ],
)
def test_any_terminal_shows_the_devices_and_is_given_back(terminal, environ, size, words):
    """The size is that of the terminal, whatever the environment says."""
    program = terminal(environ=environ, size=size, forked="LANG" not in environ)
    program.shows(words)
    assert program.text.isascii() == (environ.get("LANG") == "C" or size == (50, 10))
    assert ("q leave" in program.text.splitlines()[size[1] - 1]) == (size != (50, 10))
    program.press("q")
    assert program.exit_code() == 0
    assert program.is_restored()


def test_a_dumb_terminal_is_told_of_the_headless_command(terminal):
    program = terminal(environ={"TERM": "dumb"})
    assert program.exit_code() == 2
    assert "mptui run" in program.text
    assert b"\x1b[?1049h" not in program.output


def test_without_a_terminal_the_headless_command_is_named(tmp_path):
    done = run_to_end(folder=tmp_path)
    assert done.returncode == 2
    assert "mptui run" in done.stderr
    assert done.stdout == ""
