"""The U-Net of diffusion models: predicts the noise in images from the images and their noise level.

Architecture of Ho, Jain and Abbeel (2020), https://arxiv.org/abs/2006.11239, with the channels of Dhariwal
and Nichol (2021), https://arxiv.org/abs/2105.05233.

Shapes: B samples, C channels, H and W pixels, E numbers of an embedding, N = HW, D of a head.
"""

import math
from collections.abc import Collection
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import nn

_BLOCKS = 2
"""Residual blocks per level of the encoder; the decoder has one more, for the additional skip."""
_HEAD_CHANNELS = 32
_LONGEST_PERIOD = 10_000

Layer = TypeVar("Layer", bound=nn.Module)


class DiffusionUNet(nn.Module):
    """Residual blocks that halve the resolution `depth` times and restore it, with skip connections.

    Level i has 1/2^i of the resolution and `width` x (i + 1) channels. Some levels have self-attention, and
    the middle if the deepest level has. Residual branches and the output start at zero.
    At a width of 224 and a depth of 3 that is 270 M parameters and, forward, 92 G multiply-adds for an image
    of 64 pixels: about as the default of diffusers' UNet2DModel.

    Args:
        in_channels: Channels of the images, and of the noise; 3 is RGB.
        width: Channels of the first level.
        depth: Number of times the resolution is halved.
        attention: Levels with self-attention, from 0; None: the two deepest ones, but not level 0.
        classes: Number of classes of the images; 0: images have no labels.
    """

    def __init__(
        self,
        *,
        in_channels: int = 3,
        width: int = 64,
        depth: int = 4,
        attention: Collection[int] | None = None,
        classes: int = 0,
    ) -> None:
        super().__init__()
        channels = [width * (level + 1) for level in range(depth + 1)]
        if attention is None:
            attention = range(max(1, depth - 1), depth + 1)
        attends = [level in attention for level in range(depth + 1)]
        embedded = 4 * width
        self.embed = _Embedding(width, embedded, classes)
        self.stem = nn.Conv2d(in_channels, width, kernel_size=3, padding=1)
        skips = [width]
        before = width
        self.down = nn.ModuleList()
        for level, after in enumerate(channels):
            for _ in range(_BLOCKS):
                self.down.append(_Block(before, after, embedded, attends=attends[level]))
                skips.append(after)
                before = after
            if level < depth:
                self.down.append(_Down(after))
                skips.append(after)
        self.middle = nn.ModuleList(
            [
                _Block(before, before, embedded, attends=attends[-1]),
                _Block(before, before, embedded, attends=False),
            ]
        )
        self.up = nn.ModuleList()
        for level in reversed(range(depth + 1)):
            after = channels[level]
            for _ in range(_BLOCKS + 1):
                self.up.append(_Block(before + skips.pop(), after, embedded, attends=attends[level]))
                before = after
            if level:
                self.up.append(_Up(after))
        self.norm = _norm(width)
        self.head = _zeroed(nn.Conv2d(width, in_channels, kernel_size=3, padding=1))

    def forward(
        self, x_BCHW: torch.Tensor, timesteps_B: torch.Tensor, labels_B: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Predict the noise in images, as noise_BCHW; H and W must be multiples of 2^depth.

        With classes, labels_B are their numbers; the label `classes` is of images of any class, as is None.
        """
        embedding_BE = self.embed(timesteps_B, labels_B)
        x_BCHW = self.stem(x_BCHW)
        skips = [x_BCHW]
        for layer in self.down:
            x_BCHW = layer(x_BCHW, embedding_BE)
            skips.append(x_BCHW)
        for layer in self.middle:
            x_BCHW = layer(x_BCHW, embedding_BE)
        for layer in self.up:
            if isinstance(layer, _Block):
                x_BCHW = torch.cat((x_BCHW, skips.pop()), dim=1)
            x_BCHW = layer(x_BCHW, embedding_BE)
        noise_BCHW: torch.Tensor = self.head(F.silu(self.norm(x_BCHW)))
        return noise_BCHW


class _Embedding(nn.Module):
    """Sinusoidal embedding of a timestep (Vaswani et al. 2017), and two linear layers; plus that of a class.

    The vectors of the classes start apart, each value from N(0, 1) as torch's: from zero they are learnt so
    slowly that a network of a thousand steps hardly hears them.
    """

    def __init__(self, width: int, embedded: int, classes: int) -> None:
        super().__init__()
        self._half = max(1, width // 2)
        self.inner = nn.Linear(2 * self._half, embedded)
        self.outer = nn.Linear(embedded, embedded)
        self.labels = nn.Embedding(classes + 1, embedded) if classes else None

    def forward(self, timesteps_B: torch.Tensor, labels_B: torch.Tensor | None) -> torch.Tensor:
        places = torch.arange(self._half, dtype=torch.float32, device=timesteps_B.device) / self._half
        # always in float32: neighbouring timesteps are equal in 16 bits
        angles = timesteps_B.float()[:, None] * torch.exp(-math.log(_LONGEST_PERIOD) * places)
        waves = torch.cat((angles.cos(), angles.sin()), dim=1)
        embedding_BE: torch.Tensor = self.outer(F.silu(self.inner(waves)))
        if self.labels is not None:
            null = self.labels.num_embeddings - 1
            embedding_BE = embedding_BE + self.labels(
                torch.full_like(timesteps_B, null) if labels_B is None else labels_B
            )
        return F.silu(embedding_BE)


class _Block(nn.Module):
    """A residual block of two convolutions with the timestep's embedding, optionally with attention."""

    def __init__(self, channels: int, out_channels: int, embedded: int, *, attends: bool) -> None:
        super().__init__()
        self.norm_in = _norm(channels)
        self.conv_in = nn.Conv2d(channels, out_channels, kernel_size=3, padding=1)
        self.timestep = nn.Linear(embedded, out_channels)
        self.norm_out = _norm(out_channels)
        self.conv_out = _zeroed(nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1))
        same = channels == out_channels
        self.skip = nn.Identity() if same else nn.Conv2d(channels, out_channels, kernel_size=1)
        self.attention = _Attention(out_channels) if attends else nn.Identity()

    def forward(self, x_BCHW: torch.Tensor, embedding_BE: torch.Tensor) -> torch.Tensor:
        inner_BCHW = self.conv_in(F.silu(self.norm_in(x_BCHW)))
        inner_BCHW = inner_BCHW + self.timestep(embedding_BE)[:, :, None, None]
        inner_BCHW = self.conv_out(F.silu(self.norm_out(inner_BCHW)))
        out_BCHW: torch.Tensor = self.attention(self.skip(x_BCHW) + inner_BCHW)
        return out_BCHW


