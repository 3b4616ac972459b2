"""What guides claim of single cards, beside what was measured on this device."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mptui.lab.bench.claims import RESNET50_GUIDE

_UNET_GUIDE = "Mixed Precision Training Guide (U-Net, 512 px, batch 8)"
_EPOCHS = {"unet": (1200, 512)}
"""Images of an epoch, and their side in pixels: in the guide's console output 150 batches of 8."""


@dataclass(frozen=True, slots=True)
class CardClaim:
    """A guide's claim about a network in one number format on one card, relative to FP32 on it.

    Attributes:
        card: The card, as its name contains it.
        network: Name of the network in the table.
        format: The number format.
        source: Title of the guide.
        speed: Speed as a multiple of FP32's.
        memory: Memory as a fraction of FP32's.
        epoch_s: Seconds of an epoch; None: not stated.
        iou: Intersection over union after training; None: not stated.
    """

    card: str
    network: str
    format: str
    source: str
    speed: float
    memory: float
    epoch_s: float | None = None
    iou: float | None = None


CARD_CLAIMS = (
    CardClaim("RTX 3090", "resnet50", "fp16", RESNET50_GUIDE, 1.8, 0.55),
    CardClaim("RTX 4090", "resnet50", "fp16", RESNET50_GUIDE, 1.9, 0.5),
    CardClaim("A100", "resnet50", "bf16", RESNET50_GUIDE, 2.0, 0.5),
    CardClaim("V100", "resnet50", "fp16", RESNET50_GUIDE, 1.5, 0.6),
    CardClaim("RTX 3090", "unet", "bf16", _UNET_GUIDE, 82 / 54, 4.8 / 8.2, 54, 0.841),
    CardClaim("RTX 4090", "unet", "bf16", _UNET_GUIDE, 61 / 35, 4.7 / 8.2, 35, 0.842),
)


def beside_claims(rows: Sequence[dict[str, Any]], device_name: str) -> list[dict[str, Any]]:
    """Return the claims about this card, or about all cards if none is about it, with what was measured.

    Args:
        rows: Rows of the guides' table, as JSON.
        device_name: The name of the device that they were measured on.
    """
    of_this = [claim for claim in CARD_CLAIMS if claim.card in device_name]
    measured = {(row["name"], found["name"]): (row, found) for row in rows for found in row["formats"]}
    return [
        {**asdict(claim), "measured": _measured(*measured[claim.network, claim.format])}
        for claim in of_this or CARD_CLAIMS
        if (claim.network, claim.format) in measured
    ]


def _measured(row: dict[str, Any], found: dict[str, Any]) -> dict[str, float | None]:
    """Return what was measured; the time of an epoch only at the guide's image size."""
    rate = found["samples_per_second"]
    images, side = _EPOCHS.get(row["name"], (0, 0))
    return {
        "speed": found["ratio"]["value"] if found["ratio"] else None,
        "memory": found["memory"],
        "epoch_s": images / rate if rate and side == row["image_size"] else None,
    }
