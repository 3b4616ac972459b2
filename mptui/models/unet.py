"""The U-Net of Ronneberger, Fischer and Brox (2015), https://arxiv.org/abs/1505.04597; also on an encoder."""

import math
from collections.abc import Sequence
from math import ceil
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from mptui.models.layers import RGB_BANDS

# The U-Net of Ronneberger, Fischer and Brox (2015), https://arxiv.org/abs/1505.04597
# -----------------------------------------------------------------------------------
# Unlike in the paper, convolutions are padded, so that the output has the size of the input, and each is
# followed by a normalisation.
#
# Shapes: B samples, C channels, H and W pixels, K classes.

Up = Literal["transposed", "bilinear"]
Norm = Literal["batch", "group"]


class UNet(nn.Module):
    """An encoder that halves the resolution `depth` times, and a decoder with skip connections.

    Level i has 1/2^i of the resolution and `width` x 2^i channels. Bilinear upsampling can't change the
    number of channels, so its levels, and the deepest one, output half of them. With the defaults and 2
    classes, the network has 31.0 M parameters, or 17.3 M with `up="bilinear"`.

    Args:
        num_classes: K, the channels of the output.
        width: Channels of the first level.
        depth: Number of times the resolution is halved.
        up: Upsampling in the decoder.
        norm: Normalisation after each convolution; group normalisation doesn't depend on the batch size.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        width: int = 64,
        depth: int = 4,
        up: Up = "transposed",
        norm: Norm = "batch",
    ) -> None:
        super().__init__()
        levels = [width * 2**level for level in range(depth + 1)]
        # output channels of each level
        outputs = levels if up == "transposed" else [width, *levels[:-1]]

        self.encoder = nn.ModuleList(
            _double_conv(before, after, after, norm)
            for before, after in zip([RGB_BANDS, *levels], levels[:-1], strict=False)
        )
        self.bottom = _double_conv(levels[-2], outputs[-1], outputs[-1], norm)
        self.decoder = nn.ModuleList(
            DecoderLevel(outputs[level + 1], levels[level], levels[level], outputs[level], up=up, norm=norm)
            for level in reversed(range(depth))
        )
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, num_classes, kernel_size=1)
        self.apply(initialise)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Map images to logits_BKHW; H and W of at least 2^depth."""
        skips = []
        for level in self.encoder:
            x_BCHW = level(x_BCHW)
            skips.append(x_BCHW)
            x_BCHW = self.pool(x_BCHW)
        x_BCHW = self.bottom(x_BCHW)
        for level, skip_BCHW in zip(self.decoder, reversed(skips), strict=True):
            x_BCHW = level(x_BCHW, skip_BCHW)
        logits_BKHW: torch.Tensor = self.head(x_BCHW)
        return logits_BKHW


class DecoderLevel(nn.Module):
    """Upsamples, concatenates the encoder's output of this level, and convolves twice.

    Args:
        below: Channels of the level below.
        skip: Channels of the encoder's output.
        middle: Channels between the convolutions, and of a transposed convolution.
        after: Channels of the output.
        up: Upsampling.
        norm: Normalisation after each convolution.
    """

    def __init__(self, below: int, skip: int, middle: int, after: int, *, up: Up, norm: Norm) -> None:
        super().__init__()
        learnt = up == "transposed"
        self.up = nn.ConvTranspose2d(below, middle, kernel_size=2, stride=2) if learnt else None
        self.conv = _double_conv((middle if learnt else below) + skip, middle, after, norm)

    def forward(self, x_BCHW: torch.Tensor, skip_BCHW: torch.Tensor) -> torch.Tensor:
        """Map the output of the level below to that of this one, of the size of `skip_BCHW`."""
        if self.up is None:
            x_BCHW = F.interpolate(x_BCHW, size=skip_BCHW.shape[-2:], mode="bilinear")
        else:
            x_BCHW = _fitted(self.up(x_BCHW), skip_BCHW)
        joined: torch.Tensor = self.conv(torch.cat((skip_BCHW, x_BCHW), dim=1))
        return joined


def _fitted(x_BCHW: torch.Tensor, like_BCHW: torch.Tensor) -> torch.Tensor:
    """Pad with zeros what pooling an odd size dropped, or crop what a padded convolution added."""
    rows, columns = (want - have for want, have in zip(like_BCHW.shape[-2:], x_BCHW.shape[-2:], strict=True))
    return F.pad(x_BCHW, (0, columns, 0, rows)) if rows or columns else x_BCHW


