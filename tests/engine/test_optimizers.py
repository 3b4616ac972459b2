"""Each optimizer takes the steps of its authors' implementation, and none where the step is refused."""

from typing import Any

import pytest
import schedulefree
import torch

from mptui.config.schema import RunConfig, TrainingConfig
from mptui.engine.optim.averages import ScheduleFree, ScheduleFreeAverage
from mptui.engine.optim.fused import FusedOptimizer
from mptui.engine.optim.optimizers import build_optimizer
from mptui.registry.optimizers import OPTIMIZERS
from mptui.testing import OptimizerContract

STEPS = 16
LR, DECAY = 0.01, 0.1
GOOD, REFUSED = torch.zeros(()), torch.ones(())


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al. 2023, line by line."""

    def __init__(self, groups, lr, betas):
        super().__init__(groups, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                c = beta1 * m + (1 - beta1) * p.grad
                p -= lr * (c.sign() + group["weight_decay"] * p)
                m.copy_(beta2 * m + (1 - beta2) * p.grad)


class Muon:
    """torch's own for the hidden matrices of `network`, flattened, and its AdamW for the rest."""

    def __init__(self, groups):
        *hidden, head = groups[0]["params"]
        self._flat = [(p, torch.nn.Parameter(p.detach().flatten(1))) for p in hidden]
        flat = [flat for _, flat in self._flat]
        self._muon = torch.optim.Muon(flat, LR, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
        self._adamw = torch.optim.AdamW([{"params": [head], "weight_decay": DECAY}, groups[1]], LR)

    @property
    def param_groups(self):
        return [*self._muon.param_groups, *self._adamw.param_groups]

    @torch.no_grad()
    def step(self):
        for p, flat in self._flat:
            flat.grad = p.grad.flatten(1)
        self._muon.step()
        self._adamw.step()
        for p, flat in self._flat:
            p.copy_(flat.view_as(p))


CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "sgd": ({"momentum": 0.8}, lambda groups: torch.optim.SGD(groups, LR, momentum=0.8)),
    "nesterov": (
        {"optimizer": "sgd", "nesterov": True},
        lambda groups: torch.optim.SGD(groups, LR, momentum=0.9, nesterov=True),
    ),
    "adamw": (
        {"betas": [0.8, 0.95], "eps": 1e-4},
        lambda groups: torch.optim.AdamW(groups, LR, betas=(0.8, 0.95), eps=1e-4),
    ),
    "adam": (
        {"betas": [0.8, 0.95], "eps": 1e-4},
        lambda groups: torch.optim.Adam(groups, LR, betas=(0.8, 0.95), eps=1e-4),
    ),
    "sgd_schedule_free": ({}, lambda groups: schedulefree.SGDScheduleFree(groups, LR)),
    "adamw_schedule_free": (
        {"betas": [0.95, 0.99]},
        lambda groups: schedulefree.AdamWScheduleFree(groups, LR, betas=(0.95, 0.99)),
    ),
    "muon": ({}, Muon),
    "lion": ({}, lambda groups: Lion(groups, LR, (0.9, 0.99))),
    "lion, other betas": (
        {"optimizer": "lion", "betas": [0.8, 0.9]},
        lambda groups: Lion(groups, LR, (0.8, 0.9)),
    ),
}


def training_of(case):
    settings = {"optimizer": case, "lr": LR, "weight_decay": DECAY, **CASES[case][0]}
    return TrainingConfig.model_validate(settings)


def network(layout):
    torch.manual_seed(0)
    made = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, bias=False),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 12, 3, stride=2),
        torch.nn.Flatten(),
        torch.nn.Linear(48, 16),
        torch.nn.Linear(16, 20),
        torch.nn.Linear(20, 5),
    )
    return made.to(memory_format=layout)


def backward(model, number):
    images = torch.randn(4, 3, 7, 7, generator=torch.Generator().manual_seed(number))
    model.zero_grad()
    model(images).square().mean().backward()


