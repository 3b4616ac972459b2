"""What `bench` compares: settings, claims of cards and guides, GPT-2, and numbers of processes."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from math import ceil, inf
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from mptui.hardware.devices import Device
from mptui.lab.measure.core import (
    BASELINE,
    NOT_MEASURED,
    AblationRun,
    Deadline,
    Effort,
    MeasureError,
    Measurer,
    Row,
    SampleSpan,
    Settings,
    ShortRunResult,
    Variant,
    peak_bytes,
    reply,
)
from mptui.processes.start import mptui_command
from mptui.runs.planning.plan import Request
from mptui.runs.store.directory import SUMMARY

if TYPE_CHECKING:
    import torch


# Published claims on speed and memory, from guides to mixed precision, to compare with measurements
# --------------------------------------------------------------------------------------------------

RESNET50_GUIDE = "Optimized Mixed Precision Training Guide (ResNet-50)"
_SWITCHES = "Aggressive Training Optimizations"
_A100_CLAIMS = "Mixed Precision Training (A100 80GB; whether its FP32 uses TF32 is not stated)"


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
    "resnet50 fp16": PublishedClaim(_A100_CLAIMS, 1.8),
    "resnet50 bf16": PublishedClaim(_A100_CLAIMS, 1.7),
    "vit_l_16 fp16": PublishedClaim(_A100_CLAIMS, 2.1),
    "vit_l_16 bf16": PublishedClaim(_A100_CLAIMS, 2.0),
    "diffusion_unet fp16": PublishedClaim(_A100_CLAIMS, 1.9),
    "diffusion_unet bf16": PublishedClaim(_A100_CLAIMS, 1.85),
    "gpt2 fp16": PublishedClaim(_A100_CLAIMS, 1.7),  # of 1.5 B parameters; measured is the one of 124 M
    "gpt2 bf16": PublishedClaim(_A100_CLAIMS, 1.65),
}
"""By variant of the ablation, relative to FP32 in NCHW, eager; and by network and number format, relative to
the network in FP32."""


def sources(names: Iterable[str]) -> str:
    """Return the titles of the guides with claims about these names, for a line below a table."""
    found = dict.fromkeys(CLAIMS[name].source for name in names if name in CLAIMS)
    return f"the guides: {'; '.join(found)}"


# What guides claim of single cards, beside what was measured on this device
# --------------------------------------------------------------------------

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
        {**asdict(claim), "measured": _measured_claim(*measured[claim.network, claim.format])}
        for claim in of_this or CARD_CLAIMS
        if (claim.network, claim.format) in measured
    ]


def _measured_claim(row: dict[str, Any], found: dict[str, Any]) -> dict[str, float | None]:
    """Return what was measured; the time of an epoch only at the guide's image size."""
    rate = found["samples_per_second"]
    images, side = _EPOCHS.get(row["name"], (0, 0))
    return {
        "speed": found["ratio"]["value"] if found["ratio"] else None,
        "memory": found["memory"],
        "epoch_s": images / rate if rate and side == row["image_size"] else None,
    }


# Measures the networks of a mixed-precision guide in FP32, TF32, FP16 and BF16
# -----------------------------------------------------------------------------
# All settings but the number format are equal: NHWC, fused update, eager, decoded images on the device.
# FP32 excludes TF32, which has its own row.

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


# Measures bare training steps of GPT-2 by number format, with the network of Hugging Face's transformers
# -------------------------------------------------------------------------------------------------------
# A guide's table has a row for GPT-2, but mptui trains no language models. Weights and tokens are random,
# so nothing is downloaded. The loop is the one of torch's "Automatic Mixed Precision examples": forward and
# backward under autocast, and a fused AdamW, with a GradScaler for FP16.

