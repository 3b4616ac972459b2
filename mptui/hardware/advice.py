"""Recommends precision and initial settings for a device, with reasons."""

import os
from dataclasses import dataclass, field

from mptui.config.resolve import resolve
from mptui.config.schema import PrecisionMode, TrainingConfig
from mptui.errors import ConfigError
from mptui.hardware.devices import Device
from mptui.hardware.formats import Support
from mptui.hardware.host import usable_cpus
from mptui.registry.names import LOSS_SCALED
from mptui.registry.tasks import DEFAULT_TASK

GIB = 1024**3

_SMALL_GIB = 7.5
_SMALL_PROFILE = "memory-limited"
_PROFILES: dict[str, str] = {"bf16": "fast", "fp16": "older-gpu", "fp32": "stable"}
_MAX_WORKERS = 16

_BATCHES: dict[str, tuple[int, int]] = {"bf16": (64, 128), "fp16": (32, 64)}
_BATCHES_OF_DATA_CENTRES = (128, 256)
"""Least and most images in a batch by class of GPU: guide 1 of docs/guides.md."""
_DATA_CENTRE_GIB = 39
RESNET50_BYTES = (862 << 20, 44.8 * 2**20)
"""Memory of training ResNet-50 at 224 px in 16 bits, by `engine.memory`: fixed, and of each image."""

