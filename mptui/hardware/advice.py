"""What suits a device: the precision, with its reason, and the settings to begin with."""

from dataclasses import dataclass, field

from mptui.config.schema import PrecisionMode
from mptui.hardware.devices import Device
from mptui.hardware.formats import Support
from mptui.hardware.host import usable_cpus

GIB = 1024**3

_LARGE_GIB = 38  # a 40 GB card tells a little less
_SMALL_GIB = 7.5
_MAX_WORKERS = 16

_WEAKNESS: dict[Support, str] = {
    "memory-only": "saves memory and no time here: there are no Tensor Cores",
    "unreliable": "is known to give NaN in convolutions on this chip, which has no Tensor Cores",
    "slow": "runs at 1/64 of fp32's rate here",
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

    `batch_range` is the lowest and highest sensible batch for a ResNet-50 at 224 pixels, on a CPU for a
    ResNet-18 at 64. `workers` are processes that decode images.
    """

    precision: PrecisionMode
    reason: str
    grad_scaler: bool
    batch_range: tuple[int, int]
    profile: str
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
    why = f"{requested} {_WEAKNESS[support]}"
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
    return "fp32", f"fp16 {_WEAKNESS[fp16]}"


def recommend(device: Device, cpus: int | None = None) -> Recommendation:
    """Say what to begin with on `device`, with `cpus` for it (default: those that this process may use)."""
    cpus = usable_cpus() if cpus is None else cpus
    choice = choose_precision("auto", device)
    return Recommendation(
        precision=choice.used,
        reason=choice.reason,
        grad_scaler=choice.grad_scaler,
        batch_range=_batch_range(device, choice.used),
        profile=_profile(device, choice.used),
        workers=min(2, cpus // 2) if device.kind == "cpu" else default_workers(cpus),
        notes=_notes(device),
    )


def default_workers(cpus: int) -> int:
    """Processes that decode images: all CPUs but the one that drives the device, and no more than help."""
    return max(0, min(_MAX_WORKERS, cpus - 1))


def _batch_range(device: Device, precision: PrecisionMode) -> tuple[int, int]:
    """The usual range of the class of device, lowered to what fits its free memory."""
    if device.kind == "cpu":
        return 32, 64
    total = device.memory_total
    if precision == "fp32":
        low, high = 16, 32
    elif precision == "fp16":
        low, high = 32, 64
    else:
        low, high = (128, 256) if total is not None and total >= _LARGE_GIB * GIB else (64, 128)
    free = total if device.memory_free is None else device.memory_free
    if free is None:
        return low, high
    fits = max(1, free * (4 if precision == "fp32" else 8) // GIB)
    high = min(high, 1 << (fits.bit_length() - 1))
    return max(1, min(low, high // 2)), high


def _profile(device: Device, precision: PrecisionMode) -> str:
    if device.kind != "cpu" and device.memory_total is not None and device.memory_total < _SMALL_GIB * GIB:
        return "memory-limited"
    return "stable" if precision == "fp32" else "fast"


def _notes(device: Device) -> list[str]:
    notes = list(device.notes)
    if device.native.get("tf32") == "native":
        notes.append("TF32 speeds up what stays in fp32; it is on unless precision.tf32 = false.")
    if device.native.get("fp8") == "native":
        notes.append("fp8 only helps Linear layers: nothing for a ResNet or a convolutional U-Net.")
    if device.kind == "mps":
        notes.append("On an Apple GPU neither channels_last nor compile is used.")
    return notes
