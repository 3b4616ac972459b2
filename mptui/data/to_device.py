"""Color jitter, normalisation, mixup and cutmix of batches on the device, in few passes over memory.

Brightness, contrast, saturation and normalisation are all linear in a pixel's RGB, so one 3x3 matrix and one
offset per sample apply them together.

The colours of RGB alone are jittered: of other bands, such as infrared or 16 bits, nothing is known.

Shapes: B samples, H and W pixels, N = HW, C bands.
"""

import cv2
import numpy as np
import numpy.typing as npt
import torch

from mptui.data.core.rng import RandomStream, generator, uniforms
from mptui.data.core.types import RGB, PixelFormat
from mptui.data.transforms.normalization import Normalization
from mptui.models.latent.frozen_vae import FrozenVae

_JITTER = 0.2
"""Factors of brightness, contrast and saturation are drawn from 1 - this to 1 + this."""
_LUMA = np.array([0.299, 0.587, 0.114])


class Finish:
    """Converts batches of any `PixelFormat` to normalised float32 in a memory format, or on to latents.

    Jittered batches are normalised by the matrices of `colours`.
    """

    def __init__(
        self,
        side: int,
        device: torch.device,
        normalization: Normalization,
        pixels: PixelFormat = RGB,
        vae: FrozenVae | None = None,
        *,
        channels_last: bool,
    ) -> None:
        self.vae, self._side = vae, side
        self._channels_last, self._is_uint8 = channels_last, pixels.dtype == "uint8"
        mean_C, std_C = np.array(normalization.mean), np.array(normalization.std)
        scale_C = 1 / (255 * std_C) if self._is_uint8 else 1 / std_C
        shift_C = -mean_C / std_C if self._is_uint8 else -mean_C
        # One coefficient per value of a row of pixels: an inner axis of 3 is 4 times slower.
        self._scale, self._shift = (
            each_C.repeat(side) if channels_last else each_C.view(-1, 1, 1)
            for each_C in (torch.tensor(v, dtype=torch.float32, device=device) for v in (scale_C, shift_C))
        )

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        """Shape of the latents of an image, in memory order."""
        assert self.vae is not None
        C, h, w = self.vae.shape(self._side)
        return (h, w, C) if self._channels_last else (C, h, w)

    def plain(self, pixels_BHWC: torch.Tensor) -> torch.Tensor:
        """Normalise pixels; return images_BCHW."""
        return self.unstored(self.stored(pixels_BHWC))

    def stored(self, pixels_BHWC: torch.Tensor) -> torch.Tensor:
        """Normalise pixels, and encode them if there is a VAE.

        The axes of the result are in memory order, BHWC or BCHW.
        """
        stored = self._stored(pixels_BHWC)
        if self.vae is None:
            return stored
        latents_BCHW = self.vae.encode(self.unstored(stored))
        return (latents_BCHW.permute(0, 2, 3, 1) if self._channels_last else latents_BCHW).contiguous()

    def _stored(self, pixels_BHWC: torch.Tensor) -> torch.Tensor:
        if not self._channels_last:
            return self._normalised(pixels_BHWC.permute(0, 3, 1, 2).contiguous())
        return self._normalised(pixels_BHWC.flatten(2)).view(pixels_BHWC.shape)

    def _normalised(self, values: torch.Tensor) -> torch.Tensor:
        if self._is_uint8:
            return torch.addcmul(self._shift, values, self._scale)
        # one after the other: the product of a large value, rounded, would lose its low bits
        return values.to(torch.float32, copy=True).add_(self._shift).mul_(self._scale)

    def unstored(self, images: torch.Tensor) -> torch.Tensor:
        """Return the result of `stored` as images_BCHW."""
        return images.permute(0, 3, 1, 2) if self._channels_last else images

    def coloured(self, pixels_BHW3: torch.Tensor, colour_B43: torch.Tensor) -> torch.Tensor:
        """Jitter the colours and normalise with the matrices of `colours`; pixels may have any dtype."""
        if not self._channels_last:
            B, H, W, _ = pixels_BHW3.shape
            matrix_B33, offset_B13 = colour_B43[:, :3], colour_B43[:, 3:]
            planes_B3N = pixels_BHW3.permute(0, 3, 1, 2).contiguous().flatten(2).float()
            return torch.baddbmm(offset_B13.mT, matrix_B33.mT, planes_B3N).view(B, 3, H, W)
        transform = _by_opencv if pixels_BHW3.device.type == "cpu" else _by_products
        return transform(pixels_BHW3, colour_B43).permute(0, 3, 1, 2)


