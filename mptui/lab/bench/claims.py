"""Published claims on speed and memory, from guides to mixed precision, to compare with measurements."""

from collections.abc import Iterable
from dataclasses import dataclass

RESNET50_GUIDE = "Optimized Mixed Precision Training Guide (ResNet-50)"
_SWITCHES = "Aggressive Training Optimizations"
_FORMATS = "Mixed Precision Training (A100 80GB; whether its FP32 uses TF32 is not stated)"


@dataclass(frozen=True, slots=True)
class PublishedClaim:
    """A guide's claim about a setting.

    Attributes:
        source: Title of the guide.
        speed: Speed relative to the guide's baseline.
        memory: Memory as a fraction of the baseline's; None: not stated.
    """

    source: str
    speed: float
    memory: float | None = None

    @property
    def text(self) -> str:
        """Format the claim for a table cell."""
        return f"{self.speed:.2f}" + (f", {self.memory:.0%} memory" if self.memory else "")


CLAIMS = {
    "+tf32": PublishedClaim(_SWITCHES, 1.1),
    "+fp16": PublishedClaim(RESNET50_GUIDE, 2.0, memory=0.5),
    "+bf16": PublishedClaim(RESNET50_GUIDE, 2.0, memory=0.5),
    "+channels_last": PublishedClaim(_SWITCHES, 1.15),
    "+compile": PublishedClaim(_SWITCHES, 1.2),
    "+compile-default": PublishedClaim(_SWITCHES, 1.2),
    "+compile-max-autotune": PublishedClaim(_SWITCHES, 1.2),
    "+batch": PublishedClaim(_SWITCHES, 1.5),
    "+workers": PublishedClaim(_SWITCHES, 1.5),
    "+no-mixup": PublishedClaim(_SWITCHES, 1.1),
    "everything": PublishedClaim(_SWITCHES, 3.5),
    "resnet50 fp16": PublishedClaim(_FORMATS, 1.8),
    "resnet50 bf16": PublishedClaim(_FORMATS, 1.7),
    "vit_l_16 fp16": PublishedClaim(_FORMATS, 2.1),
    "vit_l_16 bf16": PublishedClaim(_FORMATS, 2.0),
    "diffusion_unet fp16": PublishedClaim(_FORMATS, 1.9),
    "diffusion_unet bf16": PublishedClaim(_FORMATS, 1.85),
    "gpt2 fp16": PublishedClaim(_FORMATS, 1.7),  # of 1.5 B parameters; measured is the one of 124 M
    "gpt2 bf16": PublishedClaim(_FORMATS, 1.65),
}
"""By variant of the ablation, relative to FP32 in NCHW, eager; and by network and number format, relative to
the network in FP32."""


def sources(names: Iterable[str]) -> str:
    """Return the titles of the guides with claims about these names, for a line below a table."""
    found = dict.fromkeys(CLAIMS[name].source for name in names if name in CLAIMS)
    return f"the guides: {'; '.join(found)}"