class _Attention(nn.Module):
    """Residual self-attention over all pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self._heads = _largest_divisor(channels, channels // _HEAD_CHANNELS)
        self.norm = _norm(channels)
        self.query_key_value = nn.Linear(channels, 3 * channels)
        self.out = _zeroed(nn.Linear(channels, channels))

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        B, C, H, W = x_BCHW.shape
        pixels_BNC = self.norm(x_BCHW).flatten(2).transpose(1, 2)
        query, key, value = (
            self.query_key_value(pixels_BNC)
            .view(B, H * W, 3, self._heads, C // self._heads)
            .permute(2, 0, 3, 1, 4)
        )
        taken_BhND = F.scaled_dot_product_attention(query, key, value)
        taken_BNC = self.out(taken_BhND.transpose(1, 2).flatten(2))
        taken_BCHW: torch.Tensor = taken_BNC.transpose(1, 2).unflatten(2, (H, W))
        return x_BCHW + taken_BCHW


class _Down(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel_size=3, stride=2, padding=1)

    def forward(self, x_BCHW: torch.Tensor, _embedding_BE: torch.Tensor) -> torch.Tensor:
        halved: torch.Tensor = self.conv(x_BCHW)
        return halved


class _Up(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel_size=3, padding=1)

    def forward(self, x_BCHW: torch.Tensor, _embedding_BE: torch.Tensor) -> torch.Tensor:
        doubled: torch.Tensor = self.conv(F.interpolate(x_BCHW, scale_factor=2.0, mode="nearest"))
        return doubled


def _norm(channels: int) -> nn.GroupNorm:
    """Return a norm of up to 32 groups of at least 4 channels; a group of 1 loses the scale."""
    return nn.GroupNorm(_largest_divisor(channels, min(32, channels // 4)), channels)


def _largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of `number` up to `most`, at least 1."""
    return next((by for by in range(most, 1, -1) if number % by == 0), 1)


def _zeroed(layer: Layer) -> Layer:
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer
