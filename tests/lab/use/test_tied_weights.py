"""A network whose layers share weights: what is used afterwards is what was validated."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from mptui import train
from mptui.cli.main import _exit_code
from tests.lab.use.noise import Noise


class Tied(nn.Module):
    """Two convolutions share a weight; a block with BatchNorm is there under two names."""

    def __init__(self, num_classes):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.b.weight = self.a.weight
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.again = self.block
        self.head = nn.Linear(4, num_classes)

    def forward(self, x):
        for layer in (self.stem, self.a, self.b, self.block, self.again):
            x = torch.relu(layer(x))
        return self.head(x.mean((2, 3)))


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings: dict[str, Any] = {
        "data.image_size": 16,
        "data.workers": 0,
        "training.batch_size": 8,
        "training.optimizer": "adamw",
        "training.lr": 0.05,
        "training.lr_scaling": "off",
        "training.warmup_epochs": 0,
        "training.ema_decay": 0.98,
        "training.primary_metric": "val_loss",
        "hardware.device": "cpu",
        "precision.mode": "fp32",
    }
    return train(Tied, Noise, name="tied", epochs=3, **settings)


def test_evaluate_uses_the_weights_that_were_validated(run, capsys):
    assert _exit_code(["evaluate", "tied", "--trust-code", "--json"], debug=False) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["loss"] == pytest.approx(run.best["value"], abs=1e-5)


def test_exported_weights_are_those_that_were_validated(run, tmp_path, capsys):
    arguments = ["export", "tied", "--trust-code", "--format", "safetensors", "--out", str(tmp_path / "out")]
    assert _exit_code(arguments, debug=False) == 0, capsys.readouterr().err
    model = Tied(2)
    model.load_state_dict(load_file(tmp_path / "out" / "tied.safetensors"))  # as the card says
    images, labels = zip(*(Noise(train=False)[index] for index in range(16)), strict=True)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    inputs = (torch.tensor(np.stack(images)).permute(0, 3, 1, 2) / 255 - mean) / std
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model.eval()(inputs), torch.tensor(labels))
    assert math.isclose(float(loss), run.best["value"], abs_tol=2e-3)
