"""A folder with code of a person's own: a network, a loss with a metric, and a data set."""

from itertools import count

NUMBERS = count()

CODE = '''
import os, signal
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

HERE = Path(__file__).parent
(HERE / "imported").touch()


class Net(nn.Sequential):
    def __init__(self, num_classes):
        body = nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2)
        super().__init__(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))


class Loss:
    """Has a NaN of one sample, and kills its process at a step if there is a file `kill` with its number."""

    primary = "near"
    steps = 0

    def loss(self, outputs, targets):
        Loss.steps += torch.is_grad_enabled()
        kill = HERE / "kill"
        if kill.exists() and Loss.steps == int(kill.read_text()):
            kill.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        losses = cross_entropy(outputs, targets, reduction="none")
        return losses * torch.where(targets == 2, torch.nan, 1.0)

    def metrics(self, outputs, targets):
        return {"near": (outputs.argmax(dim=1) - targets).abs() <= 1}


class Data:
    classes = ["dark", "bright", "unknown"]

    def __init__(self, train):
        self.train = train

    def __len__(self):
        return 24 if self.train else 8

    def __getitem__(self, index):
        label = 2 if self.train and index == 5 else index % 2
        return np.random.randint(0, 100, (40, 36, 3)).astype(np.uint8) + np.uint8(50 * label), label


class BrokenNet(Net):
    def forward(self, images):
        return super().forward(images.flatten(1))  # the mistake


class BrokenData(Data):
    def __getitem__(self, index):
        return {}["image"], 0  # the mistake


def wide(num_classes):
    return Net(num_classes + 1)
'''


def make_project(folder, monkeypatch):
    """Write it, go there and return the name of its module; no earlier test has imported that."""
    name = f"own_{next(NUMBERS)}"
    package = folder / name
    package.mkdir()
    (package / "code.py").write_text(CODE)
    monkeypatch.chdir(folder)
    return f"{name}.code"