# keys of transformers' GPT2Config but for the batch size; on a GPU those of the smallest published GPT-2
SUBJECT = Subject(
    "gpt2",
    "GPT-2",
    {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257, "batch_size": 8},
    {"n_layer": 2, "n_embd": 128, "n_head": 4, "n_positions": 64, "vocab_size": 2048, "batch_size": 4},
    unit="sequences",
)
_WARM_UP = 5
"""Least steps before the timed ones."""
_BLOCK_S = 0.1
"""Seconds of steps between two waits for the device."""


def why_left_out(sets: Sequence[str]) -> str | None:
    """Return why the row can't be measured with these `--set`; None if it can."""
    if find_spec("transformers") is None:
        return "its network is of transformers, which is not installed: pip install transformers"
    return "--set is for networks of mptui" if sets else None


def ablation(device: "Device", effort: Effort, measurer: Measurer) -> AblationRun:
    """Return the ablation of the number formats that `device` supports."""
    common = {"device": device.torch_name, "sizes": dict(SUBJECT.settings(device))}

    def measure(settings: Settings, effort: Effort) -> ShortRunResult:
        asked = {**common, "mode": settings["precision.mode"], "matmul": settings["precision.matmul"]}
        return measurer.ask(f"{__name__}:main", asked, effort)

    variants = [
        replace(each, settings={key: each.settings[key] for key in ("precision.mode", "precision.matmul")})
        for each in formats(device)
    ]
    return AblationRun(variants, measure, effort, deadline=Deadline(inf))


def sizes(device: "Device") -> dict[str, Any]:
    """Return the sizes of the row on `device`."""
    given = SUBJECT.settings(device)
    size = f"{given['n_layer']} layers of {given['n_embd']}, {given['n_positions']} tokens"
    return {"image_size": None, "size": size, "batch_size": given["batch_size"]}


def main() -> None:
    """Measure the steps that `argv` describes in JSON, and print the result."""
    reply(_measured)


