"""What suits a device: the precision, with its reason, and the settings to begin with."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from mptui.config.merge import resolve
from mptui.config.schema import PrecisionMode, TrainingConfig
from mptui.errors import ConfigError
from mptui.hardware.devices import Device
from mptui.hardware.formats import Support
from mptui.hardware.host import usable_cpus
from mptui.registry.tasks import DEFAULT_TASK

GIB = 1024**3

_SMALL_GIB = 7.5
_PROFILES: dict[str, str] = {"bf16": "fast", "fp16": "older-gpu", "fp32": "stable"}
_MAX_WORKERS = 16

_WEAKNESS: dict[Support, str] = {
    "memory-only": "saves memory and no time here: there are no Tensor Cores",
    "unreliable": "is known to give NaN in convolutions on this chip, which has no Tensor Cores",
    "slow": "is much slower than fp32 here",
    "emulated": "is emulated here, which is slower than fp32",
    "no": "is not there on this device",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionChoice:
    """Which precision was asked for and which is used, and why; a warning where they differ or it costs."""

    requested: PrecisionMode
    used: PrecisionMode
    reason: str
    warning: str | None
    grad_scaler: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What to begin with on a device.

    `batch_size` and `accumulate` are what `profile` sets for a classifier; None where it can't be read.
    `workers` are processes that decode images.
    """

    precision: PrecisionMode
    reason: str
    grad_scaler: bool
    profile: str
    batch_size: int | None
    accumulate: int
    workers: int
    notes: list[str] = field(default_factory=list)


def choose_precision(requested: PrecisionMode, device: Device) -> PrecisionChoice:
    """Choose the precision to train in: what suits the device (auto), or what was asked for.

    Any CPU runs fp16 and bf16 through autocast, so a request is honoured there, with a warning where it is
    slower than fp32. What a GPU lacks falls back bf16, fp16, fp32, each time with a warning.
    """
    if requested == "auto":
        return _choice("auto", *_automatic(device))
    if requested == "fp32":
        return _choice("fp32", "fp32", "asked for")
    support = device.native.get(requested)
    if support == "native":
        return _choice(requested, requested, "asked for, and native here")
    if support is None:
        return _choice(
            requested, requested, "asked for", f"it is not known what this device does in {requested}"
        )
    why = _weakness(requested, support, device)
    if device.kind == "cpu" or support in {"memory-only", "unreliable"}:
        return _choice(requested, requested, "asked for", why)
    used: PrecisionMode = "fp32"
    if requested == "bf16" and device.native.get("fp16") == "native":
        used = "fp16"
    return _choice(requested, used, why, f"{why}: training in {used}")


def measurable_precisions(device: Device) -> list[PrecisionMode]:
    """What may be measured for auto on `device`, whatever the tables say of its speed.

    Not what is known to give NaN or to lose accuracy for nothing: fp16 only where it is native, and on a CPU
    not at all.
    """
    found: list[PrecisionMode] = ["fp32"]
    if device.kind == "cpu" or device.native.get("bf16") in {"native", "emulated"}:
        found.append("bf16")
    if device.kind != "cpu" and device.native.get("fp16") == "native":
        found.append("fp16")
    return found


def _choice(
    requested: PrecisionMode, used: PrecisionMode, reason: str, warning: str | None = None
) -> PrecisionChoice:
    return PrecisionChoice(
        requested=requested, used=used, reason=reason, warning=warning, grad_scaler=used == "fp16"
    )


def _automatic(device: Device) -> tuple[PrecisionMode, str]:
    if device.native.get("bf16") == "native":
        return "bf16", "native here, and needs no loss scaling"
    if device.kind == "cpu":
        return "fp32", "this CPU has neither AMX nor AVX512-BF16, so bf16 would be slower"
    fp16 = device.native.get("fp16")
    if fp16 is None:
        return "fp32", "it is not known what this device can do"
    if fp16 == "native":
        return "fp16", "native here, with loss scaling; bf16 is not"
    return "fp32", _weakness("fp16", fp16, device)


def _weakness(precision: str, support: Support, device: Device) -> str:
    """What speaks against a precision on `device`, with the factor and its source where that is known."""
    cost = device.costs.get(precision)
    known = f": {cost.factor} ({cost.source})" if cost else ""
    return f"{precision} {_WEAKNESS[support]}{known}"


def recommend(
    device: Device, cpus: int | None = None, environ: Mapping[str, str] = os.environ
) -> Recommendation:
    """Say what to begin with on `device`, with `cpus` for it (default: those that this process may use)."""
    cpus = usable_cpus() if cpus is None else cpus
    choice = choose_precision("auto", device)
    profile = suggested_profile(device)
    training = _training_of(profile, environ)
    return Recommendation(
        precision=choice.used,
        reason=choice.reason,
        grad_scaler=choice.grad_scaler,
        profile=profile,
        batch_size=training.batch_size if training else None,
        accumulate=training.accumulate if training else 1,
        workers=min(2, cpus // 2) if device.kind == "cpu" else default_workers(cpus),
        notes=_notes(device),
    )


def default_workers(cpus: int) -> int:
    """Processes that decode images: all CPUs but the one that drives the device, and no more than help."""
    return max(0, min(_MAX_WORKERS, cpus - 1))


def batch_words(batch_size: int, accumulate: int) -> str:
    """Write a batch: `64`, or `16 x 4` where 4 of 16 samples make one optimizer step."""
    return f"{batch_size} x {accumulate}" if accumulate > 1 else f"{batch_size}"


def suggested_profile(device: Device) -> str:
    """Name the built-in profile to begin with on `device`: by the memory that is free, then by precision."""
    memory = device.memory_total if device.memory_free is None else device.memory_free
    if device.kind != "cpu" and memory is not None and memory < _SMALL_GIB * GIB:
        return "memory-limited"
    return _PROFILES[choose_precision("auto", device).used]


def _training_of(profile: str, environ: Mapping[str, str]) -> TrainingConfig | None:
    """What a run of a ResNet would take from `profile`; None where one of that name can't be read."""
    try:
        return resolve(profile, task=DEFAULT_TASK, flags={}, sets=(), environ=environ).config.training
    except ConfigError:
        return None


def _notes(device: Device) -> list[str]:
    notes = list(device.notes)
    notes += [f"{name} takes {cost.factor}: {cost.source}." for name, cost in device.costs.items()]
    if device.native.get("tf32") == "native":
        notes.append("TF32 speeds up what stays in fp32; it is on unless precision.tf32 = false.")
    if device.native.get("fp8") == "native":
        notes.append("fp8 only helps Linear layers: nothing for a ResNet or a convolutional U-Net.")
    if device.kind == "mps":
        notes.append("On an Apple GPU neither channels_last nor compile is used.")
    return notes
