"""Copies batches to the device on a stream; colour, normalisation, mixup and cutmix there."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import torch

from mptui.data.reading import HostBatch
from mptui.data.rng import RandomStream, generator, uniforms
from mptui.data.transforms import Normalization
from mptui.data.types import RGB, PixelFormat
from mptui.data.worker import Arena
from mptui.models.latents import FrozenVae

# Color jitter, normalisation, mixup and cutmix of batches on the device, in few passes over memory
# -------------------------------------------------------------------------------------------------
# Brightness, contrast, saturation and normalisation are all linear in a pixel's RGB, so one 3x3 matrix and
# one offset per sample apply them together.
#
# The colours of RGB alone are jittered: of other bands, such as infrared or 16 bits, nothing is known.
#
# Shapes: B samples, H and W pixels, N = HW, C bands.

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
        *,
        vae: FrozenVae | None = None,
        channels_last: bool,
    ) -> None:
        self.vae = vae
        self._side = side
        self._channels_last = channels_last
        self._is_uint8 = pixels.dtype == "uint8"
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
    factors_B3 = 1 + _JITTER * (2 * uniforms(RandomStream.COLOUR, seed, epoch, indices_B, count=3) - 1)
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


# Copies batches from shared memory to the device; on CUDA from pinned memory in a separate stream
# ------------------------------------------------------------------------------------------------
# Shapes: B samples, H and W pixels, C bands.


class _Moved(NamedTuple):
    pixels_BHWC: torch.Tensor
    targets: torch.Tensor


class Transfer:
    """Copies batches to `device`, with at most one copy per slot at a time; on a CPU nothing is copied."""

    def __init__(self, device: torch.device, arena: Arena) -> None:
        self._device = device
        self._arena = arena
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._pinned: npt.NDArray[np.uint8] | None = None
        self._moved: dict[int, _Moved] = {}
        self._events: dict[int, torch.cuda.Event] = {}

    @property
    def overlaps(self) -> bool:
        """Whether copies overlap with computation, so that starting them early helps."""
        return self._stream is not None

    def pin(self) -> None:
        """Pin the memory of the arena, so that copies overlap with computation.

        If the driver refuses, copies are slower.
        """
        if self._stream is None:
            return
        memory = self._arena.bytes()
        if self._pinned is None or self._pinned.nbytes != memory.nbytes:
            self._unpin()
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            if cudart.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0) == cudart.cudaError.success:
                self._pinned = memory
            else:
                self._forget_refusal()

    def start(self, batch: HostBatch) -> None:
        """Start copying a complete batch, unless its copy was started before."""
        if batch.slot in self._moved:
            return
        pixels = torch.from_numpy(batch.pixels_BHWC)
        targets = torch.from_numpy(batch.labels if batch.masks_BHW is None else batch.masks_BHW)
        if self._stream is None:
            self._moved[batch.slot] = _Moved(pixels.to(self._device), targets.to(self._device))
            return
        with torch.cuda.stream(self._stream):
            self._moved[batch.slot] = _Moved(
                pixels.to(self._device, non_blocking=True), targets.to(self._device, non_blocking=True)
            )
            self._events[batch.slot] = self._stream.record_event()

    def finish(self, batch: HostBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the images_BHWC and the labels or masks of a batch, for use in the current stream."""
        self.start(batch)
        moved = self._moved.pop(batch.slot)
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(self._events[batch.slot])
            for tensor in moved:
                tensor.record_stream(current)
        return moved.pixels_BHWC, moved.targets

    def targets_of(self, batches: Sequence[HostBatch], first: int, number: int) -> torch.Tensor:
        """Return the labels or masks of one of the batches before its `finish`, from row `first` on.

        Starts copying the batch.
        """
        batch = batches[number]
        self.start(batch)
        targets = self._moved[batch.slot].targets
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(self._events[batch.slot])
            targets.record_stream(current)
        return targets[first:]

    def wait_for_copies(self, slots: Iterable[int] | None = None) -> None:
        """Wait until no copy reads `slots` (None: all), and drop unused copies."""
        for slot in list(self._events if slots is None else slots):
            self._moved.pop(slot, None)
            if slot in self._events:
                self._events.pop(slot).synchronize()
        if slots is None:
            self._moved.clear()

    def close(self) -> None:
        """Unpin the arena."""
        self.wait_for_copies()
        self._unpin()

    def _forget_refusal(self) -> None:
        """Clear the pending CUDA error by a kernel launch, as the next launch would report it."""
        with suppress(RuntimeError):
            torch.ones(1, device=self._device)

    def _unpin(self) -> None:
        if self._pinned is not None:
            torch.cuda.cudart().cudaHostUnregister(self._pinned.ctypes.data)  # type: ignore[no-untyped-call]
            self._pinned = None
