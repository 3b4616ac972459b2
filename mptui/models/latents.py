"""A VAE that is used and not trained: images to latents that a diffusion model learns, and back."""

from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

import torch

from mptui.config.schema import ModelConfig
from mptui.errors import ConfigError
from mptui.models.vae import Autoencoder, read_layout, read_vae
from mptui.models.vae_layout import VaeLayout, digest
from mptui.registry.names import SIXTEEN_BIT

# A VAE that is used and not trained: images to the latents that a diffusion model learns, and back
# -------------------------------------------------------------------------------------------------
# Shapes: B images, C channels, H and W pixels, h and w of latents.

_PIXELS_AT_ONCE = 1 << 19
"""Limits the memory of a pass; the bits of a latent depend only on its place in its batch."""
_CHECKED = 16
"""Images that a VAE in 16 bits is checked on."""
_CLOSE = 0.05
"""Largest difference of its latents, as root mean square: their standard deviation is about 1."""

_opened: WeakValueDictionary[tuple[object, ...], "FrozenVae"] = WeakValueDictionary()


class Vae(Protocol):
    """What encodes and decodes images; both ways with any batch."""

    def encode(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the means of the latents of images."""

    def decode(self, latents_BCHW: torch.Tensor) -> torch.Tensor:
        """Return images of latents."""


class FrozenVae:
    """Encodes and decodes in float32, with autocast off whatever the run computes in.

    Latents are shifted and scaled to about the variance of noise, as the VAE's config.json says.

    Args:
        vae: The VAE, in eval mode on its device.
        layout: Its config.json.
        precision: fp32; bf16 or fp16: encoding alone is under autocast, once the first images are checked.
    """

    def __init__(self, vae: Vae, layout: VaeLayout, precision: str = "fp32") -> None:
        self._vae = vae
        self.layout = layout
        self._precision = precision
        self._shift = layout.shift_factor or 0.0
        self._checked = precision not in SIXTEEN_BIT

    def shape(self, side: int) -> tuple[int, int, int]:
        """Return channels, height and width of the latents of images of `side` pixels."""
        latents = side // self.layout.reduction
        return self.layout.latent_channels, latents, latents

    def encode(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the latents of images of -1..1: float32, the means of their distributions.

        Raises:
            ConfigError: In 16 bits, those of the first images are not finite, or not close to those in fp32.
        """
        if not self._checked:
            self._check(images_BCHW[:_CHECKED])
            self._checked = True
        return self._encoded(images_BCHW, self._precision)

    @torch.no_grad()
    def decode(self, latents_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the images of latents, float32, of about -1..1; always in float32."""
        latents_BCHW = latents_BCHW.float() / self.layout.scaling_factor + self._shift
        rows = self._rows(latents_BCHW.shape[2] * self.layout.reduction)
        with torch.autocast(latents_BCHW.device.type, enabled=False):
            return torch.cat([self._vae.decode(part).float() for part in torch.split(latents_BCHW, rows)])

    @torch.no_grad()
    def _encoded(self, images_BCHW: torch.Tensor, precision: str) -> torch.Tensor:
        kind, rows = images_BCHW.device.type, self._rows(images_BCHW.shape[2])
        dtype = getattr(torch, SIXTEEN_BIT[precision]) if precision in SIXTEEN_BIT else None
        with torch.autocast(kind, dtype=dtype, enabled=dtype is not None):
            parts = [self._vae.encode(part.float()).float() for part in torch.split(images_BCHW, rows)]
        return (torch.cat(parts) - self._shift) * self.layout.scaling_factor

    def _check(self, images_BCHW: torch.Tensor) -> None:
        """Check that latents in 16 bits are finite, and close to those in float32. Syncs."""
        low, full = (self._encoded(images_BCHW, precision) for precision in (self._precision, "fp32"))
        difference = float((low - full).square().mean().sqrt())
        if not difference <= _CLOSE:  # NaN is not, either
            how = f"differ by {difference:.2g}" if difference < float("inf") else "are not finite"
            raise ConfigError(
                f"model.vae_precision = {self._precision}: the latents of the first {len(images_BCHW)} images"
                f" {how} (accepted: {_CLOSE:g} of their deviation)",
                hint="leave model.vae_precision out: fp32",
            )

    def _rows(self, side: int) -> int:
        return max(1, _PIXELS_AT_ONCE // side**2)


def open_vae(model: ModelConfig, device: torch.device) -> FrozenVae | None:
    """Read the VAE of `model.vae` onto a device, once for all who use it at a time; None if there is none.

    Raises:
        ConfigError: As `read_layout` and `read_vae`, or it is another than the run has begun with.
    """
    if model.vae is None:
        return None
    folder = Path(model.vae)
    layout, found = read_layout(folder), digest(folder)
    if model.vae_sha256 not in {None, found}:
        raise ConfigError(
            f"model.vae: {folder}: not the VAE that this run began with",
            hint="give that one: --set model.vae=DIR; for a new run, --set model.vae_sha256=none",
        )
    key = model.vae, found, device, model.vae_precision
    if (frozen := _opened.get(key)) is None:
        vae = read_vae(folder, layout).to(device).eval().requires_grad_(False)
        frozen = _opened[key] = FrozenVae(vae, layout, model.vae_precision)
    return frozen


def vae_bytes(model: ModelConfig) -> int:
    """Return the bytes of the weights of the VAE of a network; 0 without one.

    Raises:
        ConfigError: As `read_layout`.
    """
    if model.vae is None:
        return 0
    layout = read_layout(Path(model.vae))
    with torch.device("meta"):
        return sum(parameter.numel() * 4 for parameter in Autoencoder(layout).parameters())