def _measured(
    *, device: str, sizes: Mapping[str, int], mode: str, matmul: str, effort: Effort
) -> ShortRunResult:
    import torch

    torch.set_float32_matmul_precision(matmul)
    where = torch.device(device)
    if where.index is not None:
        torch.accelerator.set_device_index(where.index)
    loop = _BareLoop(where, sizes, mode)
    first_step_s = loop.run(1)
    effort.check_first_step(first_step_s)
    warm_up = max(_WARM_UP, effort.loss_at) - 1
    block = max(1, round(_BLOCK_S * warm_up / loop.run(warm_up)))
    losses = [loss.item() for loss in loop.losses[effort.loss_at // 2 : effort.loss_at]]
    times: list[float] = []
    while sum(times) < effort.seconds:
        times.append(loop.run(block))
    return ShortRunResult(
        span=SampleSpan(sizes["batch_size"] * block * len(times), sum(times)),
        peak_bytes=torch.cuda.max_memory_allocated(where) if where.type == "cuda" else None,
        first_step_s=first_step_s,
        loss=mean(losses) if losses else None,
        wait=0.0,
    )


class _BareLoop:
    """Training steps on one batch of random tokens.

    Args:
        device: The device.
        sizes: Keys of `GPT2Config`, and `batch_size`.
        mode: fp32, fp16 or bf16.
    """

    def __init__(self, device: "torch.device", sizes: Mapping[str, int], mode: str) -> None:
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        from mptui.engine.precision import DTYPES

        torch.manual_seed(0)
        network = {key: value for key, value in sizes.items() if key != "batch_size"}
        self._network = GPT2LMHeadModel(GPT2Config(**network, use_cache=False)).to(device).train()
        self._optimizer = torch.optim.AdamW(self._network.parameters(), lr=1e-4, fused=True)
        self._scaler = torch.amp.GradScaler(device.type, enabled=mode == "fp16")
        self._autocast = torch.autocast(device.type, DTYPES.get(mode), enabled=mode != "fp32")
        self._wait = torch.get_device_module(device).synchronize
        shape = sizes["batch_size"], sizes["n_positions"]
        self._tokens_BT = torch.randint(sizes["vocab_size"], shape, device=device)
        self.losses: list[torch.Tensor] = []

    def run(self, steps: int) -> float:
        """Take this number of steps; return their seconds, with the wait for the device."""
        self._wait()
        began = time.perf_counter()
        for _ in range(steps):
            self._step()
        self._wait()
        return time.perf_counter() - began

    def _step(self) -> None:
        self._optimizer.zero_grad()
        with self._autocast:
            loss = self._network(input_ids=self._tokens_BT, labels=self._tokens_BT).loss
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self.losses.append(loss.detach())


# Measures the throughput of a training in several processes, each with the batch of one
# --------------------------------------------------------------------------------------
# Each number of processes is a run of `mptui run --nproc-per-node`, in alternating rounds as of an
# ablation.

PROCESSES = "processes"
"""The key of a variant that is no setting: its number of processes."""
_WARM_UP_STEPS = 6
"""Steps that don't count, and a few more to measure at least."""
_NAME = "scaling"


def variants(sizes: Sequence[int], batch_size: int) -> list[Variant]:
    """Return a variant for each number of processes; the first is compared with."""
    return [
        Variant(
            str(size),
            "1 process" if size == 1 else f"{size} processes",
            {PROCESSES: size, "training.batch_size": size * batch_size},
            None if number == 0 else str(sizes[0]),
        )
        for number, size in enumerate(sizes)
    ]


class GroupMeasurer:
    """Measures runs in several processes.

    Args:
        words: Flags of `mptui run`, but for its batch size.
        environ: Environment of the runs.
        step_s: Expected seconds of a step.
    """

    def __init__(self, words: Sequence[str], environ: Mapping[str, str], step_s: float) -> None:
        self._words = words
        self._environ = environ
        self._step_s = step_s

    def measure(self, settings: Settings, effort: Effort) -> ShortRunResult:
        """Measure a variant.

        Raises:
            MeasureError: The run failed, or took too long.
        """
        steps = _WARM_UP_STEPS + max(_WARM_UP_STEPS, ceil(effort.seconds / self._step_s))
        size, batch = int(str(settings[PROCESSES])), int(str(settings["training.batch_size"]))
        flags = ["--batch-size", batch, "--max-steps", steps, "--epochs", steps, "--nproc-per-node", size]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            flags += ["--runs-dir", folder, "--name", _NAME, "--quiet"]
            command = mptui_command("run", *self._words, *map(str, flags))
            try:
                ended = subprocess.run(  # noqa: S603 - our own program
                    command,
                    env=dict(self._environ),
                    capture_output=True,
                    text=True,
                    timeout=effort.limit_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise MeasureError(f"no result within {effort.limit_s:.0f} s") from None
            if ended.returncode:
                lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
                fault = next((line for line in lines if line.startswith("mptui: ")), lines[-1])
                raise MeasureError(fault.removeprefix("mptui: "), ended.returncode)
            summary = json.loads(Path(folder, _NAME, SUMMARY).read_text())
        if not summary["samples_per_second"]:
            raise MeasureError(NOT_MEASURED)
        return ShortRunResult(
            span=SampleSpan(batch * steps, batch * steps / summary["samples_per_second"]),
            peak_bytes=peak_bytes(summary),
            first_step_s=summary["time"]["first_step_s"],
            loss=None,
            wait=summary["time"]["data_wait_fraction"] or 0.0,
        )


def efficiency(lab: AblationRun, row: Row) -> float | None:
    """Return the throughput of each process, as a fraction of that in the first row."""
    over = lab.over_baseline(row)
    first, size = (int(str(each.variant.settings[PROCESSES])) for each in (lab.rows[0], row))
    return None if over is None else over.value * first / size


def data_wait(row: Row) -> float | None:
    """Return the mean fraction of time that steps waited for data."""
    return sum(each.wait for each in row.rounds) / len(row.rounds) if row.rounds else None
