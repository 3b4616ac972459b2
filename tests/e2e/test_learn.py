"""`mptui learn` on a real terminal, and without one."""

import json
import math
import re

import pytest
import torch

from tests.program import run_to_end

pytestmark = pytest.mark.slow


def matches(program, pattern):
    program.until(lambda: re.search(pattern, program.text), pattern)


def test_all_exercises_on_a_terminal(terminal):
    program = terminal(arguments=("learn",))
    program.shows("the number 0.1")
    program.shows("rounded")
    program.press("e")
    program.shows("A number to see in all formats")
    program.press("\x15", "65520", "enter")  # ctrl+u clears the field
    program.shows("the number 65520")
    matches(program, r"fp16 +0 11111 +0000000000 +inf +overflows")
    matches(program, r"fp8 e4m3 .* 448 +saturates")
    assert all(len(line.rstrip()) <= 80 for line in program.screen.display)
    program.press("j")
    program.shows("times 2^-1")
    matches(program, rf"bf16 .* {float(torch.tensor(32760.0).bfloat16()):.6g} ")

    program.press("2")
    program.shows("loses least")
    program.shows("▸ 2^15")
    program.press("j")
    program.shows("▸ 2^12")

    program.press("3")
    program.shows("repaired at step")
    program.shows("NaN from then on")
    program.shows("╭─ loss ─")

    program.press("4")
    program.shows("fp16, autocast as on cuda")
    program.shows("computed in fp32")
    program.press("p")
    program.shows("bf16, autocast as on cuda")
    program.press("g")
    program.shows("bf16, autocast as on cpu")
    program.press("m")
    program.shows("The network: unet")
    program.press("\x15", "resnet18", "enter")
    program.shows("resnet18, bf16")
    program.press("m", "\x15", "resnet19", "enter")
    program.shows("no network called 'resnet19'")
    program.press("m", "\x15", "unet", "enter")
    program.shows("unet, bf16")

    program.press("5")
    program.shows("each validation is NaN")
    matches(program, r"BatchNorm layers with NaN +10 of 10 +0 of 10")
    program.press("6")
    matches(program, r"bf16 +\d.* ms +\d.* MiB")
    program.shows("╭─ loss minus fp32's ─")
    program.press("5")
    program.resize(60, 16)
    program.shows("BatchNorm layers with NaN")
    program.press("1")
    program.shows("saturates")
    matches(program, r"fp8 e5m2 0 11110 +00 +rounded")
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
