"""`data.augment = ["package.module:name"]`: trusted, resumed, switched to; and objects of a program."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.transforms import v2
from torchvision.tv_tensors import Image

from mptui import resume, train
from mptui.cli.main import _exit_code
from mptui.engine.checkpoint.files import read_newest
from mptui.engine.mailbox import Command, Mailbox
from mptui.errors import ConfigError, OwnCodeError
from mptui.runs.planning.build import prepare
from mptui.runs.planning.change import build_switch
from mptui.runs.store.directory import CONFIG
from tests.made.runs import QUIET, plan_of
from tests.toys.own_transforms import own_transforms
from tests.toys.training import SMALL, bits, losses

SETTINGS: dict[str, Any] = {**QUIET, **SMALL, "model.name": "small_cnn", "training.epochs": 2}


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return own_transforms(tmp_path)


def run(*words, **settings):
    sets = [word for key, value in {**SETTINGS, **settings}.items() for word in ("--set", f"{key}={value}")]
    return _exit_code(["run", *sets, "--quiet", *words], debug=False)


def last(run):
    return bits(read_newest(Path("runs") / run / "checkpoints")[0].tensors)


def test_a_run_asks_for_trust_and_is_resumed_from_anywhere(module, tmp_path, monkeypatch, capsys):
    own = {"data.augment": f'["{module}:moved", "flip"]'}
    assert run(**own) == 2
    told = capsys.readouterr().err
    assert f"data.augment = {module}:moved: your own code runs only with --trust-code" in told
    assert f"read the code in {tmp_path}" in told
    assert run("--name", "whole", "--trust-code", **own) == 0
    assert run("--name", "parts", "--trust-code", **own, **{"training.max_steps": 3}) == 0
    assert f'folder = "{tmp_path}"' in (tmp_path / "runs" / "parts" / CONFIG).read_text()
    again = ["resume", str(tmp_path / "runs" / "parts"), "--quiet", "--set", "training.max_steps=none"]
    assert _exit_code(again, debug=False) == 2
    monkeypatch.chdir("/")
    assert _exit_code([*again, "--trust-code"], debug=False) == 0
    monkeypatch.chdir(tmp_path)
    assert last("parts") == last("whole")
    assert losses(Path("runs/parts")) == losses(Path("runs/whole"))
    assert _exit_code(["evaluate", "runs/whole", "--device", "cpu", "--workers", "0"], debug=False) == 0


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("missing", 2, "has no 'missing'"),
        ("size", 2, "size can't be called"),
        ("broken", 1, "# the mistake"),
        ("scaled", 1, "it returned float32 [3, 32, 32] for an image of uint8 [3, 32, 32]"),
    ],
)
def test_what_does_not_fit_is_told(name, code, told, module, capsys):
    assert run("--trust-code", **{"data.augment": f'["{module}:{name}"]'}) == code
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("trust", [True, False])
def test_a_live_change_needs_the_trust_of_its_run_and_keeps_the_folder(trust, module, tmp_path):
    made = prepare(
        plan_of(SETTINGS, trust_code=trust), emit=lambda event: None, mailbox=Mailbox(), force_compile=True
    )
    job, command = made.job, Command("set", f'data.augment=["{module}:moved"]')
    with job.train_loader, job.val_loader:
        refusal = pytest.raises(ConfigError, match="runs only with --trust-code")
        with nullcontext() if trust else refusal:
            fresh, switch = build_switch(
                made.loaders.plan, made, job, command, folder=Path("nowhere"), emit=lambda event: None
            )
        if not trust:
            return
        switch.job.train_loader.close()
    assert fresh.config.code.folder == str(tmp_path)


def test_python_gives_objects(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    python = {key: value for key, value in SETTINGS.items() if key not in {"data.name", "model.name"}}
    shapes: dict[str, Any] = {**python, "data.augment": [v2.RandomInvert(0.5), "flip", v2.RandomInvert(0.5)]}
    seen: list[tuple[type, torch.dtype]] = []

    def look(image):
        seen.append((type(image), image.dtype))
        return image

    whole = train("small_cnn", "shapes", name="whole", **shapes)
    train("small_cnn", "shapes", name="parts", **{**shapes, "training.epochs": 1})
    resume("parts", epochs=2, **{"data.augment": shapes["data.augment"]})
    assert last("parts") == last("whole")
    assert whole.status == "completed"
    train("small_cnn", "shapes", **{**python, "data.augment": [look]})
    assert seen[0] == (Image, torch.uint8)
    with pytest.raises(OwnCodeError, match="ZeroDivisionError") as raised:
        train("small_cnn", "shapes", **{**python, "data.augment": [lambda image: 1 // 0]})
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
