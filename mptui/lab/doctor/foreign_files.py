"""Reads a configuration of Hugging Face Accelerate and checks whether Accelerate accepts it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mptui.hardware.advice import choose_precision
from mptui.hardware.devices import Device, Machine
from mptui.lab.doctor.config_files.values import ConfigFile, ConfigValue
from mptui.lab.doctor.findings import Area, Finding, advice, error
from mptui.lab.doctor.training_config import Said, as_format, as_number

AREA: Area = "two configurations"
_DISTRIBUTED = {
    *("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_MUSA", "MULTI_SDAA", "MULTI_XPU"),
    *("MULTI_HPU", "DEEPSPEED", "FSDP", "XLA", "TPU", "MEGATRON_LM", "MPS"),
}


def usual_place(environ: Mapping[str, str]) -> Path:
    """Return the path that `accelerate config` writes to; it may not exist."""
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = environ.get("HF_HOME") or f"{cache}/huggingface"
    return Path(os.path.expanduser(home)) / "accelerate" / "default_config.yaml"  # noqa: PTH111 - no user, no error


@dataclass(frozen=True, slots=True)
class Accelerate:
    """An accelerate file; the settings below are at its top level."""

    settings: ConfigFile

    def setting(self, *keys: str) -> ConfigValue | None:
        """Return a value by its keys; of a duplicate key the last one, as in Accelerate."""
        return next((s for s in reversed(self.settings.values) if s.keys == keys), None)

    @property
    def precision(self) -> Said | None:
        """The format in `mixed_precision`; "no" if it is missing, None if it is unknown."""
        found = self.setting("mixed_precision")
        if found is None:
            old = self.setting("fp16")
            return "fp16" if old is not None and old.value is True else "no"
        return as_format(found.value) if found.value is not None else "no"

    @property
    def distributed_type(self) -> str:
        """NO, MULTI_GPU, and so on; NO if it is missing."""
        found = self.setting("distributed_type")
        return "NO" if found is None or found.value is False else str(found.value)

    @property
    def gpu_ids(self) -> list[int] | None:
        """The GPUs by number; None for all, or if they are not given."""
        found = self.setting("gpu_ids")
        text = "all" if found is None or found.value is None else str(found.value)
        parts = [part.strip() for part in text.split(",")]
        return [int(part) for part in parts if part.isdecimal() and len(part) < 5] if text != "all" else None

    @property
    def processes(self) -> int | None:
        """Number of processes over all machines."""
        found = self.setting("num_processes")
        number = None if found is None else as_number(found.value)
        return int(number) if number is not None and 0 < number < 1e6 else None


def check_accelerate(accelerate: Accelerate, machine: Machine) -> list[Finding]:
    """Check an accelerate file alone and against this machine."""
    devices = [device for device in machine.devices if device.kind != "cpu"]
    found = [*_unquoted(accelerate), *_distributed(accelerate), *_gpus(accelerate, len(devices))]
    return [*found, *_unsuited(accelerate, devices)]


def _unsuited(accelerate: Accelerate, devices: list[Device]) -> list[Finding]:
    """Check for a precision that the GPU doesn't support."""
    setting, said = accelerate.setting("mixed_precision"), accelerate.precision
    if setting is None or not devices or said not in {"fp16", "bf16"}:
        return []
    choice = choose_precision("bf16" if said == "bf16" else "fp16", devices[0])
    if choice.warning is None:
        return []
    settings, suits = accelerate.settings, choose_precision("auto", devices[0]).used
    what = f"{settings.location(setting)}: {settings.written(setting)}: {choice.reason} ({devices[0].name})"
    fix = settings.corrected(setting, "'no'" if suits == "fp32" else suits)
    return [advice(AREA, "mixed_precision", what, f"write `{fix}`")]


def _unquoted(accelerate: Accelerate) -> list[Finding]:
    """YAML reads a bare no as false, which Accelerate refuses."""
    settings = accelerate.settings
    found = []
    for name, value in (("distributed_type", "'NO'"), ("mixed_precision", "'no'")):
        setting = accelerate.setting(name)
        if setting is not None and setting.value is False:
            found.append(
                error(
                    AREA,
                    name,
                    f"{settings.location(setting)}: {settings.written(setting)} is read as false",
                    f"write it in quotes: `{settings.corrected(setting, value)}`",
                )
            )
    return found


def _distributed(accelerate: Accelerate) -> list[Finding]:
    settings, kind = accelerate.settings, accelerate.distributed_type
    setting = accelerate.setting("distributed_type")
    if setting is None:
        return [
            error(
                AREA, "distributed_type", f"{settings.path}: no distributed_type", "run `accelerate config`"
            )
        ]
    if setting.value is False:
        return []  # reported as unquoted
    if kind not in _DISTRIBUTED:
        return [
            error(
                AREA,
                "distributed_type",
                f"{settings.location(setting)}: {settings.written(setting)} is not known to Accelerate",
                f"write `{settings.corrected(setting, 'MULTI_GPU')}` for several GPUs, else `'NO'`",
            )
        ]
    several = (accelerate.processes or 1) > 1 or len(accelerate.gpu_ids or ()) > 1
    if kind == "NO" and several:
        return [
            error(
                AREA,
                "distributed_type",
                f"{settings.location(setting)}: {settings.written(setting)}, with several processes or GPUs",
                f"write `{settings.corrected(setting, 'MULTI_GPU')}`, or num_processes: 1 and one of gpu_ids",
            )
        ]
    return []


def _gpus(accelerate: Accelerate, gpus: int) -> list[Finding]:
    named, processes, setting = accelerate.gpu_ids, accelerate.processes, accelerate.setting("gpu_ids")
    if setting is None or named is None:
        return []
    settings = accelerate.settings
    place = f"{settings.location(setting)}: {settings.written(setting)}"
    if not named:
        return [error(AREA, "gpu_ids", f"{place}: names no GPU", "write numbers with commas, or all")]
    found = []
    machines = accelerate.setting("num_machines")
    if processes is not None and processes != len(named) and (machines is None or machines.value == 1):
        tell = error if processes > len(named) else advice
        found.append(
            tell(
                AREA,
                "num_processes",
                f"{place}: {len(named)} GPUs for num_processes: {processes}",
                f"write num_processes: {len(named)}, one for each GPU",
            )
        )
    if missing := [number for number in named if number >= gpus]:
        # without any GPU, the file is most likely for another machine
        tell = error if gpus else advice
        found.append(
            tell(
                AREA,
                "gpu_ids",
                f"{place}: this machine has {gpus or 'no'} GPUs; there is no GPU {missing[0]}",
                f"use GPUs from 0 to {gpus - 1}" if gpus else "run it on a machine with GPUs",
            )
        )
    return found
