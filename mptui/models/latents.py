"""A VAE that is used and not trained: images to latents that a diffusion model learns, and back."""

import json
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file

from mptui.config.schema import ModelConfig
from mptui.errors import ConfigError
from mptui.io.files import read_regular
from mptui.models.vae import Autoencoder
from mptui.models.vae_layout import CONFIG, WEIGHTS, VaeLayout, digest
from mptui.registry.names import SIXTEEN_BIT
from mptui.text import clean

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
        self._vae, self.layout, self._precision = vae, layout, precision
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


# The folder of a VAE in the layout of diffusers' `AutoencoderKL`: config.json and safetensors weights
# ----------------------------------------------------------------------------------------------------

_LARGEST_CONFIG = 1 << 20
_FORMER_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
"""Names of layers in older files -> those of today."""
_FAULTS_NAMED = 3


def read_layout(folder: Path) -> VaeLayout:
    """Read the config.json of a VAE.

    Raises:
        ConfigError: It is missing, can't be read, or is of a network that mptui can't build.
    """
    file = folder / CONFIG
    try:
        layout = VaeLayout.model_validate(json.loads(read_regular(file, _LARGEST_CONFIG)))
    except OSError as error:
        raise ConfigError(
            f"model.vae: {file}: {(error.strerror or str(error)).lower()}", hint=_hint_for(folder)
        ) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"model.vae: {file}: {clean(key, 100)}: {clean(first['msg'], 100)}",
            hint="Use a VAE of the class AutoencoderKL of diffusers, or train one: mptui run --model vae",
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"model.vae: {file}: not JSON", hint="Restore the file.") from error
    if not layout.fits:
        raise ConfigError(
            f"model.vae: {file}: its levels, channels and groups don't fit together",
            hint="Restore the file as diffusers wrote it.",
        )
    return layout


def _hint_for(folder: Path) -> str:
    """Say what to give in place of a folder without config.json."""
    if (folder / "run.toml").is_file():
        return f"Export the run first: mptui export {folder} --format diffusers --out DIR"
    if (folder / "vae" / CONFIG).is_file():
        return f"Name the folder of the VAE in it: {folder / 'vae'}"
    return f"Name a folder with {CONFIG} and {WEIGHTS}."


def read_vae(folder: Path, layout: VaeLayout) -> Autoencoder:
    """Read a VAE whose config.json is `layout`, in float32 on the CPU; nothing is unpickled.

    Raises:
        ConfigError: The weights are missing, can't be read, are of another network, or not finite.
    """
    file = folder / WEIGHTS
    if not file.is_file():
        raise ConfigError(
            f"model.vae: {folder}: no {WEIGHTS}, and other files of weights could run code",
            hint="Save it with safe_serialization=True.",
        )
    vae = Autoencoder(layout)
    try:
        state = {_canonical(name): tensor for name, tensor in load_file(file).items()}
        vae.load_state_dict(state)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"model.vae: {file}: cannot read: {clean(str(error), 200)}",
            hint="Check the permissions of the file, or download it again.",
        ) from error
    except RuntimeError as error:
        faults = [clean(line.strip(), 200) for line in str(error).splitlines()[1 : 1 + _FAULTS_NAMED]]
        raise ConfigError(
            "\n".join([f"model.vae: {file}: these weights are of another network than {CONFIG}", *faults]),
            hint="Download both files again.",
        ) from error
    if odd := [name for name, tensor in state.items() if not bool(torch.isfinite(tensor).all())]:
        raise ConfigError(
            f"model.vae: {file}: {clean(odd[0], 200)} has values that are not finite",
            hint="Use an earlier checkpoint, or download the file again.",
        )
    return vae


def _canonical(name: str) -> str:
    """Return the present name of a tensor."""
    before, _, kind = name.rpartition(".")
    above, _, layer = before.rpartition(".")
    if ".attentions." in name and layer in _FORMER_ATTENTION:
        return f"{above}.{_FORMER_ATTENTION[layer]}.{kind}"
    return name


def latent_shape(folder: str, side: int) -> tuple[int, int, int]:
    """Return channels, height and width of the latents of images of `side` pixels.

    Raises:
        ConfigError: As `read_layout`, or `side` is no multiple of a latent's pixels.
    """
    layout = read_layout(Path(folder))
    latents = side // layout.reduction
    if side % layout.reduction or not latents:
        nearest = max(1, round(side / layout.reduction)) * layout.reduction
        raise ConfigError(
            f"data.image_size: the VAE needs a multiple of {layout.reduction} pixels, not {side}",
            hint=f"Use --set data.image_size={nearest}, or another VAE.",
        )
    return layout.latent_channels, latents, latents
