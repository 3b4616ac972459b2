"""The networks of the comparison, each with what a loop gets wrong; `head` is the last layer of each."""

import torch
from torch import nn

from tests.engine.blots import CLASSES


class Kept(nn.Module):
    """BatchNorm, and a running statistic of its own."""

    size: torch.Tensor
    freeze: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=False)  # before a norm, a gradient of rounding alone
        self.norm = nn.BatchNorm2d(6)
        self.inner = nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Linear(6, len(CLASSES))
        self.register_buffer("size", torch.ones(6))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.inner(torch.relu(self.norm(self.stem(images))))).mean(dim=(2, 3))
        if self.training:
            self.size.mul_(0.9).add_(features.detach().float().abs().amax(0), alpha=0.1)
        logits: torch.Tensor = self.head(features / (self.size + 0.1))
        return logits


class Tied(Kept):
    """Two convolutions with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Conv2d(6, 6, 3, padding=1)
        self.again.weight = self.inner.weight
        head = self.head
        del self.head
        self.head = head  # the last layer

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.norm(self.stem(images)))
        logits: torch.Tensor = self.head(
            torch.relu(self.again(torch.relu(self.inner(features)))).mean(dim=(2, 3))
        )
        return logits


class Frozen(Kept):
    """Its first layers are frozen, BatchNorm among them."""

    freeze = ("stem", "norm")


NETWORKS = {"buffers": Kept, "tied": Tied, "frozen": Frozen}
