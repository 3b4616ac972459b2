"""Every key that acts on a run, on one that trains: what it does is in the journal of the run."""

import pytest

from mptui.config.profiles import ORDER
from mptui.events import (
    CheckpointSaved,
    Numerics,
    Paused,
    PresetSwitched,
    Resumed,
    RunFinished,
    Step,
    Validated,
)
from tests.e2e.keys.walk import Walk
from tests.e2e.test_terminal import ENDLESS, count, start_training
from tests.forks import FORKING

pytestmark = pytest.mark.slow

ENVIRON = ENDLESS | {"MPTUI_SPEED_COMPILE": "off"}
LEAVING = "the run is still training"


def test_every_key_that_acts_on_a_run(terminal):
    walk = Walk(terminal(environ=ENVIRON, call=FORKING))
    start_training(walk.program)
    commands(walk)
    profiles(walk)
    settings(walk)
    numerics(walk)
    walk("live.detach", "d", "mptui attach runs/")
    assert walk.program.exit_code() == 0
    walk.program = terminal(environ=ENVIRON, arguments=("attach",))
    stops(walk)
    (run,) = (walk.program.folder / "runs").glob("*")
    walk.program = terminal(environ=ENVIRON, arguments=("resume", run.name))
    leaves(walk)
    walk.program = terminal(environ=ENVIRON, arguments=("resume", run.name))
    fork(walk)
    walk("leave.detach", "d", "mptui attach runs/")
    assert walk.program.exit_code() == 0
    walk.pressed_all("run")


NOT_NOW = {"log", "column", "live.ranks", "live.resume", "live.advice", "live.hide", "live.undo"}
NOT_NOW |= {"live.earlier", "live.later"}  # a chart has the focus, and these keys for itself


def commands(walk):
    """Press what is done between two steps; the run is paused afterwards."""
    program = walk.program
    walk.help("live", but=NOT_NOW)
    walk("live.pause", "space", "■ paused", lambda: count(program, Paused) == 1)
    for name, key, kind in (("checkpoint", "c", CheckpointSaved), ("validate", "v", Validated)):
        before = count(program, kind)
        walk(f"live.{name}", key, lambda kind=kind, before=before: count(program, kind) > before)
    saved, validated = count(program, CheckpointSaved), count(program, Validated)
    program.send("c", "v", "space", "space", "space", "space")
    program.until(lambda: count(program, Resumed) == 2, "going on twice")
    program.until(lambda: count(program, Paused) == 3, "the last pause")
    assert count(program, CheckpointSaved) > saved
    assert count(program, Validated) > validated
    program.shows("■ paused")


def switches(program):
    """Return the switches of the run so far."""
    return [event for event in program.journal() if isinstance(event, PresetSwitched)]


def profiles(walk):
    """Look at the profiles, switch to some, and undo one."""
    program = walk.program
    for digit, name in reversed([*enumerate(ORDER[:9], 1)]):
        if name != "debug":  # that of the run
            walk("live.profile", str(digit), f"switch to {name}?")
            walk("switch.stay", "escape" if digit % 2 else "backspace", walk.gone(f"switch to {name}?"))
    program.press("2")
    program.shows("switch to stable?")
    walk("switch.take", "enter", walk.gone("switch to stable?"), lambda: len(switches(program)) == 1)
    assert switches(program)[-1].profile == "stable"
    walk("live.profile", "4", "switch to debug?")
    program.send("1", "1")  # another one, and its digit again
    program.until(lambda: len(switches(program)) == 2, "the switch")
    assert switches(program)[-1].profile == "fast"
    program.send("4", "enter")  # the dialog is not there yet when the second key comes
    program.until(lambda: len(switches(program)) == 3, "the switch")
    assert switches(program)[-1].profile == "debug"
    for key in ("escape", "backspace"):
        walk("live.undo", "u", "undo the switch?")
        walk("undo.stay", key, walk.gone("undo the switch?"))
    program.press("u")
    program.shows("undo the switch?")
    walk("undo.undo", "u", lambda: len(switches(program)) == 4)
    assert switches(program)[-1].undone
    program.shows("back to fast")  # the screen has heard of it, too
    program.press("u")
    program.shows("undo the undo?")
    walk("undo.undo", "enter", lambda: len(switches(program)) == 5)
    assert switches(program)[-1].profile == "debug"


