"""`mptui learn` on a real terminal, and without one."""

import json
import math
import re

import pytest
import torch

from tests.e2e.keys.walk import Walk
from tests.program import run_to_end

pytestmark = pytest.mark.slow


def matches(program, pattern):
    program.until(lambda: re.search(pattern, program.text), pattern)


def test_all_exercises_on_a_terminal(terminal):
    program = terminal(arguments=("learn",))
    walk = Walk(program)
    program.shows("the number 0.1")
    program.shows("rounded")
    walk.help("learn")
    walk("learn.number", "e", "A number to see in all formats")
    program.press("\x15", "65520", "enter")  # ctrl+u clears the field
    program.shows("the number 65520")
    matches(program, r"fp16 +0 11111 +0000000000 +inf +overflows")
    matches(program, r"fp8 e4m3 .* 448 +saturates")
    assert all(len(line.rstrip()) <= 80 for line in program.screen.display)
    walk("learn.less", "j", "times 2^-1")
    matches(program, rf"bf16 .* {float(torch.tensor(32760.0).bfloat16()):.6g} ")

    walk("learn.less", "down", "times 2^-2")
    walk("learn.more", "up", "times 2^-1")
    walk("learn.more", "k", walk.gone("times 2^-1"))
    program.press("j")
    program.shows("times 2^-1")

    walk("learn.exercise", "2", "loses least")
    program.shows("▸ 2^15")
    program.press("j")
    program.shows("▸ 2^12")

    walk("learn.exercise", "3", "repaired at step")
    program.shows("NaN from then on")
    program.shows("╭─ loss ─")

    walk("learn.exercise", "4", "fp16, autocast as on cuda")
    program.shows("computed in fp32")
    walk("learn.precision", "p", "bf16, autocast as on cuda")
    walk("learn.rules", "u", "bf16, autocast as on cpu")
    walk("learn.model", "m", "The network: unet")
    program.press("\x15", "resnet18", "enter")
    program.shows("resnet18, bf16")
    program.press("m", "\x15", "resnet19", "enter")
    program.shows("no network called 'resnet19'")
    program.press("m", "\x15", "unet", "enter")
    program.shows("unet, bf16")
    walk("learn.page_down", "pagedown", walk.changed(12))
    walk("learn.page_up", "pageup", walk.changed(12))
    for first, last in (("home", "end"), ("g", "G")):
        walk("learn.last", last, walk.changed(12))
        walk("learn.first", first, walk.changed(12))
    before = len(program.output)
    walk("learn.again", "r", lambda: "running …".encode() in program.output[before:])

    walk("learn.exercise", "5", "each validation is NaN")
    matches(program, r"BatchNorm layers with NaN +10 of 10 +0 of 10")
    walk("learn.exercise", "6", "╭─ loss minus fp32's ─")
    matches(program, r"bf16 +\d.* ms +\d.* MiB")
    program.press("5")
    program.resize(60, 16)
    program.shows("BatchNorm layers with NaN")
    walk("learn.exercise", "1", "saturates")
    matches(program, r"fp8 e5m2 0 11110 +00 +rounded")
    walk.pressed_all("learn")
    program.resize(50, 10)
    program.shows("mptui needs 60x16 cells")
    program.press("q")
    assert program.exit_code() == 0
    assert program.is_restored()
    assert not (program.folder / "runs").exists()


def test_one_document_without_a_terminal(tmp_path):
    environ = {"OMP_NUM_THREADS": "1", "MPTUI_CONFIG_DIR": str(tmp_path / "config")}
    ended = run_to_end("learn", "--json", "--device", "cpu", folder=tmp_path, environ=environ)
    assert ended.returncode == 0, ended.stderr
    exercises = json.loads(ended.stdout)["exercises"]
    assert list(exercises) == ["formats", "scaling", "overflow", "autocast", "batchnorm", "training"]
    assert exercises["formats"]["formats"]["fp16"]["max"] == torch.finfo(torch.float16).max
    assert exercises["overflow"]["steps"][-1]["plain_loss"] == "nan"
    assert math.isfinite(exercises["batchnorm"]["mptui"]["evaluation_loss"])
    assert not list(tmp_path.iterdir())

    text = run_to_end("learn", "formats", "--number", "1e-8", folder=tmp_path, environ=environ)
    assert text.returncode == 0, text.stderr
    assert re.search(r"fp16 .* vanishes", text.stdout)
    wrong = run_to_end("learn", "format", folder=tmp_path, environ=environ)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "nearest: formats" in wrong.stderr