def built(case):
    """Return a network with our optimizer, and its rate."""
    # torch's iteration in bfloat16 depends on the order of columns
    layout = torch.contiguous_format if case == "muon" else torch.channels_last
    model, lr = network(layout), torch.tensor(LR)
    optimizer = build_optimizer(model, training_of(case), lr, fused=True)
    assert isinstance(optimizer, FusedOptimizer)
    return model, optimizer, lr


@pytest.mark.parametrize("case", CASES)
def test_it_takes_the_steps_of_its_authors(case):
    ours, optimizer, lr = built(case)
    theirs = network(torch.contiguous_format)
    matrices, others = ([p for p in theirs.parameters() if (p.ndim > 1) is wide] for wide in (True, False))
    reference = CASES[case][1](
        [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    )
    if case.endswith("schedule_free"):
        reference.train()
    for number in range(STEPS):
        rate = LR * min(1.0, (number + 1) / 5)
        lr.fill_(rate)
        for group in reference.param_groups:
            group["lr"] = rate
        backward(theirs, number)
        if case == "muon":  # rounding in bfloat16 makes much of small differences: the same gradients
            for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
                p.grad = q.grad.clone()
        else:
            backward(ours, number)
        optimizer.update(REFUSED if number % 7 == 3 else GOOD)
        if number % 7 != 3:
            reference.step()
    assert_close(ours, theirs)
    if isinstance(optimizer, ScheduleFree):
        own = [p.detach().clone() for p in ours.parameters()]
        average = ScheduleFreeAverage(ours, optimizer)
        reference.eval()
        with average.in_place():
            assert_close(ours, theirs)
            assert not torch.equal(ours[0].weight, own[0])
        assert all(map(torch.equal, ours.parameters(), own))


def assert_close(ours, theirs):
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)


ENTRIES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in OPTIMIZERS},
    "nesterov": ("sgd", {"nesterov": True}),
}


class TestEntries(OptimizerContract):
    @pytest.fixture(params=ENTRIES)
    def entry(self, request):
        return ENTRIES[request.param]

    @pytest.fixture
    def spec(self, entry):
        return OPTIMIZERS[entry[0]]

    @pytest.fixture
    def settings(self, entry):
        return entry[1]


def test_muon_moves_a_network_in_channels_last_as_it_does_another():
    training = training_of("muon")
    models = [network(layout) for layout in (torch.contiguous_format, torch.channels_last)]
    before = [p.detach().clone() for p in models[0].parameters()]
    for model in models:
        backward(model, 0)
        optimizer = build_optimizer(model, training, torch.tensor(LR), fused=False)
        assert isinstance(optimizer, FusedOptimizer)
        optimizer.update(GOOD)
    for one, other, old in zip(*(list(model.parameters()) for model in models), before, strict=True):
        difference, change = (one - other).detach(), (one - old).detach()
        assert difference.abs().max() < 0.05 * change.abs().max()


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"optimizer": "sgd_schedule_free", "ema_decay": 0.9}, "which averages the weights itself"),
        ({"optimizer": "sgd_schedule_free", "momentum": 0.0}, "needs training.momentum above 0"),
        ({"optimizer": "adamw_schedule_free", "betas": [0.0, 0.9]}, "needs the first of training.betas"),
        ({"nesterov": True, "momentum": 0.0}, "training.nesterov needs training.momentum above 0"),
    ],
)
def test_what_it_does_not_take_is_refused(settings, fault):
    with pytest.raises(ValueError, match=fault):
        RunConfig.model_validate({"training": settings})


def test_bytes_of_state_count_matrices_as_the_optimizer_keeps_them():
    one, two = 100 * 4, 100 * 8
    assert {name: spec.state_of(100, 60) for name, spec in OPTIMIZERS.items()} == {
        "sgd": one,
        "sgd_schedule_free": one,
        "lion": one,
        "adam": two,
        "adamw": two,
        "adamw_schedule_free": two,
        "muon": 40 * 8 + 60 * 4,
    }
