"""A fault of a person's code that shows in torch or in mptui is told as theirs, and their steps are saved."""

import sys
from pathlib import Path
from typing import Any

import pytest

from mptui.cli.main import _exit_code
from mptui.engine.checkpoint.files import read_newest
from mptui.runs.store.directory import CHECKPOINTS

CODE = """
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, relu


class Net(nn.Module):
    steps = 0

    def __init__(self, num_classes):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, 2), nn.Linear(4, num_classes)

    def forward(self, images):
        self.steps += self.training
        return self.head(relu(self.conv(images)).mean((2, 3)))


class Tuple(Net):
    def forward(self, images):
        outputs = super().forward(images)
        return (outputs, outputs) if self.training and self.steps > 3 else outputs


class Detached(Net):
    def forward(self, images):
        outputs = super().forward(images)
        return outputs.detach() if self.steps > 3 else outputs


class InPlace(Net):
    def forward(self, images):
        outputs = super().forward(images)
        if self.steps > 3:
            hidden = self.conv(images).exp()
            hidden += 1
            return self.head(hidden.mean((2, 3)))
        return outputs


class Leaving(Net):
    def forward(self, images):
        outputs = super().forward(images)
        if self.steps > 3:
            raise SystemExit(3)
        return outputs


class Wordless(Net):
    class Error(Exception):
        def __str__(self):
            return self.words

    def forward(self, images):
        outputs = super().forward(images)
        if self.steps > 3:
            raise Wordless.Error()
        return outputs


class Frozen(Net):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.requires_grad_(False)


class Constant:
    steps = 0

    def loss(self, outputs, targets):
        Constant.steps += torch.is_grad_enabled()
        return cross_entropy(outputs, targets) if Constant.steps < 4 else torch.tensor(0.5)


class Data:
    classes = ["dark", "bright"]

    def __init__(self, train):
        self.train = train

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return np.full((16, 16, 3), 50 + 100 * (index % 2), np.uint8), index % 2


class Segments(nn.Conv2d):
    def __init__(self, num_classes):
        super().__init__(3, num_classes, 1)


class Masks(Data):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        mask = np.full((16, 16), label, np.int64)
        mask[:2] = -1
        return image, mask
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    (tmp_path / "faulty.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "faulty", raising=False)

    def go(*words):
        settings: dict[str, Any] = {"data.image_size": 16, "data.resize": 16, "training.batch_size": 8}
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        base = ["run", "--name", "r", "--device", "cpu", "--workers", "0", "--trust-code", "-q", *sets]
        code = _exit_code([*base, *words], debug=False)
        return code, capsys.readouterr().err, tmp_path / "runs" / "r"

    return go


@pytest.mark.parametrize(
    ("network", "told", "line"),
    [
        ("Tuple", "returned outputs tuple in training", "in forward: def forward(self, images):"),
        ("Detached", "outputs without a gradient in training", "in forward: def forward(self, images):"),
        ("InPlace", "faulty:InPlace: RuntimeError: one of the variables needed", "faulty.py:33 in forward"),
        ("Leaving", "SystemExit: 3", "in forward: raise SystemExit(3)"),
        ("Wordless", "Error, whose text fails with AttributeError", "in forward: raise Wordless.Error()"),
    ],
)
def test_a_network_that_fails_in_training_is_named_and_its_steps_are_saved(run, network, told, line):
    code, words, folder = run("--model", f"faulty:{network}", "--data", "faulty:Data")
    assert code == 1
    assert told in words
    assert "faulty.py:" in words
    assert line in words
    assert "Traceback" not in words
    assert read_newest(folder / CHECKPOINTS)[0].step == 3


def test_a_loss_without_a_gradient_is_named_with_its_line(run):
    code, words, folder = run("--model", "faulty:Net", "--data", "faulty:Data", "--task", "faulty:Constant")
    assert code == 1
    assert "faulty:Constant: the loss has no gradient" in words
    assert "in loss: def loss(self, outputs, targets):" in words
    assert read_newest(folder / CHECKPOINTS)[0].step == 3


def test_a_network_whose_weights_are_all_frozen_is_refused_before_the_first_step(run):
    code, words, folder = run("--model", "faulty:Frozen", "--data", "faulty:Data")
    assert code == 1
    assert not folder.exists()  # its name is free
    assert "no weight of the network is trained" in words
    assert "requires_grad" in words


def test_a_loss_of_torch_that_does_not_know_ignored_pixels_is_named(run):
    task = "torch.nn:CrossEntropyLoss"
    code, words, folder = run("--model", "faulty:Segments", "--data", "faulty:Masks", "--task", task)
    assert code == 1
    assert f"{task}: IndexError: Target -1 is out of bounds" in words
    assert "ignore_index=-1" in words
    assert not (folder / CHECKPOINTS).exists()


def test_a_bug_of_a_hook_of_ours_saves_the_steps_too(run, monkeypatch):
    from mptui.engine.trainer import Trainer

    whole = Trainer._train_step

    def broken(trainer, window):
        if trainer.state.step == 3:
            raise AssertionError("a bug")
        whole(trainer, window)

    monkeypatch.setattr(Trainer, "_train_step", broken)
    with pytest.raises(AssertionError, match="a bug"):
        run("--model", "faulty:Net", "--data", "faulty:Data")
    assert read_newest(Path("runs/r") / CHECKPOINTS)[0].step == 3
