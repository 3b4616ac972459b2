"""A U-Net whose encoder is a classification network, so that it can start from published weights.

As in TernausNet (Iglovikov and Shvets 2018, https://arxiv.org/abs/1801.05746). By default, the decoder is as
wide as that of segmentation-models-pytorch.

Shapes: B samples, C channels, H and W pixels, K classes.
"""

from collections.abc import Sequence
from math import ceil

import torch
from torch import nn

from mptui.models.unets.unet import DecoderLevel, Norm, Up, initialise


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
        self._reductions, self._nhwc = tuple(reductions), nhwc
        self._levels = [1 << level for level in reversed(range(reductions[-1].bit_length() - 1))]
        widths = [max(1, width * reduction // 4) for reduction in self._levels]
        skips = dict(zip(reductions, channels, strict=True))
        self.encoder = encoder
        self.decoder = nn.ModuleList(
            DecoderLevel(below, skips.get(reduction, 0), after, after, up, norm)
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