def _by_opencv(pixels_BHW3: torch.Tensor, colour_B43: torch.Tensor) -> torch.Tensor:
    """Multiply each pixel by the matrix of its sample and add the offset.

    On a CPU this is seven times as fast as `_by_products`: `bmm` is optimised for larger matrices.
    """
    images_BHW3 = torch.empty(pixels_BHW3.shape)
    for pixels_HW3, image_HW3, matrix_34 in zip(
        pixels_BHW3.numpy(), images_BHW3.numpy(), colour_B43.mT.numpy(), strict=True
    ):
        cv2.transform(pixels_HW3.astype(np.float32), matrix_34, dst=image_HW3)
    return images_BHW3


def _by_products(pixels_BHW3: torch.Tensor, colour_B43: torch.Tensor) -> torch.Tensor:
    """Apply the matrices like `_by_opencv`, on any device, in a few kernels for the whole batch."""
    values_BN3 = pixels_BHW3.flatten(1, 2).float()
    return torch.baddbmm(colour_B43[:, 3:], values_BN3, colour_B43[:, :3]).view(pixels_BHW3.shape)


def colours(
    seed: int, epoch: int, indices_B: npt.NDArray[np.int64], normalization: Normalization
) -> npt.NDArray[np.float32]:
    """Draw each sample's colour jitter: (B, 4, 3), a matrix from RGB to RGB above an offset.

    The result of pixels in 0..255 is normalised. Contrast is scaled around the grey of the mean.
    """
    mean_3, std_3 = np.array(normalization.mean), np.array(normalization.std)
    factors_B3 = 1 + _JITTER * (2 * uniforms(RandomStream.COLOUR, seed, epoch, indices_B, 3) - 1)
    brightness, contrast, saturation = factors_B3.T[:, :, None, None]
    mixing_B33 = saturation * np.eye(3) + (1 - saturation) * _LUMA[:, None]
    matrix_B33 = brightness * contrast / 255 * mixing_B33 / std_3
    offset_B13 = (_LUMA @ mean_3 * (1 - contrast) - mean_3) / std_3
    return np.concatenate([matrix_B33, offset_B13], axis=1).astype(np.float32)


def mix(
    images_BCHW: torch.Tensor, *, mixup_alpha: float, cutmix_alpha: float, position: tuple[int, int, int]
) -> tuple[torch.Tensor, float]:
    """Mix each image with the one before it in the batch, by mixup or cutmix.

    Args:
        images_BCHW: The batch; may be overwritten.
        mixup_alpha: Beta(alpha, alpha) of mixup; 0: off.
        cutmix_alpha: Beta(alpha, alpha) of cutmix; 0: off. With both on, each batch uses one at random.
        position: Seed, epoch and position of the batch's first sample.

    Returns:
        The mixed images and the share of the first image in them. The targets of the other images are
        `targets.roll(1, 0)`.
    """
    random = generator(RandomStream.MIX, *position)
    cut = cutmix_alpha > 0 and (mixup_alpha == 0 or random.random() < 0.5)
    others_BCHW = images_BCHW.roll(1, 0)
    if cut:
        return _cut_in(images_BCHW, others_BCHW, random.beta(cutmix_alpha, cutmix_alpha), random)
    lam = random.beta(mixup_alpha, mixup_alpha)
    return others_BCHW.lerp_(images_BCHW, lam), lam


def _cut_in(
    images_BCHW: torch.Tensor, others_BCHW: torch.Tensor, lam: float, random: np.random.Generator
) -> tuple[torch.Tensor, float]:
    """Copy a rectangle of about 1 - `lam` of the area from `others` to `images`; return the exact share."""
    H, W = images_BCHW.shape[2:]
    height, width = (round(side * (1 - lam) ** 0.5) for side in (H, W))
    top, left = int(random.integers(H - height + 1)), int(random.integers(W - width + 1))
    patch = (..., slice(top, top + height), slice(left, left + width))
    images_BCHW[patch] = others_BCHW[patch]
    return images_BCHW, 1 - height * width / (H * W)
