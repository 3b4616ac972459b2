"""Takes processes, machines, precision and GPUs of a run from a configuration of Hugging Face Accelerate."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mptui.errors import ConfigError
from mptui.lab.doctor.accelerate_config import Accelerate
from mptui.lab.doctor.config_files.read import read_config_file
from mptui.lab.doctor.config_files.values import Value

_FOLLOWED = frozenset(
    {"num_processes", "num_machines", "main_process_ip", "main_process_port", "mixed_precision"}
    | {"gpu_ids", "use_cpu", "distributed_type", "same_network", "main_training_function", "rdzv_backend"}
)
"""Keys that are followed, or that say nothing about a run of mptui."""

_NEUTRAL = (False, None, 0, "", "no", "NO", "LOCAL_MACHINE")
"""Values that ask for nothing."""

_DATA_PARALLEL = frozenset({"NO", "MULTI_GPU", "MULTI_CPU", "MULTI_XPU"})
_PRECISIONS = {"no": "fp32", "fp32": "fp32", "fp16": "fp16", "bf16": "bf16"}


def _is_count(value: Value) -> bool:
    return not isinstance(value, bool) and str(value).isdecimal() and 0 < int(str(value)[:7]) < 10**6


_GPU_IDS = re.compile(r"all|\s*\d{1,4}\s*(,\s*\d{1,4}\s*)*")

_CHECKED: tuple[tuple[str, str, Callable[[Value], bool]], ...] = (
    ("num_processes", "a number of processes", _is_count),
    ("num_machines", "a number of machines", _is_count),
    ("gpu_ids", "GPUs by number, with commas, or all", lambda value: bool(_GPU_IDS.fullmatch(str(value)))),
    ("use_cpu", "true or false", lambda value: isinstance(value, bool)),
)
"""Keys of which a value that can't be read is refused: what it is to be, and whether it is."""


@dataclass(frozen=True, slots=True)
class AccelerateLaunch:
    """What a file asks for.

    Attributes:
        flags: Flags of `mptui run` with their values.
        notes: What can't be followed, a sentence each.
    """

    flags: dict[str, str | int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_accelerate_launch(path: Path) -> AccelerateLaunch:
    """Read a configuration as `accelerate config` writes it.

    Raises:
        ConfigError: It can't be read, is empty, has a value that says nothing, or its processes don't fit its
            machines.
    """
    accelerate = Accelerate(read_config_file(path))
    _check_values(accelerate)
    flags: dict[str, str | int] = {}
    machines, each = _processes(accelerate)
    if each is not None:
        flags["nproc_per_node"] = str(each)
    if machines > 1:
        flags |= {"nnodes": machines, "rdzv_endpoint": _endpoint(accelerate)}
    if (device := _device(accelerate, each or 1)) is not None:
        flags["device"] = device
    precision = accelerate.precision if accelerate.setting("mixed_precision") else None
    if precision in _PRECISIONS:
        flags["precision"] = _PRECISIONS[precision]
    return AccelerateLaunch(flags, list(_not_followed(accelerate)))


def _check_values(accelerate: Accelerate) -> None:
    """Check the values that say how many processes run, and on what: a guess would train with others.

    Raises:
        ConfigError: One is not of its kind, or there are none.
    """
    settings = accelerate.settings
    if not settings.values:
        raise ConfigError(f"{settings.path}: no settings", hint="write the file with: accelerate config")
    for key, what, is_one in _CHECKED:
        setting = accelerate.setting(key)
        if setting is not None and setting.value is not None and not is_one(setting.value):
            raise ConfigError(
                f"{settings.location(setting)}: {settings.written(setting)}: not {what}",
                hint=f"correct {key}, or write the file with: accelerate config",
            )


def _processes(accelerate: Accelerate) -> tuple[int, int | None]:
    """Return the number of machines, and of processes on each."""
    found = accelerate.setting("num_machines")
    machines = found.value if found is not None and isinstance(found.value, int) and found.value > 1 else 1
    processes = accelerate.processes
    if processes is not None and processes % machines:
        raise ConfigError(
            f"{accelerate.settings.path}: num_processes: {processes} on num_machines: {machines}",
            hint="give each machine the same number of processes",
        )
    return machines, None if processes is None else processes // machines


def _endpoint(accelerate: Accelerate) -> str:
    host, port = accelerate.setting("main_process_ip"), accelerate.setting("main_process_port")
    if host is None or not host.value:
        raise ConfigError(
            f"{accelerate.settings.path}: several machines without main_process_ip",
            hint="add main_process_ip and main_process_port",
        )
    return f"{host.value}:{port.value if port is not None and port.value else 29500}"


def _device(accelerate: Accelerate, processes: int) -> str | None:
    on_cpu = accelerate.setting("use_cpu")
    if accelerate.distributed_type == "MULTI_CPU" or (on_cpu is not None and on_cpu.value is True):
        return "cpu"
    named = accelerate.gpu_ids
    if not named:
        return None
    return ",".join(map(str, named)) if len(named) > 1 and processes > 1 else f"cuda:{named[0]}"


def _not_followed(accelerate: Accelerate) -> Iterator[str]:
    settings, seen = accelerate.settings, set()
    for setting in settings.values:
        key = setting.keys[0]
        if key in _FOLLOWED or key in seen or setting.value in _NEUTRAL:
            continue
        seen.add(key)
        yield f"{settings.location(setting)}: {key} is not followed"
    kind, precision = accelerate.setting("distributed_type"), accelerate.setting("mixed_precision")
    if kind is not None and accelerate.distributed_type not in _DATA_PARALLEL:
        shards = "; memory.shard = true shares the weights as FSDP does" if "FSDP" in str(kind.value) else ""
        told = f"{settings.location(kind)}: {settings.written(kind)}"
        yield f"{told}: DistributedDataParallel is used instead{shards}"
    if precision is not None and accelerate.precision not in _PRECISIONS:
        yield f"{settings.location(precision)}: {settings.written(precision)} is not followed"
