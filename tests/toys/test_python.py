"""`from mptui import train`: what docs/python.md promises."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import mptui
from mptui import resume, train
from mptui.cli.main import _exit_code
from mptui.engine.checkpoint.files import checkpoints
from mptui.errors import ConfigError, OwnCodeError
from mptui.registry import own_code
from mptui.runs.store.directory import read_summary
from tests.program import run_to_end

DOCUMENT = Path(mptui.__file__).parents[1] / "docs" / "python.md"
SMALL: dict[str, Any] = {
    "data.image_size": 32,
    "data.samples": 16,
    "data.workers": 0,
    "training.batch_size": 8,
    "hardware.device": "cpu",
    "precision.mode": "fp32",
    "speed.channels_last": False,
    "speed.fused": False,
}


class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Conv2d(3, 4, 3, stride=4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.append(nn.Linear(4, num_classes))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("given", [{"compile": True}, {"speed.compile": "default"}], ids=["flag", "key"])
def test_compile_compiles_a_short_run_too_and_its_key_where_it_is_repaid(tmp_path, monkeypatch, given):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "g++").touch(mode=0o755)  # the network's own compile() does not ask it
    net, compiled = Net(8), []
    net.compile = lambda **_: compiled.append(1)  # type: ignore[method-assign]
    train(net, "shapes", **SMALL, **given, epochs=1)
    assert compiled == [1] * ("compile" in given)


@pytest.mark.slow
def test_the_lines_of_the_document_run_and_the_command_line_resumes_them(tmp_path, capsys):
    lines = DOCUMENT.read_text().split("\n\n    ", 1)[1].partition("\n\n`train`")[0]
    (tmp_path / "script.py").write_text("\n".join(line.removeprefix("    ") for line in lines.splitlines()))
    first = f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r})"  # as `python script.py` does
    code = f"{first}; runpy.run_path('script.py', run_name='__main__')"
    settings = {"MPTUI_DATA_IMAGE_SIZE": "32", "MPTUI_DATA_WORKERS": "1"}
    ended = run_to_end(code, call="tests.program:execute", environ=settings, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    directory, status, best, val_loss = ended.stdout.split()
    assert status == "completed"
    assert 0 <= float(best) <= 1 < float(val_loss)
    assert read_summary(tmp_path / directory)["epochs"] == 3
    assert _exit_code(["resume", directory, "--trust-code", "--epochs", "4", "-q"], debug=False) == 0
    assert read_summary(tmp_path / directory)["model"] == "script:make"


def test_an_object_is_trained_in_place_and_resumed_with_one_like_it(capsys):
    torch.manual_seed(1)
    net = Net(8)
    weight = next(net.parameters())
    before = weight.detach().clone()
    run = train(net, task=cross_entropy, epochs=1, name="object", **SMALL)
    assert (run.status, run.best["metric"], run.summary["model"]) == ("completed", "acc1", "python:Net")
    assert not torch.equal(weight, before)
    assert _exit_code(["resume", "object", "--trust-code", "-q"], debug=False) == 0  # it is given here

    own_code._given.clear()
    assert _exit_code(["resume", "object", "--trust-code", "-q"], debug=False) == 2
    assert "python:Net was an object of a Python program" in capsys.readouterr().err
    again = resume("object", model=Net(8), task=cross_entropy, epochs=2)
    assert again.summary["epochs"] == 2


@pytest.fixture
def usual_sigint():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests of the program leave its own
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_saves_first_and_its_handler_is_restored(usual_sigint):
    asked: list[bool] = []

    def interrupted(outputs, targets):
        if not asked:  # a second one would end it without a save
            asked.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return cross_entropy(outputs, targets)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with pytest.raises(KeyboardInterrupt):
        train(Net, task=interrupted, name="stopped", **SMALL)
    assert {number: signal.getsignal(number) for number in before} == before
    assert read_summary(Path("runs/stopped"))["status"] == "stopped"
    assert checkpoints(Path("runs/stopped/checkpoints"))


def test_faults_are_errors_of_python(capsys):
    def broken(outputs, targets):
        raise ValueError("no such loss")

    with pytest.raises(OwnCodeError, match="ValueError: no such loss") as raised:
        train(Net, task=broken, **SMALL)
    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(ConfigError, match="epoch: no such setting"):
        train(Net, epoch=3)
    with pytest.raises(ConfigError, match=r"data\.download needs data\.name"):
        train(Net, download=True)
    with pytest.raises(ConfigError, match="runs only with --trust-code"):
        train("some.module:make")
    assert not list(Path("runs").glob("*/checkpoints/*"))


def test_importing_the_package_imports_nothing_heavy():
    code = "import mptui, sys; sys.exit(bool({'torch', 'pydantic', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