_WEAKNESS: dict[Support, str] = {
    "memory-only": "saves memory but no time here, without Tensor Cores",
    "unreliable": "is known to give NaN in convolutions on this chip, which has no Tensor Cores",
    "slow": "is much slower than fp32 here",
    "emulated": "is emulated here, which is slower than fp32",
    "no": "is not supported by this device",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionChoice:
    """The requested and the used precision, the reason, and a warning if they differ or it is slow."""

    requested: PrecisionMode
    used: PrecisionMode
    reason: str
    warning: str | None
    grad_scaler: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Initial settings for a device.

    `batch_size` and `accumulate` are those of `profile` for a classifier; None if it can't be read.
    `batch_range`: the least and the most that suit the device (`suited_batches`); None if not known.
    `workers`: processes that decode images.
    """

    precision: PrecisionMode
    reason: str
    grad_scaler: bool
    profile: str
    batch_size: int | None
    accumulate: int
    batch_range: tuple[int, int] | None
    workers: int
    notes: list[str] = field(default_factory=list)


def choose_precision(requested: PrecisionMode, device: Device) -> PrecisionChoice:
    """Choose the precision to train in: the best for the device (auto), or the requested one.

    Any CPU runs fp16 and bf16 through autocast, so a request is honoured, with a warning if it is slower than
    fp32. A format that a GPU lacks falls back, in the order bf16, fp16, fp32, with a warning.
    """
    if requested == "auto":
        return _choice("auto", *_automatic(device))
    if requested == "fp32":
        return _choice("fp32", "fp32", "requested")
    support = device.native.get(requested)
    if support == "native":
        return _choice(requested, requested, "requested, and native here")
    if support is None:
        return _choice(
            requested, requested, "requested", f"the support of this device for {requested} is unknown"
        )
    why = _weakness(requested, support, device)
    if device.kind == "cpu" or support in {"memory-only", "unreliable"}:
        return _choice(requested, requested, "requested", why)
    used: PrecisionMode = "fp32"
    if requested == "bf16" and device.native.get("fp16") == "native":
        used = "fp16"
    return _choice(requested, used, why, f"{why}: training in {used}")


def measurable_precisions(device: Device) -> list[PrecisionMode]:
    """Return the precisions that auto may measure on `device`, regardless of the speed tables.

    Excludes formats known to give NaN or to lose accuracy without gain: fp16 on CPUs, where it is not native,
    and beside native bf16, whose Tensor Core rate is the same in NVIDIA's data sheets (A100, H100) and which
    needs no loss scaling.
    """
    if device.kind == "cpu":
        return ["fp32", "bf16"]
    found: list[PrecisionMode] = ["fp32"]
    bf16 = device.native.get("bf16")
    if bf16 in {"native", "emulated"}:
        found.append("bf16")
    if device.native.get("fp16") == "native" and bf16 != "native":
        found.append("fp16")
    return found


def _choice(
    requested: PrecisionMode, used: PrecisionMode, reason: str, warning: str | None = None
) -> PrecisionChoice:
    return PrecisionChoice(
        requested=requested, used=used, reason=reason, warning=warning, grad_scaler=used in LOSS_SCALED
    )


def _automatic(device: Device) -> tuple[PrecisionMode, str]:
    if device.native.get("bf16") == "native":
        return "bf16", "native here, without loss scaling"
    if device.kind == "cpu":
        return "fp32", "bf16 is slower without AMX or AVX512-BF16"
    fp16 = device.native.get("fp16")
    if fp16 is None:
        return "fp32", "the capabilities of this device are unknown"
    if fp16 == "native":
        return "fp16", "native here, with loss scaling; bf16 is not"
    return "fp32", _weakness("fp16", fp16, device)


def _weakness(precision: str, support: Support, device: Device) -> str:
    """Describe the drawback of a precision on `device`, with factor and source if known."""
    cost = device.costs.get(precision)
    known = f": {cost.factor} ({cost.source})" if cost else ""
    return f"{precision} {_WEAKNESS[support]}{known}"


def recommend(device: Device, cpus: int | None = None) -> Recommendation:
    """Recommend settings for `device` with `cpus` CPUs (default: those that this process may use)."""
    cpus = usable_cpus() if cpus is None else cpus
    choice = choose_precision("auto", device)
    profile = suggested_profile(device)
    training = _training_of(profile)
    return Recommendation(
        precision=choice.used,
        reason=choice.reason,
        grad_scaler=choice.grad_scaler,
        profile=profile,
        batch_size=training.batch_size if training else None,
        accumulate=training.accumulate if training else 1,
        batch_range=None if profile == _SMALL_PROFILE else suited_batches(device),
        workers=min(2, cpus // 2) if device.kind == "cpu" else default_workers(cpus),
        notes=_notes(device),
    )


def default_workers(cpus: int) -> int:
    """Return the number of decoding processes: all CPUs but one for the device, up to a useful maximum."""
    return max(0, min(_MAX_WORKERS, cpus - 1))


def batch_words(batch_size: int, accumulate: int) -> str:
    """Format a batch: `64`, or `16 x 4` for 4 micro-batches of 16 per optimizer step."""
    return f"{batch_size} x {accumulate}" if accumulate > 1 else f"{batch_size}"


def suggested_profile(device: Device) -> str:
    """Return the built-in profile for `device`, by free memory, then by precision."""
    memory = _memory(device)
    is_small = memory is not None and memory < _SMALL_GIB * GIB
    if device.kind != "cpu" and is_small:
        return _SMALL_PROFILE
    return _PROFILES[choose_precision("auto", device).used]


def suited_batches(device: Device) -> tuple[int, int] | None:
    """Return the least and the most images in a batch of ResNet-50 at 224 px that suit a GPU and fit in it.

    None for other devices, for GPUs without Tensor Cores, and if the least doesn't fit.
    """
    memory, used = _memory(device), choose_precision("auto", device).used
    has_tensor_cores = device.kind in {"cuda", "rocm"} and used in _BATCHES
    if not has_tensor_cores or memory is None:
        return None
    large = used == "bf16" and (device.memory_total or 0) >= _DATA_CENTRE_GIB * GIB
    least, most = _BATCHES_OF_DATA_CENTRES if large else _BATCHES[used]
    fixed, per_image = RESNET50_BYTES
    while fixed + most * per_image > memory and most > least:
        most //= 2
    return (least, most) if fixed + most * per_image <= memory else None


def _memory(device: Device) -> int | None:
    return device.memory_total if device.memory_free is None else device.memory_free


def _training_of(profile: str) -> TrainingConfig | None:
    """Return the training settings of `profile` for a ResNet; None if the profile can't be read."""
    try:
        return resolve(profile, task=DEFAULT_TASK, flags={}, sets=(), environ=os.environ).config.training
    except ConfigError:
        return None


def _notes(device: Device) -> list[str]:
    notes = list(device.notes)
    notes += [f"{name} takes {cost.factor}: {cost.source}." for name, cost in device.costs.items()]
    if device.native.get("tf32") == "native":
        notes.append("TF32 speeds up what stays in fp32; it is on unless precision.matmul = highest.")
    if device.native.get("fp8") == "native":
        notes.append("fp8 only helps Linear layers: nothing for a ResNet or a convolutional U-Net.")
    if device.kind == "mps":
        notes.append("On an Apple GPU neither channels_last nor compile is used.")
    return notes