def _double_conv(in_channels: int, mid_channels: int, out_channels: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(
        # The normalisation has a bias.
        nn.Conv2d(in_channels, mid_channels, kernel_size=3, padding=1, bias=False),
        _norm(mid_channels, norm),
        nn.ReLU(inplace=True),
        nn.Conv2d(mid_channels, out_channels, kernel_size=3, padding=1, bias=False),
        _norm(out_channels, norm),
        nn.ReLU(inplace=True),
    )


def _norm(channels: int, norm: Norm) -> nn.Module:
    # At most 8 groups: 8 of the first level's 64 channels are normalised together.
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(math.gcd(channels, 8), channels)


def initialise(module: nn.Module) -> None:
    """Initialise so that the variance of activations is constant over layers (He et al. 2015)."""
    if isinstance(module, nn.ConvTranspose2d):
        # With the stride equal to the kernel size, each output pixel uses one weight per input channel.
        nn.init.normal_(module.weight, std=module.in_channels**-0.5)
    elif isinstance(module, nn.Conv2d):
        nonlinearity: Literal["linear", "relu"] = "linear" if module.kernel_size == (1, 1) else "relu"
        nn.init.kaiming_normal_(module.weight, nonlinearity=nonlinearity)
    else:
        return
    if module.bias is not None:
        nn.init.zeros_(module.bias)


# A U-Net whose encoder is a classification network, so that it can start from published weights
# ----------------------------------------------------------------------------------------------
# As in TernausNet (Iglovikov and Shvets 2018, https://arxiv.org/abs/1801.05746). By default, the decoder is
# as wide as that of segmentation-models-pytorch.
#
# Shapes: B samples, C channels, H and W pixels, K classes.


class EncoderUNet(nn.Module):
    """An encoder of features at several resolutions, and a decoder with skip connections.

    The decoder doubles the resolution until it is that of the image; levels where the encoder has no features
    have no skip connection. At 1/2^i of the resolution it has `width` x 2^i / 4 channels.

    Args:
        encoder: Maps images_BCHW to a list of features, the largest first.
        channels: Channels of each feature.
        reductions: Factor by which each is smaller than the image: increasing powers of 2.
        num_classes: K, the channels of the output.
        nhwc: The features are BHWC instead of BCHW.
        width: Channels of the decoder at a quarter of the resolution.
        up: Upsampling in the decoder.
        norm: Normalisation after each convolution of the decoder.
    """

    def __init__(
        self,
        encoder: nn.Module,
        channels: Sequence[int],
        reductions: Sequence[int],
        num_classes: int,
        *,
        nhwc: bool = False,
        width: int = 64,
        up: Up = "transposed",
        norm: Norm = "batch",
    ) -> None:
        super().__init__()
        self._reductions = tuple(reductions)
        self._nhwc = nhwc
        self._levels = [1 << level for level in reversed(range(reductions[-1].bit_length() - 1))]
        widths = [max(1, width * reduction // 4) for reduction in self._levels]
        skips = dict(zip(reductions, channels, strict=True))
        self.encoder = encoder
        self.decoder = nn.ModuleList(
            DecoderLevel(below, skips.get(reduction, 0), after, after, up=up, norm=norm)
            for below, after, reduction in zip([channels[-1], *widths], widths, self._levels, strict=False)
        )
        self.head = nn.Conv2d(widths[-1], num_classes, kernel_size=1)
        self.decoder.apply(initialise)
        self.head.apply(initialise)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Map images to logits_BKHW."""
        B, _, H, W = images_BCHW.shape
        features = self.encoder(images_BCHW)
        if self._nhwc:
            features = [feature_BHWC.permute(0, 3, 1, 2) for feature_BHWC in features]
        skips = dict(zip(self._reductions, features, strict=True))
        x_BCHW = features[-1]
        for reduction, level in zip(self._levels, self.decoder, strict=True):
            skip_BCHW = skips.get(reduction)
            if skip_BCHW is None:
                skip_BCHW = x_BCHW.new_empty((B, 0, ceil(H / reduction), ceil(W / reduction)))
            x_BCHW = level(x_BCHW, skip_BCHW)
        logits_BKHW: torch.Tensor = self.head(x_BCHW)
        return logits_BKHW
