"""`check-amp` on networks whose sick layer is known: the verdict, and the layer that is put into fp32."""

from collections import OrderedDict
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mptui.engine.mailbox import Mailbox
from mptui.lab.measure.amp import PrecisionChecker
from tests.engine.numerics.networks import Gain
from tests.lab.trials import bench

slow = partial(pytest.param, marks=pytest.mark.slow)

SAFE, CANT_TELL = "safe", "can't tell"


class By(nn.Module):
    """A layer without weights."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Attention(nn.Module):
    """Attention by hand: the products of its own operations are `big`^2 times as large."""

    def __init__(self, big):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.big = big

    def forward(self, x):
        x = x.flatten(2).transpose(1, 2)
        q, k = self.q(x) * self.big, self.k(x) * self.big
        a = (q @ k.transpose(1, 2)) / (self.big**2 * 3)
        return self.o(a.softmax(-1) @ self.v(x)).transpose(1, 2).unflatten(2, (8, 8))


class Pair(nn.Conv2d):
    """Gives two values, as an LSTM does; the first is large."""

    def forward(self, x):
        y = super().forward(x)
        return y * 2e5, y


class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.pair, self.norm = Pair(8, 8, 1), nn.GroupNorm(1, 8)

    def forward(self, x):
        return self.norm(self.pair(x)[0])


class In16(torch.autograd.Function):
    """Multiplies the gradient, where it computes in 16 bits."""

    @staticmethod
    def forward(ctx, x, by):
        ctx.by = 1.0 if x.dtype == torch.float32 else by
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.by, None


def many_ones(x):
    y = x * 0 + 1000
    for _ in range(50):
        y = y + 1
    return x + (y - 1000) * 0.1


def saturating(x):
    one, total = torch.ones_like(x[:1, :1, :1, :1]), torch.zeros_like(x[:1, :1, :1, :1])
    for _ in range(2000):
        total = total + one / 2000
    return x * total


def softmax(x):
    e = x.exp()
    return e / e.sum(1, keepdim=True)


def layer_norm(x):
    x = x - x.mean((1, 2, 3), keepdim=True)
    return x / ((x**2).mean((1, 2, 3), keepdim=True) + 1e-5).sqrt()


def positions(x):
    return x * torch.arange(4000, 4008, dtype=x.dtype, device=x.device).mul(0.7).sin()


def conv(gain=1.0, channel=None):
    made = nn.Conv2d(8, 8, 1)
    made.weight.data.mul_(gain)
    if channel is not None:
        made.get_parameter("bias").data[channel] = 1e5
    return made


def network(**layers):
    """The layers between a healthy beginning and a healthy end."""
    first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    last = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(OrderedDict(first=first, **layers, last=last, head=nn.Linear(8, 3)))


NETWORKS = {
    "healthy": (lambda: network(mid=conv()), SAFE, SAFE),
    "dropout": (lambda: network(mid=conv(), drop=nn.Dropout(0.5)), SAFE, SAFE),
    "attention": (lambda: network(attn=Attention(1.0)), SAFE, SAFE),
    "small gradients": (lambda: network(mid=conv(), small=By(lambda x: x.float() * 1e-3)), SAFE, SAFE),
    "weights too large": (lambda: network(big=conv(1e6), norm=nn.GroupNorm(1, 8)), SAFE, "big"),
    "gain too large": (lambda: network(mid=conv(), gain=Gain(1e6), norm=nn.GroupNorm(1, 8)), SAFE, "gain"),
    "gain too small": (
        lambda: network(mid=conv(), gain=Gain(1e-7), norm=nn.GroupNorm(1, 8, eps=1e-20)),
        SAFE,
        "gain",
    ),
    "attention by hand": (lambda: network(attn=Attention(300.0)), SAFE, "attn"),
    "softmax by hand": (lambda: network(wide=conv(16.0), soft=By(softmax)), SAFE, "soft"),
    "layer norm by hand": (lambda: network(wide=conv(1000.0), ln=By(layer_norm)), SAFE, "ln"),
    "large sum": (
        lambda: network(
            wide=conv(1000.0),
            total=By(lambda x: F.relu(x).sum((2, 3), keepdim=True) + 0 * x),
            back=Gain(1e-5),
        ),
        SAFE,
        "total",
    ),
    "many ones": (lambda: network(mid=conv(), ones=By(many_ones)), "ones", SAFE),
    "positions": (lambda: network(mid=conv(), pos=By(positions)), "pos", "pos"),
    "a sum that stops": (lambda: network(mid=conv(), sat=By(saturating)), "sat", SAFE),
    "a channel too large": (lambda: network(mid=conv(channel=5), norm=nn.GroupNorm(8, 8)), "mid", "mid"),
    "a pair": (lambda: network(pairs=First()), SAFE, "pairs.pair"),
    "no gradient": (lambda: network(mid=conv(), dead=By(lambda x: In16.apply(x, 0.0))), "dead", "dead"),
    "a tenth of the gradient": (
        lambda: network(mid=conv(), weak=By(lambda x: In16.apply(x, 0.1))),
        "weak",
        "weak",
    ),
    "no gradient in noise": (
        lambda: network(
            mid=conv(), dead=By(lambda x: In16.apply(x, 0.0)), sine=By(lambda x: torch.sin(x.float() * 200))
        ),
        "first.0, mid",  # with `dead` alone in fp32, the noise of the layers before it is too large to tell
        "dead",
    ),
    "noise": (lambda: network(mid=conv(), sine=By(lambda x: torch.sin(x.float() * 400))), CANT_TELL, None),
}
FEW = (slow("attention by hand"), "a sum that stops", slow("no gradient in noise"), "noise")


def wrong_verdicts(tmp_path, name):
    """Return the verdicts on a network that are not those of its table: precision, found, right, why."""
    _, *wanted = NETWORKS[name]
    checker = checker_of(tmp_path, name)
    wrong = []
    for precision, right in zip(("bf16", "fp16"), wanted, strict=True):
        checked = checker.check(precision)
        told = SAFE if checked.safe else checked.verdict
        found = ", ".join(checked.fp32_layers) or told
        if right is not None and found != right:
            wrong.append((precision, found, right, checked.why))
    return wrong


def checker_of(tmp_path, name):
    torch.manual_seed(0)
    return PrecisionChecker(bench(tmp_path, NETWORKS[name][0]()), Mailbox())


@pytest.mark.parametrize(
    ("name", "precision", "layer", "where", "operation"),
    [
        slow("attention by hand", "fp16", "attn", "forward", "bmm"),
        slow("large sum", "fp16", "total", "forward", "sum"),
        slow("positions", "bf16", "pos", "forward", "sin"),
        slow("many ones", "bf16", "ones", "forward", "sub"),
        slow("gain too small", "fp16", "gain", "forward", "mul"),
        slow("a tenth of the gradient", "bf16", "weak", "backward", "mul"),
        ("no gradient in noise", "bf16", "dead", "backward", "mul"),
    ],
)
def test_the_first_operation_that_differs_is_the_sick_one(tmp_path, name, precision, layer, where, operation):
    found = checker_of(tmp_path, name).first_difference(precision)
    assert found is not None
    assert (found.layer, found.where, found.operation) == (layer, where, operation)
    assert found.differs > found.allowed or found.size == 0
    assert f"{operation} of {layer} in the {where} pass, operation {found.number} of " in found.words()


@pytest.mark.parametrize("name", [slow("healthy"), slow("dropout"), slow("small gradients"), "noise"])
def test_of_a_healthy_network_no_operation_differs(tmp_path, name):
    checker = checker_of(tmp_path, name)
    assert checker.first_difference("bf16") is None
    assert checker.first_difference("fp16") is None


@pytest.mark.parametrize("name", FEW)
def test_the_sick_layer_is_found_and_only_what_is_shown_is_called_safe(tmp_path, name):
    assert wrong_verdicts(tmp_path, name) == []


@pytest.mark.slow
def test_of_twenty_networks_at_most_one_verdict_is_wrong_and_none_of_them_is_safe(tmp_path):
    wrong = {name: found for name in NETWORKS if (found := wrong_verdicts(tmp_path, name))}
    assert len(NETWORKS) == 20
    assert sum(len(found) for found in wrong.values()) <= 1, wrong
    assert not [found for found in wrong.values() for _, told, _, _ in found if told == SAFE], wrong
