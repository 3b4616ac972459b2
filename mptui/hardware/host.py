"""The host's processor and memory, how much this process may use, and the processes on its GPUs."""

import ctypes
import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from mptui.text import clean

# The host's processor and memory, and how much of both this process may use
# --------------------------------------------------------------------------
# A container sees all cores and memory of its machine, but its control group limits it. The files of
# control groups of both versions are read, up to the root.

_TOLD_FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_fp16")
_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The processor and memory (bytes); `cpus_usable`: CPUs that affinity and control groups allow."""

    name: str
    cores_physical: int | None
    cores_logical: int
    cpus_usable: int
    memory_total: int
    memory_free: int
    features: list[str]


def read_host(root: Path = Path("/")) -> Host:
    """Describe the host; `root` contains /proc and /sys."""
    import psutil  # not needed for the first frame

    name, flags = _cpuinfo(root)
    total, free = host_memory(root)
    return Host(
        name=name,
        cores_physical=psutil.cpu_count(logical=False),
        cores_logical=psutil.cpu_count() or 1,
        cpus_usable=usable_cpus(root),
        memory_total=total,
        memory_free=free,
        features=[feature for feature in _TOLD_FEATURES if feature in flags],
    )


def usable_cpus(root: Path = Path("/")) -> int:
    """Count the CPUs that this process may use at the same time; at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    cpus = len(affinity(0)) if affinity else os.cpu_count() or 1
    quotas = [quota for folder in _groups(root, "cpu") if (quota := _cpu_quota(folder)) is not None]
    return max(1, min([cpus, *(math.ceil(quota) for quota in quotas)]))


def host_memory(root: Path = Path("/")) -> tuple[int, int]:
    """Return the memory that this process may use, and how much of it is free, in bytes."""
    import psutil

    machine = psutil.virtual_memory()
    total, free = machine.total, machine.available
    for folder in _groups(root, "memory"):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        if limit is not None and limit < _UNLIMITED_BYTES:
            total = min(total, limit)
            free = min(free, max(0, limit - _memory_in_use(folder)))
    return total, free


def given_environ() -> Mapping[str, str]:
    """Return the initial environment of the process: Python itself sets LC_CTYPE in a C locale."""
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return os.environ
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in (e.partition(b"=") for e in entries)}


def _memory_in_use(folder: Path) -> int:
    """Return the memory in use of a control group in bytes, without its file cache, which can be dropped."""
    used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
    statistics = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
    cache = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
    return max(0, used - int(cache))


def _cpu_quota(folder: Path) -> float | None:
    """Return the CPUs that a control group may use; None: no limit."""
    quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
    if quota.isdigit() and period.isdigit():
        return int(quota) / int(period)
    old_quota, old_period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return old_quota / old_period if old_quota and old_period else None


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups, up to the root of each hierarchy.

    A container often sees its group as the root of the hierarchy while its path is that on the machine, so
    missing folders are skipped.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        hierarchy = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = hierarchy / path.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(hierarchy))


def _cpuinfo(root: Path) -> tuple[str, set[str]]:
    entries: dict[str, str] = {}
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        entries.setdefault(key.strip(), value.strip())
    name = entries.get("model name") or platform.processor() or platform.machine()
    return name, set(entries.get("flags", "").split())


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


# Users and programs of processes on a GPU
# ----------------------------------------
# Inside a container NVML gives the PIDs of the machine, which are those of other processes there: a process
# is looked up only if it runs the program that NVML names.

_LONGEST = 60


def user_and_command(pid: int, nvml_name: str | None) -> tuple[str | None, str | None]:
    """Return the user and the program of a process, safe to show; None for what is unknown.

    Args:
        pid: Its PID, as NVML has it.
        nvml_name: Its program, as NVML has it.
    """
    if not nvml_name:
        return None, None
    import psutil

    program = clean(PurePath(nvml_name).name, _LONGEST)
    try:
        process = psutil.Process(pid)
        arguments, user = process.cmdline(), process.username()
    except (psutil.Error, OSError, UnicodeError):
        return None, program
    if not arguments or not _is_same(arguments[0], nvml_name):
        return None, program
    return clean(user, _LONGEST), clean(program_words(arguments), _LONGEST)


def program_words(arguments: Sequence[str]) -> str:
    """Return the program of a command line, and the script or module that Python runs.

    All other arguments are left out: they may hold passwords and tokens.
    """
    program = PurePath(arguments[0]).name
    if not program.startswith("python"):
        return program
    rest = iter(arguments[1:])
    for word in rest:
        if word == "-m":
            return f"{program} -m {next(rest, '')}".rstrip()
        if word == "-c":
            break
        if word in {"-W", "-X"}:
            next(rest, None)
        elif not word.startswith("-"):
            return f"{program} {PurePath(word).name}"
    return program


def _is_same(program: str, nvml_name: str) -> bool:
    """Whether NVML's name, a path with or without arguments, is that of `program`."""
    name = PurePath(program).name
    return name in {PurePath(nvml_name).name, PurePath(nvml_name.partition(" ")[0]).name}


# Configures the C library's allocator
# ------------------------------------

# of <malloc.h>; see mallopt(3)
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_NEVER = 2**31 - 1
_LARGEST = 1 << 30
_LARGEST_OF_OLD = 32 << 20  # an older glibc refuses more


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for later allocations; does nothing with other C libraries.

    On a CPU, activations of some MiB each are freed and allocated again at every step. By default, glibc
    returns them to the kernel, and each step has thousands of page faults: a sixth of its time for a U-Net
    at 128 px. Call this before threads are started: each has its own heap, which glibc always returns.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_TRIM_THRESHOLD, _NEVER)
    for size in (_LARGEST_OF_OLD, _LARGEST):
        mallopt(_MMAP_THRESHOLD, size)
    mallopt(_ARENA_MAX, 1)