def settings(walk):
    """Change a setting of the run by all keys of the screen of its settings."""
    program = walk.program
    walk("live.settings", "e", "settings of ")
    walk.help("settings")
    walk("settings.changed", "c", "changed only")
    program.press("c")
    program.until(walk.gone("changed only"), "all settings")
    walk("settings.filter", "slash", "words of a setting")
    program.send(*"clip_grad", "enter")
    program.shows("/clip_grad")
    for key, value in (("e", "0.5"), ("enter", "0.25")):
        walk("settings.edit", key, "Enter: apply")
        before = len(switches(program))
        program.send("ctrl+u", *value, "enter")
        changed(program, before, value)
        program.until(walk.gone("Enter: apply"), "the list of settings")
    program.press("escape")
    program.until(walk.gone("/clip_grad"), "all settings")
    program.press("escape")
    program.until(walk.gone("settings of "), "the charts")
    before = len(switches(program))
    program.send("e", "slash", *"clip_grad", "enter", "e", "ctrl+u", *"0.125", "enter")
    changed(program, before, "0.125")
    program.send("backspace", "backspace")
    program.until(walk.gone("settings of "), "the charts")


def changed(program, before, value):
    program.until(lambda: len(switches(program)) > before, "the change")
    assert switches(program)[-1].changes["training.clip_grad_norm"][1] == value


def numerics(walk):
    """Probe all values while the run trains, and pause it again."""
    program = walk.program
    program.send("space", "n")
    program.shows("layers by risk")
    walk("numerics.full", "f", lambda: any(event.mode == "full" for event in probes(program)))
    program.send("n", "space")
    program.shows("■ paused")


def probes(program):
    return [event for event in program.journal() if isinstance(event, Numerics)]


def fork(walk):
    """Fork the run, which trains on beside its fork, and ask to leave it."""
    program = walk.program
    program.shows("● training")
    walk("live.fork", "f", "pauses until the fork has ended")
    for digit, name in reversed([*enumerate(ORDER[:9], 1)]):
        walk("fork.profile", str(digit), f"switched to {name}")
    walk("fork.same", "0", "as they are")
    walk("fork.parent", "p", "trains on beside it")
    walk("fork.next", "tab", walk.recoloured(40, next(n for n, line in lines(program) if "last" in line)))
    program.press("training.lr")
    program.shows("training.lr")
    walk("fork.cancel", "escape", walk.gone("trains on beside it"))
    program.send(
        "f", "p", "tab", *"training.lr=0.001"
    )  # the dialog is not there yet when the second key comes
    program.shows("training.lr=0.001")
    program.shows("trains on beside it")
    walk("fork.fork", "enter", "m curve", lambda: [*(program.folder / "runs").glob("*-fork")])
    program.press("escape")
    program.shows("● ")
    program.send("x", "enter")
    program.shows("■ stopped")
    program.press("q")  # leaves the fork, which has ended, and asks about its parent
    program.shows(LEAVING)


def lines(program):
    return enumerate(program.screen.display)


def stops(walk):
    """Stop the run from another terminal."""
    program = walk.program
    program.shows("■ paused")
    for stay in ("escape", "backspace"):
        walk("live.stop", "x", "stop the run?")
        walk("stop.stay", stay, walk.gone("stop the run?"))
    program.press("x")
    program.shows("stop the run?")
    walk("stop.stop", "enter", "■ stopped", lambda: count(program, RunFinished) == 1)
    program.press("q")
    assert program.exit_code() == 0


def leaves(walk):
    """Stop and resume, and leave while it trains."""
    program = walk.program
    program.shows("● training")
    program.press("x")
    program.shows("stop the run?")
    walk("stop.stop", "x", "■ stopped", lambda: count(program, RunFinished) == 2)
    steps = count(program, Step)
    walk("live.resume", "r", "● training", lambda: count(program, Step) > steps)
    for stay in ("escape", "backspace"):
        program.press("q")
        program.shows(LEAVING)
        walk("leave.stay", stay, walk.gone(LEAVING))
    program.press("q")
    program.shows(LEAVING)
    walk("leave.stop", "x", lambda: count(program, RunFinished) == 3, program.ended)
    assert program.exit_code() == 0
    assert program.is_restored()
