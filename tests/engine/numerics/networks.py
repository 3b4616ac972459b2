"""Random networks of many shapes, healthy or with one faulty layer, and a probe of one step."""

import torch
from torch import nn

from mptui.engine.numerics import Probe
from mptui.engine.spectrum import Ranking, rank

CPU = torch.device("cpu")
CLASSES = 10
SIDE = 24
"""3 pixels after three halvings. If the input of a bf16 convolution is one pixel, torch 2.13 on a CPU leaves
part of its weight gradient uninitialized."""


class Gain(nn.Module):
    """A layer that multiplies its input by a constant."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x):
        return x * self.gain


class Gate(nn.Module):
    """Weights channels by a softmax over them, as attention does."""

    def __init__(self, channels: int, gain: float = 1.0) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels, channels, 1)
        self.gain = gain
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        return x * self.softmax(self.gain * self.mix(x)) * x.shape[1]


def network(seed: int, sick: nn.Module | None = None) -> tuple[nn.Sequential, str]:
    """Build a random network with `sick` near its middle; return it and the name of that layer."""
    torch.manual_seed(seed)
    chance = torch.Generator().manual_seed(seed)

    def pick(*choices):
        return choices[int(torch.randint(len(choices), (), generator=chance))]

    norm = pick(nn.BatchNorm2d, lambda channels: nn.GroupNorm(4, channels), None)
    activation = pick(nn.ReLU, nn.GELU, nn.SiLU, lambda: nn.ReLU(inplace=True))
    width, depth = pick(8, 16), pick(2, 3, 5)
    place = int(torch.randint(depth, (), generator=chance))
    layers: list[nn.Module] = []
    name = ""
    channels = 3
    for number in range(depth):
        layers.append(nn.Conv2d(channels, width, 3, padding=1, stride=pick(1, 2 if number < 3 else 1)))
        channels = width
        if sick is not None and number == place:
            layers.append(nn.BatchNorm2d(width))  # normalizes the input of the faulty layer
            name = str(len(layers))
            layers.append(sick if isinstance(sick, Gain) else Gate(width, gain=1e4))
        elif pick(True, False):
            layers.append(Gate(width))
        if norm is not None:
            layers.append(norm(width))
        layers.append(activation())
    layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, CLASSES)]
    return nn.Sequential(*layers), name


def look_at(
    model: nn.Module, seed: int = 0, *, precision: str = "fp32", scale: float | None = None
) -> Ranking:
    """Return the ranking of one step on random images."""
    chance = torch.Generator().manual_seed(seed)
    images = torch.randn(8, 3, SIDE, SIDE, generator=chance)
    labels = torch.randint(CLASSES, (8,), generator=chance)
    look = Probe(model, CPU)
    dtypes = {"fp16": torch.float16, "bf16": torch.bfloat16}
    with look.hooks():
        with torch.autocast("cpu", dtype=dtypes.get(precision), enabled=precision in dtypes):
            outputs = model(images)
        loss = nn.functional.cross_entropy(outputs.float(), labels)
        (loss * (scale or 1.0)).backward()
    look.add_weights()
    return rank(look.seen(look.rows), scale)
