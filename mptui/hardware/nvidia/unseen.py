"""GPUs that NVML reports and CUDA does not show: what keeps each from being a device."""

from collections.abc import Sequence

from mptui.hardware.nvidia.gpus import GpuInfo, MigSlice, NvmlReport

VISIBLE = "CUDA_VISIBLE_DEVICES"
_HIDE_ALL = {"", "-1", "NoDevFiles", "none"}
"""Values with which people, and SLURM, hide all GPUs."""


def hides_all(visible_devices: str | None) -> bool:
    """Whether a value of CUDA_VISIBLE_DEVICES hides all GPUs on purpose."""
    return visible_devices is not None and visible_devices.strip() in _HIDE_ALL


def hidden_gpus(
    report: NvmlReport, seen: Sequence[tuple[GpuInfo, MigSlice | None]], visible_devices: str | None
) -> str | None:
    """Return how many GPUs a value of CUDA_VISIBLE_DEVICES hides, as a sentence; None if it hides none."""
    hidden = len(report.gpus) - len({gpu.index for gpu, _ in seen})
    if visible_devices is None or hidden == 0:
        return None
    return f"{VISIBLE}={visible_devices} hides {hidden} of {len(report.gpus)} GPUs."


def unseen_gpus(
    report: NvmlReport, seen: Sequence[tuple[GpuInfo, MigSlice | None]], visible_devices: str | None
) -> list[str]:
    """Return why GPUs are no devices though nobody hides them: a sentence each, the remedy after a colon."""
    faults = [f"{gpu.name}: {gpu.problem}" for gpu in report.gpus if gpu.problem]
    faults += [
        f"{gpu.name} (GPU {gpu.index}) has MIG on and no slice: make one with nvidia-smi mig -cgi 0 -C, "
        "or turn MIG off."
        for gpu in report.gpus
        if gpu.mig and not gpu.slices
    ]
    if visible_devices is not None and not hides_all(visible_devices) and report.gpus and not seen:
        here = ", ".join(str(gpu.index) for gpu in report.gpus)
        faults.append(
            f"{VISIBLE}={visible_devices} names no GPU of this machine, which has {here}: change or unset it."
        )
    return faults
