"""The variational autoencoder (VAE) of latent diffusion: images to latents of a lower resolution, and back.

Architecture of Rombach et al. (2022), https://arxiv.org/abs/2112.10752, whose layers have the names of
diffusers' `AutoencoderKL`, so that both read the same files.

Shapes: B images, C channels, H and W pixels, h and w of latents, N = hw.
"""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from mptui.errors import ConfigError
from mptui.io.files import read_regular
from mptui.models.vae_layout import CONFIG, WEIGHTS, VaeLayout
from mptui.text import clean, shell_word

_EPS = 1e-6
_LOG_VARIANCE = -30.0, 20.0
"""Range of the logarithm of the variance, whose exponential stays finite in float32."""


class Autoencoder(nn.Module):
    """Encodes images of -1..1 as means and variances of latents, and decodes latents.

    Each level but the last halves the resolution. The deepest one has self-attention.

    Args:
        layout: Channels, layers and what else the network is built by.
    """

    def __init__(self, layout: VaeLayout) -> None:
        super().__init__()
        self.layout = layout
        latents = layout.latent_channels
        self.encoder = _Encoder(layout)
        quant, post_quant = layout.use_quant_conv, layout.use_post_quant_conv
        self.quant_conv = nn.Conv2d(2 * latents, 2 * latents, 1) if quant else nn.Identity()
        self.post_quant_conv = nn.Conv2d(latents, latents, 1) if post_quant else nn.Identity()
        # registered last: the last layer counts as the head
        self.decoder = _Decoder(layout)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Reconstruct images: from random latents in training, else from their means.

        Returns:
            images_BCHW, with one more channel: the Kullback-Leibler divergence of the latents of an image
            from a standard normal distribution in nats, divided by the number of its values, at each pixel.
        """
        moments = self.moments(images_BCHW).float()
        means_BCHW, log_variances_BCHW = moments.chunk(2, dim=1)
        log_variances_BCHW = log_variances_BCHW.clamp(*_LOG_VARIANCE)
        latents_BCHW = means_BCHW
        if self.training:
            noise_BCHW = torch.randn_like(means_BCHW)
            latents_BCHW = means_BCHW + noise_BCHW * (0.5 * log_variances_BCHW).exp()
        images_of_latents_BCHW = self.decode(latents_BCHW).float()
        nats_BCHW = 0.5 * (means_BCHW.square() + log_variances_BCHW.exp() - 1 - log_variances_BCHW)
        nats_B111 = nats_BCHW.sum((1, 2, 3), keepdim=True) / images_BCHW[0].numel()
        nats_B1HW = nats_B111.expand(-1, -1, *images_BCHW.shape[2:])
        return torch.cat((images_of_latents_BCHW, nats_B1HW), dim=1)

    def moments(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the means of the latents of images, and the logarithms of their variances, as channels."""
        moments: torch.Tensor = self.quant_conv(self.encoder(images_BCHW))
        return moments

    def encode(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the means of the latents of images; their H and W must be multiples of the reduction."""
        return self.moments(images_BCHW).chunk(2, dim=1)[0]

    def scaling_factor(self, images_BCHW: torch.Tensor) -> float:
        """Return the factor that gives the latents of these images a standard deviation of 1.

        Rombach et al. (2022), section D.1, take it from one batch, too.
        """
        with torch.no_grad():
            deviation = float(self.encode(images_BCHW).std())
        return 1 / deviation if math.isfinite(deviation) and deviation > 0 else 1.0

    def decode(self, latents_BCHW: torch.Tensor) -> torch.Tensor:
        """Return images of latents."""
        images_BCHW: torch.Tensor = self.decoder(self.post_quant_conv(latents_BCHW))
        return images_BCHW


class _Encoder(nn.Module):
    def __init__(self, layout: VaeLayout) -> None:
        super().__init__()
        channels, groups = layout.block_out_channels, layout.norm_num_groups
        self.conv_in = nn.Conv2d(3, channels[0], kernel_size=3, padding=1)
        pairs = zip([channels[0], *channels], channels, strict=False)
        self.down_blocks = nn.ModuleList(
            _Level(before, after, layout.layers_per_block, groups, down=number < len(channels) - 1)
            for number, (before, after) in enumerate(pairs)
        )
        self.mid_block = _Middle(channels[-1], groups, layout.mid_block_add_attention)
        self.conv_norm_out = nn.GroupNorm(groups, channels[-1], eps=_EPS)
        self.conv_out = nn.Conv2d(channels[-1], 2 * layout.latent_channels, kernel_size=3, padding=1)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        x_BCHW = self.conv_in(x_BCHW)
        for level in self.down_blocks:
            x_BCHW = level(x_BCHW)
        moments: torch.Tensor = self.conv_out(F.silu(self.conv_norm_out(self.mid_block(x_BCHW))))
        return moments


class _Decoder(nn.Module):
    def __init__(self, layout: VaeLayout) -> None:
        super().__init__()
        falling, groups = list(reversed(layout.block_out_channels)), layout.norm_num_groups
        self.conv_in = nn.Conv2d(layout.latent_channels, falling[0], kernel_size=3, padding=1)
        self.mid_block = _Middle(falling[0], groups, layout.mid_block_add_attention)
        pairs = zip([falling[0], *falling], falling, strict=False)
        self.up_blocks = nn.ModuleList(
            _Level(before, after, layout.layers_per_block + 1, groups, up=number < len(falling) - 1)
            for number, (before, after) in enumerate(pairs)
        )
        self.conv_norm_out = nn.GroupNorm(groups, falling[-1], eps=_EPS)
        self.conv_out = nn.Conv2d(falling[-1], 3, kernel_size=3, padding=1)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        x_BCHW = self.mid_block(self.conv_in(x_BCHW))
        for level in self.up_blocks:
            x_BCHW = level(x_BCHW)
        images_BCHW: torch.Tensor = self.conv_out(F.silu(self.conv_norm_out(x_BCHW)))
        return images_BCHW


class _Level(nn.Module):
    """Residual blocks, then half or twice the resolution."""

    def __init__(
        self, before: int, after: int, layers: int, groups: int, *, down: bool = False, up: bool = False
    ) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(
            _Residual(after if number else before, after, groups) for number in range(layers)
        )
        self.downsamplers = nn.ModuleList([_Halving(after)] if down else [])
        self.upsamplers = nn.ModuleList([_Doubling(after)] if up else [])

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        for layer in (*self.resnets, *self.downsamplers, *self.upsamplers):
            x_BCHW = layer(x_BCHW)
        return x_BCHW


class _Middle(nn.Module):
    def __init__(self, channels: int, groups: int, attention: bool) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(_Residual(channels, channels, groups) for _ in range(2))
        self.attentions = nn.ModuleList([_SelfAttention(channels, groups)] if attention else [])

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        for layer in (self.resnets[0], *self.attentions, self.resnets[1]):
            x_BCHW = layer(x_BCHW)
        return x_BCHW


class _Residual(nn.Module):
    def __init__(self, channels: int, out_channels: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, channels, eps=_EPS)
        self.conv1 = nn.Conv2d(channels, out_channels, kernel_size=3, padding=1)
        self.norm2 = nn.GroupNorm(groups, out_channels, eps=_EPS)
        self.conv2 = nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1)
        same = channels == out_channels
        self.conv_shortcut = nn.Identity() if same else nn.Conv2d(channels, out_channels, kernel_size=1)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        inner_BCHW = self.conv1(F.silu(self.norm1(x_BCHW)))
        inner_BCHW = self.conv2(F.silu(self.norm2(inner_BCHW)))
        out_BCHW: torch.Tensor = self.conv_shortcut(x_BCHW) + inner_BCHW
        return out_BCHW


class _SelfAttention(nn.Module):
    """Residual self-attention over all pixels, with one head."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(groups, channels, eps=_EPS)
        self.to_q, self.to_k, self.to_v = (nn.Linear(channels, channels) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        pixels_BNC = self.group_norm(x_BCHW).flatten(2).transpose(1, 2)
        # an axis for the head, which the fused kernels need
        query, key, value = (layer(pixels_BNC)[:, None] for layer in (self.to_q, self.to_k, self.to_v))
        taken_BNC = F.scaled_dot_product_attention(query, key, value)[:, 0]
        taken_BCHW: torch.Tensor = self.to_out[0](taken_BNC).transpose(1, 2).unflatten(2, x_BCHW.shape[2:])
        return x_BCHW + taken_BCHW


class _Halving(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel_size=3, stride=2)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        halved: torch.Tensor = self.conv(F.pad(x_BCHW, (0, 1, 0, 1)))
        return halved


class _Doubling(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel_size=3, padding=1)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        doubled: torch.Tensor = self.conv(F.interpolate(x_BCHW, scale_factor=2.0, mode="nearest"))
        return doubled


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
            hint="use a VAE of the class AutoencoderKL of diffusers, or train one: mptui run --model vae",
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"model.vae: {file}: not JSON", hint="restore the file") from error
    if not layout.fits:
        raise ConfigError(
            f"model.vae: {file}: its levels, channels and groups don't fit together",
            hint="restore the file as diffusers wrote it",
        )
    return layout


def _hint_for(folder: Path) -> str:
    """Say what to give in place of a folder without config.json."""
    if (folder / "run.toml").is_file():
        return f"export the run first: mptui export {shell_word(folder)} --format diffusers --out DIR"
    if (folder / "vae" / CONFIG).is_file():
        return f"name the folder of the VAE in it: {folder / 'vae'}"
    return f"name a folder with {CONFIG} and {WEIGHTS}"


def read_vae(folder: Path, layout: VaeLayout) -> Autoencoder:
    """Read a VAE whose config.json is `layout`, in float32 on the CPU; nothing is unpickled.

    Raises:
        ConfigError: The weights are missing, can't be read, are of another network, or not finite.
    """
    file = folder / WEIGHTS
    if not file.is_file():
        raise ConfigError(
            f"model.vae: {folder}: no {WEIGHTS}, and other files of weights could run code",
            hint="save it with safe_serialization=True",
        )
    vae = Autoencoder(layout)
    try:
        state = {_canonical(name): tensor for name, tensor in load_file(file).items()}
        vae.load_state_dict(state)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"model.vae: {file}: cannot read: {clean(str(error), 200)}",
            hint="check the permissions of the file, or download it again",
        ) from error
    except RuntimeError as error:
        faults = [clean(line.strip(), 200) for line in str(error).splitlines()[1 : 1 + _FAULTS_NAMED]]
        raise ConfigError(
            "\n".join([f"model.vae: {file}: these weights are of another network than {CONFIG}", *faults]),
            hint="download both files again",
        ) from error
    if odd := [name for name, tensor in state.items() if not bool(torch.isfinite(tensor).all())]:
        raise ConfigError(
            f"model.vae: {file}: {clean(odd[0], 200)} has values that are not finite",
            hint="use an earlier checkpoint, or download the file again",
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
            hint=f"use --set data.image_size={nearest}, or another VAE",
        )
    return layout.latent_channels, latents, latents
