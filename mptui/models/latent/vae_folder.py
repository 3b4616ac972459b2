"""The folder of a VAE in the layout of diffusers' `AutoencoderKL`: config.json and safetensors weights."""

import json
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file

from mptui.errors import ConfigError
from mptui.models.latent.autoencoder import Autoencoder
from mptui.models.latent.vae_layout import CONFIG, WEIGHTS, VaeLayout
from mptui.regular import read_regular
from mptui.text import clean

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
