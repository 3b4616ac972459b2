"""What a VAE is built by: the config.json of diffusers' `AutoencoderKL`."""

import hashlib
import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

CONFIG, WEIGHTS = "config.json", "diffusion_pytorch_model.safetensors"
"""The files of a VAE's folder."""

_LAYERS = 2
_LATENT_CHANNELS = 4
_MOST_GROUPS = 32
_BLOCK = 1 << 20

_Channels = Annotated[int, Field(ge=1, le=65536)]
_Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class VaeLayout(BaseModel):
    """What config.json says of a VAE; keys and defaults are those of diffusers' `AutoencoderKL`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    class_name: Literal["AutoencoderKL"] = Field(default="AutoencoderKL", alias="_class_name")
    in_channels: Literal[3] = 3
    out_channels: Literal[3] = 3
    act_fn: Literal["silu"] = "silu"
    down_block_types: list[Literal["DownEncoderBlock2D"]] = ["DownEncoderBlock2D"]
    up_block_types: list[Literal["UpDecoderBlock2D"]] = ["UpDecoderBlock2D"]
    block_out_channels: Annotated[list[_Channels], Field(min_length=1, max_length=8)] = [64]
    layers_per_block: Annotated[int, Field(ge=1, le=64)] = 1
    latent_channels: _Channels = _LATENT_CHANNELS
    norm_num_groups: _Channels = 32
    use_quant_conv: bool = True
    use_post_quant_conv: bool = True
    mid_block_add_attention: bool = True
    sample_size: int | list[int] = 32
    """The side, or height and width, of its training images in pixels."""
    scaling_factor: _Factor = 0.18215
    """The factor of latents for a diffusion model, after `shift_factor` is subtracted."""
    shift_factor: Annotated[float, Field(allow_inf_nan=False)] | None = None

    @classmethod
    def of_width(cls, width: int, depth: int) -> "VaeLayout":
        """Return that of `--model vae`: `width` channels, up to 4 times as many below, `depth` halvings."""
        levels = depth + 1
        return cls(
            block_out_channels=[width * min(2**level, 4) for level in range(levels)],
            down_block_types=["DownEncoderBlock2D"] * levels,
            up_block_types=["UpDecoderBlock2D"] * levels,
            layers_per_block=_LAYERS,
            # of 4 channels at least: a group of 1 loses the scale
            norm_num_groups=max(1, math.gcd(4 * _MOST_GROUPS, width) // 4),
        )

    @property
    def fits(self) -> bool:
        """Whether its levels, channels and groups fit together."""
        levels = {len(self.block_out_channels), len(self.down_block_types), len(self.up_block_types)}
        whole = not any(channels % self.norm_num_groups for channels in self.block_out_channels)
        return len(levels) == 1 and whole

    @property
    def reduction(self) -> int:
        """How many pixels of a row one latent stands for."""
        return 1 << (len(self.block_out_channels) - 1)

    def as_text(self) -> str:
        """Return the content of config.json."""
        return json.dumps(self.model_dump(by_alias=True), indent=2) + "\n"


def digest(folder: Path) -> str | None:
    """Return the SHA-256 of both files of a VAE as hexadecimal digits; None if one can't be read."""
    files = folder / CONFIG, folder / WEIGHTS
    try:
        states = [file.stat() for file in files]
        return _digest(files, tuple((state.st_mtime_ns, state.st_size) for state in states))
    except OSError:
        return None


@lru_cache(maxsize=8)
def _digest(files: tuple[Path, ...], _states: tuple[tuple[int, int], ...]) -> str:
    found = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                found.update(block)
    return found.hexdigest()
