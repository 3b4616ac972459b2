"""Checks the host: processors, memory, shared memory, limits, disk, environment variables."""

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from mptui.hardware.advice import GIB
from mptui.hardware.host import Host
from mptui.lab.doctor.findings import DISK, Finding, advice, error, ok

LEAST_FILES = 4096
"""File descriptors: some ten per worker, and those of the files being read, with a margin."""
LEAST_SHM = GIB
_LITTLE_MEMORY = 2 * GIB
_LITTLE_DISK, _NO_DISK = 10 * GIB, GIB
_UNLIMITED = resource.RLIM_INFINITY
_LEAST_LOCKED = 64 << 20

_SLOWING = {
    "CUDA_LAUNCH_BLOCKING": "waits for each kernel",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "allocates each tensor through the driver",
    "TORCH_USE_CUDA_DSA": "enables assertions in kernels",
    "NCCL_P2P_DISABLE": "GPUs communicate through the host",
}


def check_processors(host: Host) -> list[Finding]:
    """Check how many processors this process may use."""
    what = f"{host.cpus_usable} of {host.cores_logical} processors, {host.name}"
    if host.cpus_usable == 1 and host.cores_logical > 1:
        do = "give the job more processors: decoding and training share this one"
        return [advice("machine", "processors", what, do)]
    return [ok("machine", "processors", what)]


def check_memory(host: Host) -> list[Finding]:
    """Check the memory that this process may use: the machine's, or its control group's."""
    machine = psutil.virtual_memory().total
    limited = f" of {machine / GIB:.1f} (its control group's limit)" if host.memory_total < machine else ""
    what = f"{host.memory_total / GIB:.1f} GiB{limited}, {host.memory_free / GIB:.1f} free"
    if host.memory_free < _LITTLE_MEMORY:
        do = "end other processes, raise the limit of the job, or use fewer workers with --workers"
        return [advice("machine", "memory", what, do)]
    return [ok("machine", "memory", what)]


def check_shm(root: Path) -> list[Finding]:
    """Check shared memory, which NCCL and torch's DataLoader need; mptui's workers don't use it."""
    do = "start the container with --shm-size=8g or --ipc=host; NCCL and torch's DataLoader need it"
    place = root / "dev" / "shm"
    try:
        size = shutil.disk_usage(place)
    except OSError as fault:
        return [advice("machine", "shm", f"{place}: {fault.strerror}", do)]
    what = f"{place}: {size.total / GIB:.2f} GiB, {size.free / GIB:.2f} free"
    if size.total < LEAST_SHM:
        return [advice("machine", "shm", what, do)]
    if size.free < LEAST_SHM // 4:
        return [advice("machine", "shm", what, f"remove files of ended processes: ls -l {place}")]
    return [ok("machine", "shm", what)]


def check_limits(root: Path) -> list[Finding]:
    """Check limits of the shell: open files, and locked memory if there is InfiniBand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    what = f"open files: {_limit(soft)}"
    if soft != _UNLIMITED and soft < min(LEAST_FILES, 1024):
        do = f"ulimit -n {_limit(min(hard, LEAST_FILES) if hard != _UNLIMITED else LEAST_FILES)}"
        found = [advice("machine", "nofile", f"{what}, few for many workers", do)]
    else:
        found = [ok("machine", "nofile", what)]
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    infiniband = any((root / "sys/class/infiniband").glob("*"))
    said = "unlimited" if locked == _UNLIMITED else f"{locked >> 10:,} KiB"
    if infiniband and locked != _UNLIMITED and locked < _LEAST_LOCKED:
        do = "ulimit -l unlimited, or docker run --ulimit memlock=-1"
        found.append(advice("machine", "memlock", f"locked memory: {said}, too little for InfiniBand", do))
    else:
        found.append(ok("machine", "memlock", f"locked memory: {said}"))
    return found


def _limit(number: int) -> str:
    return "unlimited" if number == _UNLIMITED else str(number)


def check_disk(runs_dir: Path) -> list[Finding]:
    """Check free space for runs, and, with an unnamed file, that the folder is writable."""
    place = runs_dir.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0")
        free = shutil.disk_usage(place).free
    except OSError as fault:
        what = f"{runs_dir}: runs can't be written there: {fault.strerror}"
        return [
            error("machine", DISK, what, "choose another place with --runs-dir, or make this one writable")
        ]
    what = f"{runs_dir}: {free / GIB:.1f} GiB free"
    do = "free disk space, or choose another disk with --runs-dir"
    if free < _NO_DISK:
        return [error("machine", DISK, what, do)]
    return [advice("machine", DISK, what, do) if free < _LITTLE_DISK else ok("machine", DISK, what)]


def check_variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check for variables that slow down every run, often left over from debugging."""
    for name, effect in _SLOWING.items():
        if environ.get(name, "0") not in {"", "0"}:
            yield advice("machine", "variables", f"{name}={environ[name]}: {effect}", f"unset {name}")
    threads = environ.get("OMP_NUM_THREADS", "")
    cpus = os.cpu_count() or 1
    if threads.isdecimal() and int(threads) > cpus:
        what = f"OMP_NUM_THREADS={threads}: more threads than the {cpus} processors"
        yield advice("machine", "variables", what, f"export OMP_NUM_THREADS={cpus}, or unset it")
