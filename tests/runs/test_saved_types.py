"""The state of a person's network is saved whatever its types are, or refused before the first step."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from mptui import resume, train
from mptui.engine.checkpoint.files import read_newest
from mptui.errors import OwnCodeError
from mptui.lab.use.trained import open_trained
from tests.made.runs import QUIET
from tests.toys.training import bits

slow = partial(pytest.param, marks=pytest.mark.slow)

SMALL: dict[str, Any] = {
    "data.image_size": 16,
    "data.samples": 16,
    "data.workers": 0,
    "training.batch_size": 8,
    "training.schedule": "constant",
    "hardware.device": "cpu",
    **QUIET,
}


class Net(nn.Module):
    """A network with a buffer that its class makes."""

    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(16, num_classes)
        self.register_buffer("table", self.made())

    def made(self):
        return torch.ones(16)

    def forward(self, images):
        return self.head(self.body(images))


class Complex(Net):
    def made(self):
        return torch.polar(torch.ones(16), torch.arange(16.0)).conj()

    def forward(self, images):
        return self.head((self.body(images) * self.table).real)


class Small(Net):
    def made(self):
        return torch.arange(10).to(torch.uint16)


class Eighth(Net):
    def made(self):
        return torch.ones(4).to(torch.float8_e4m3fn)


class Expanded(Net):
    def made(self):
        return torch.ones(1).expand(16)


class Noted(Net):
    """Counts its passes in an extra state."""

    passes = 0

    def forward(self, images):
        self.passes += self.training
        return super().forward(images)

    def get_extra_state(self):
        return {"passes": self.passes, "words": ["a", None, 0.5]}

    def set_extra_state(self, state):
        self.passes = state["passes"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("network", [Complex, slow(Small), slow(Eighth), slow(Expanded), Noted])
def test_a_state_of_any_type_is_saved_resumed_and_used(tmp_path, network):
    settings = {**SMALL, "training.ema_decay": 0.9}
    whole = train(network, name="whole", epochs=2, **settings).directory
    parts = train(network, name="parts", epochs=1, **settings).directory
    resume(parts, epochs=2)
    saved, again = (read_newest(run / "checkpoints")[0] for run in (whole, parts))
    assert bits(again.tensors) == bits(saved.tensors)
    model = open_trained(parts, "last", note=print, trust_code=True).model
    if isinstance(model, Noted):
        assert again.state["model"] == saved.state["model"] == {"_extra_state": model.get_extra_state()}
        assert model.passes > 2
    assert model.get_buffer("table").dtype == network(2).table.dtype


class Double(Net):
    def made(self):
        return torch.ones(3, dtype=torch.complex128)


class Sparse(Net):
    def made(self):
        return torch.eye(3).to_sparse()


class Pair(Net):
    def get_extra_state(self):
        return (1, 2)

    def set_extra_state(self, state):
        pass


class Bytes(Pair):
    def get_extra_state(self):
        return {"made by": b"me"}


class Embedded(Net):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.words = nn.Embedding(5, 16, sparse=True)

    def forward(self, images):
        return self.head(self.body(images) + self.words(torch.tensor(1)))


class Spectral(Net):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.filter = nn.Parameter(torch.ones(16, dtype=torch.complex64))

    def forward(self, images):
        return self.head((self.body(images) * self.filter).real)


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (Double, "table of the network can't be saved in checkpoints: safetensors have no type complex128"),
        (Sparse, "table of the network can't be saved in checkpoints: its layout is sparse_coo"),
        (Pair, "_extra_state of the network can't be saved in checkpoints: its extra state changes in JSON"),
        (Bytes, "_extra_state of the network can't be saved in checkpoints: its extra state is no JSON"),
        (Embedded, "words of the network has sparse gradients"),
        (Spectral, "filter of the network is a weight of type complex64"),
    ],
)
def test_a_state_that_can_not_be_saved_is_refused_before_the_first_step(tmp_path, network, why):
    with pytest.raises(OwnCodeError) as refused:
        train(network, name="run", epochs=1, **SMALL)
    assert why in refused.value.message
    assert refused.value.hint
    assert not (tmp_path / "runs" / "run").exists()  # its name is free
