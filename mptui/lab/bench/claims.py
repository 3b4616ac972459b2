"""What guides to mixed-precision training promise of each switch, to be held against what is measured."""

from dataclasses import dataclass

TABLE = {
    "ResNet-50": {"fp16": 1.8, "bf16": 1.7},
    "ViT-L": {"fp16": 2.1, "bf16": 2.0},
    "diffusion U-Net": {"fp16": 1.9, "bf16": 1.85},
}
"""A guide's table of training speeds, as times FP32's: an A100, and FP32 is not said to be strict."""


@dataclass(frozen=True, slots=True)
class PublishedClaim:
    """Times as fast, and the share of the memory that is still needed; None where nothing is said."""

    speed: float | None = None
    memory: float | None = None


CLAIMS = {
    "+tf32": PublishedClaim(speed=1.1),
    "+fp16": PublishedClaim(speed=2.0, memory=0.5),
    "+bf16": PublishedClaim(speed=2.0, memory=0.5),
    "+channels_last": PublishedClaim(speed=1.15),
    "+compile": PublishedClaim(speed=1.2),
    "+compile-default": PublishedClaim(speed=1.2),
    "+compile-max-autotune": PublishedClaim(speed=1.2),
    "+batch": PublishedClaim(speed=1.5),
    "+workers": PublishedClaim(speed=1.5),
    "+no-mixup": PublishedClaim(speed=1.1),
    "everything": PublishedClaim(speed=3.5),
}
"""By the variant of the ablation. The baseline of the guides is FP32 in NCHW, eager."""
