"""Measures the networks of a mixed-precision guide in FP32, TF32, FP16 and BF16.

All settings but the number format are equal: NHWC, fused update, eager, decoded images on the device. FP32
excludes TF32, which has its own row.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mptui.hardware.devices import Device
from mptui.lab.bench.ablation import BASELINE, Variant
from mptui.lab.bench.bench import AblationRun, Row
from mptui.lab.bench.claims import CLAIMS
from mptui.runs.planning.plan import Request

_ALIKE = {
    "speed.compile": "off",
    "speed.channels_last": True,
    "speed.fused": True,
    "data.cache": "device",
}
_FORMATS = {
    "tf32": {"precision.mode": "fp32", "precision.matmul": "high"},
    "fp16": {"precision.mode": "fp16", "precision.matmul": "highest"},
    "bf16": {"precision.mode": "bf16", "precision.matmul": "highest"},
}


@dataclass(frozen=True, slots=True)
class Subject:
    """A network of the table, with its settings for each kind of device.

    Attributes:
        name: Name of the network, as for `--model`.
        title: Heading of its rows.
        gpu: table.key -> value, at a realistic size.
        cpu: table.key -> value, small enough for a CPU with two cores.
        unit: What its samples are.
    """

    name: str
    title: str
    gpu: Mapping[str, object]
    cpu: Mapping[str, object]
    unit: str = "images"

    def settings(self, device: Device) -> Mapping[str, object]:
        """Return the settings for `device`."""
        return self.cpu if device.kind == "cpu" else self.gpu


def _of(side: int, batch: int, **more: object) -> dict[str, object]:
    """Return settings from the image side in pixels, the batch size and keys of the model."""
    return {
        "data.image_size": side,
        "training.batch_size": batch,
        **{f"model.{key}": value for key, value in more.items()},
    }


SUBJECTS = (
    Subject("resnet50", "ResNet-50", _of(224, 64), _of(64, 16)),
    Subject("vit_l_16", "ViT-L/16", _of(224, 32), _of(32, 4)),
    Subject("diffusion_unet", "diffusion U-Net", _of(64, 32, width=224), _of(32, 4)),
    Subject("unet", "U-Net for masks", _of(512, 8), _of(64, 4, width=16)),
)


def request_of(subject: Subject, device: Device, sets: Sequence[str]) -> Request:
    """Return the request of a row; `sets` (`--set table.key=value`) override the table's sizes."""
    flags = {
        "model.name": ("--table", subject.name),
        "data.name": ("--table", "shapes"),
        "hardware.device": ("--table", device.torch_name),
        **{key: ("--table", value) for key, value in subject.settings(device).items()},
    }
    return Request("stable", flags, tuple(sets), os.environ)


def formats(device: Device) -> list[Variant]:
    """Return FP32, then each format that the device supports."""
    fp32 = {**_ALIKE, "precision.mode": "fp32", "precision.matmul": "highest"}
    there = [name for name in _FORMATS if device.native.get(name, "no") != "no"]
    return [
        Variant(BASELINE, "FP32", fp32, None),
        *(Variant(name, name.upper(), {**_ALIKE, **_FORMATS[name]}, BASELINE) for name in there),
    ]


def described(
    subject: Subject, lab: AblationRun, *, batch_size: int, size: str, image_size: int | None
) -> dict[str, Any]:
    """Return a row for JSON; `size` is that of a sample, as text."""
    claims = {name: CLAIMS.get(f"{subject.name} {name}") for name in _FORMATS}
    return {
        "name": subject.name,
        "title": subject.title,
        "unit": subject.unit,
        "image_size": image_size,
        "size": size,
        "batch_size": batch_size,
        "claim": {name: claim.speed for name, claim in claims.items() if claim is not None} or None,
        "formats": [
            {**row, "memory": _memory(lab.rows, number)} for number, row in enumerate(lab.document())
        ],
    }


def _memory(rows: Sequence[Row], number: int) -> float | None:
    """Return a format's peak memory as a fraction of FP32's."""
    ours, theirs = rows[number].peak_bytes, rows[0].peak_bytes
    return ours / theirs if ours and theirs else None
