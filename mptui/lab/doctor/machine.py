"""Checks the driver, torch, the host and the login session."""

import json
import locale
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as NotIniError
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from mptui.events import HARMFUL_THROTTLING
from mptui.hardware.advice import GIB, recommend
from mptui.hardware.describe import device_title, memory_words, others_on, start_with, torch_line
from mptui.hardware.devices import Device, Machine
from mptui.hardware.host import Host
from mptui.hardware.nvml import NvmlReport
from mptui.hardware.torch_view import TorchDevice, TorchView, read_torch
from mptui.lab.doctor.findings import DISK, Finding, advice, error, ok, sentence
from mptui.processes.start import exit_code_name, start
from mptui.text import clean

_ok, _advice, _error = partial(ok, "machine"), partial(advice, "machine"), partial(error, "machine")

# Checks the login session: locale, terminal, and whether a run survives logout
# -----------------------------------------------------------------------------

SMALLEST = os.terminal_size((80, 24))
_LOGIND = "systemd/logind.conf"
_FOLDERS = ("usr/lib", "usr/local/lib", "run", "etc")
"""Folders of systemd's settings: later ones take precedence, and drop-ins over the main file."""
_BUSCTL = (
    *("busctl", "--system", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1"),
    *("org.freedesktop.login1.Manager", "KillUserProcesses"),
)
_PATIENCE_S = 5.0
_BUILT_IN = re.compile(r"(?m)^#KillUserProcesses=(\w+)")


def check_locale(environ: Mapping[str, str]) -> list[Finding]:
    """Check that text beyond ASCII can be shown. `environ`: the initial environment of the process."""
    variable, name = next(
        ((v, n) for v in ("LC_ALL", "LC_CTYPE", "LANG") if (n := environ.get(v))), ("LANG", "C")
    )
    do = "export LANG=C.UTF-8, and unset LC_ALL"
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, name)
    except locale.Error:
        return [_advice("locale", f"{variable}={name}: no such locale on this machine", do)]
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
    if "utf-8" not in name.lower() and "utf8" not in name.lower():
        what = f"{variable}={name}: no UTF-8, so charts are drawn in ASCII"
        return [_advice("locale", what, do)]
    return [_ok("locale", f"{variable}={name}")]


def check_terminal(environ: Mapping[str, str], size: os.terminal_size | None) -> list[Finding]:
    """Check the terminal; `size` is None without one."""
    if size is None:
        return [_ok("terminal", "no terminal; mptui run doesn't need one")]
    term = environ.get("TERM", "")
    if term in {"", "dumb"}:
        what = f"TERM={term}: mptui can't draw its screens"
        return [_advice("terminal", what, "export TERM=xterm-256color, or use mptui run")]
    colours = _colours(environ, term)
    found = [_ok("terminal", f"TERM={term}, {size.columns} x {size.lines}, {colours} colours")]
    if colours == "8":
        do = "export TERM=xterm-256color, if the terminal can; in tmux set default-terminal"
        found = [_advice("terminal", f"TERM={term}: {colours} colours", do)]
    if size.columns < SMALLEST.columns or size.lines < SMALLEST.lines:
        what = f"the terminal is {size.columns} x {size.lines}; screens need 80 x 24"
        found.append(_advice("terminal", what, "enlarge the window, or use a smaller font"))
    return found


def _colours(environ: Mapping[str, str], term: str) -> str:
    if environ.get("COLORTERM", "").lower() in {"truecolor", "24bit"}:
        return "16 million"
    direct = "direct" in term or any(name in term for name in ("kitty", "alacritty", "ghostty", "wezterm"))
    return "16 million" if direct else "256" if "256" in term else "8"


def check_logout(root: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check whether systemd ends the processes of a user at logout."""
    if not (root / "run/systemd/system").is_dir():
        yield _ok("logout", "no systemd here: a detached run outlives the login")
        return
    if not _kills(root, environ):
        yield _ok("logout", "KillUserProcesses=no: a detached run outlives the login")
        return
    if _is_outside_of_login(root):
        yield _ok("logout", "KillUserProcesses=yes, but this shell is outside the login's scope")
        return
    what = "KillUserProcesses=yes: systemd ends even a detached run when you log out"
    do = "once: loginctl enable-linger; then systemd-run --user --scope mptui run …"
    yield _advice("logout", what, do)


def _kills(root: Path, environ: Mapping[str, str]) -> bool:
    """Return KillUserProcesses from logind, or from its files if logind can't be queried."""
    answer = _asked(environ)
    if answer is not None:
        return answer
    value = "no"  # the built-in default of distributions
    for path in _files(root):
        value = _setting(path) or value
    return value.lower() in {"yes", "true", "on", "1"}


def _asked(environ: Mapping[str, str]) -> bool | None:
    try:
        answer = subprocess.run(  # noqa: S603 - fixed words, the person's own systemd
            _BUSCTL,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"b true": True, "b false": False}.get(answer.stdout.strip())


def _files(root: Path) -> Iterator[Path]:
    """Yield the main file of the last folder that has one, then drop-ins by name."""
    yield from (root / folder / _LOGIND for folder in _FOLDERS)
    drop_ins = {
        path.name: path for folder in _FOLDERS for path in (root / folder / f"{_LOGIND}.d").glob("*.conf")
    }
    yield from (drop_ins[name] for name in sorted(drop_ins))


def _setting(path: Path) -> str | None:
    """Return the value in a file, also from a comment: systemd's files show defaults as comments."""
    parser = ConfigParser(strict=False, interpolation=None, allow_no_value=True)
    try:
        text = path.read_text(errors="replace")
        parser.read_string(text)
    except (OSError, NotIniError):
        return None
    built_in = _BUILT_IN.search(text)
    return parser.get("Login", "KillUserProcesses", fallback=built_in[1] if built_in else None)


def _is_outside_of_login(root: Path) -> bool:
    """Whether this process is in a scope of the user manager, not of the session, which ends at logout."""
    try:
        groups = (root / "proc/self/cgroup").read_text(errors="replace")
    except OSError:
        return False
    return "/user@" in groups and "/session-" not in groups


# Checks the host: processors, memory, shared memory, limits, disk, environment variables
# ---------------------------------------------------------------------------------------

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
        return [_advice("processors", what, do)]
    return [_ok("processors", what)]


def check_memory(host: Host) -> list[Finding]:
    """Check the memory that this process may use: the machine's, or its control group's."""
    machine = psutil.virtual_memory().total
    limited = f" of {machine / GIB:.1f} (its control group's limit)" if host.memory_total < machine else ""
    what = f"{host.memory_total / GIB:.1f} GiB{limited}, {host.memory_free / GIB:.1f} free"
    if host.memory_free < _LITTLE_MEMORY:
        do = "end other processes, raise the limit of the job, or use fewer workers with --workers"
        return [_advice("memory", what, do)]
    return [_ok("memory", what)]


def check_shm(root: Path) -> list[Finding]:
    """Check shared memory, which NCCL and torch's DataLoader need; mptui's workers don't use it."""
    do = "start the container with --shm-size=8g or --ipc=host; NCCL and torch's DataLoader need it"
    place = root / "dev" / "shm"
    try:
        size = shutil.disk_usage(place)
    except OSError as fault:
        return [_advice("shm", f"{place}: {fault.strerror}", do)]
    what = f"{place}: {size.total / GIB:.2f} GiB, {size.free / GIB:.2f} free"
    if size.total < LEAST_SHM:
        return [_advice("shm", what, do)]
    if size.free < LEAST_SHM // 4:
        return [_advice("shm", what, f"remove files of ended processes: ls -l {place}")]
    return [_ok("shm", what)]


def check_limits(root: Path) -> list[Finding]:
    """Check limits of the shell: open files, and locked memory if there is InfiniBand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    what = f"open files: {_limit(soft)}"
    if soft != _UNLIMITED and soft < min(LEAST_FILES, 1024):
        do = f"ulimit -n {_limit(min(hard, LEAST_FILES) if hard != _UNLIMITED else LEAST_FILES)}"
        found = [_advice("nofile", f"{what}, few for many workers", do)]
    else:
        found = [_ok("nofile", what)]
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    infiniband = any((root / "sys/class/infiniband").glob("*"))
    said = "unlimited" if locked == _UNLIMITED else f"{locked >> 10:,} KiB"
    is_little = locked != _UNLIMITED and locked < _LEAST_LOCKED
    if infiniband and is_little:
        do = "ulimit -l unlimited, or docker run --ulimit memlock=-1"
        found.append(_advice("memlock", f"locked memory: {said}, too little for InfiniBand", do))
    else:
        found.append(_ok("memlock", f"locked memory: {said}"))
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
        return [_error(DISK, what, "choose another place with --runs-dir, or make this one writable")]
    what = f"{runs_dir}: {free / GIB:.1f} GiB free"
    do = "free disk space, or choose another disk with --runs-dir"
    if free < _NO_DISK:
        return [_error(DISK, what, do)]
    return [_advice(DISK, what, do) if free < _LITTLE_DISK else _ok(DISK, what)]


def check_variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check for variables that slow down every run, often left over from debugging."""
    for name, effect in _SLOWING.items():
        if environ.get(name, "0") not in {"", "0"}:
            yield _advice("variables", f"{name}={environ[name]}: {effect}", f"unset {name}")
    threads = environ.get("OMP_NUM_THREADS", "")
    cpus = os.cpu_count() or 1
    if threads.isdecimal() and int(threads) > cpus:
        what = f"OMP_NUM_THREADS={threads}: more threads than the {cpus} processors"
        yield _advice("variables", what, f"export OMP_NUM_THREADS={cpus}, or unset it")


# Tests torch in a separate process, so that an import that crashes or hangs is only a finding
# --------------------------------------------------------------------------------------------
# The child reports torch's devices and trains a convolution on each.

TIMEOUT_S = 180.0
"""Time limit; the first import from a slow disk can take a minute."""

VISION = "torchvision"


@dataclass(frozen=True, slots=True)
class Probed:
    """torch's view of the machine, and failures by device name or `VISION`."""

    view: TorchView
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def works(self) -> bool:
        """Whether both packages can be imported."""
        return self.view.version is not None and VISION not in self.failures


def probe_torch(environ: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> Probed:
    """Test torch in a child process. Never raises because of torch."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        with start(f"{__name__}:main", env=dict(environ), **pipes) as child:
            try:
                answer, complaint = child.communicate(timeout=timeout_s)
            finally:
                child.kill()
    except subprocess.TimeoutExpired:
        return _broken(f"torch has not responded for {timeout_s:g} s")
    except OSError as error:
        return _broken(f"torch can't be tested: {error.strerror}")
    if child.returncode < 0:
        return _broken(f"torch ends its process with {exit_code_name(child.returncode)}")
    try:
        document = json.loads(answer.splitlines()[-1])
        return Probed(_view(document["view"]), document["failures"])
    except (IndexError, ValueError, KeyError, TypeError):
        said = complaint.decode(errors="replace").strip().splitlines()
        return _broken(f"torch can't be used: {said[-1] if said else 'without a message'}")


def main() -> None:
    """Print one line of JSON, in the child."""
    view = read_torch()
    failures = {}
    if view.version is not None:
        names = [_name(device) for device in view.devices if device.built_for]
        failures = {name: fault for name in (*names, "cpu") if (fault := _fault(name))}
        if fault := _fault_of_vision():
            failures[VISION] = fault
    sys.stdout.write("\n" + json.dumps({"view": asdict(view), "failures": failures}) + "\n")


def _fault(name: str) -> str | None:
    """Train a convolution on a device; return the failure, or None."""
    import torch

    try:
        device = torch.device(name)
        images = torch.ones(2, 8, 16, 16, device=device)
        layer = torch.nn.Conv2d(8, 8, 3, device=device)
        layer(images).square().mean().backward()
        assert layer.weight.grad is not None
        finite = bool(layer.weight.grad.isfinite().all())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the doctor is asked about
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return None if finite else "a convolution of ones has gradients that are not finite"


def _fault_of_vision() -> str | None:
    """Import torchvision; return the failure (usually it is built for another torch), or None."""
    try:
        import torchvision  # noqa: F401
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the doctor is asked about
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return None


def _name(device: TorchDevice) -> str:
    kind = "cuda" if device.kind == "rocm" else device.kind
    return kind if kind == "mps" else f"{kind}:{device.index}"


def _view(document: dict[str, Any]) -> TorchView:
    devices = [_device(values) for values in document.pop("devices")]
    return TorchView(**document, devices=devices)


def _device(values: dict[str, Any]) -> TorchDevice:
    capability = values.pop("capability")
    return TorchDevice(**values, capability=tuple(capability) if capability else None)


def _broken(problem: str) -> Probed:
    return Probed(TorchView(problem=clean(problem, 300)))


# Checks the driver, torch and each device
# ----------------------------------------

OLDEST_TORCH = (2, 10)
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_HOT_C = 88
_HELD = 0.05


def check_driver(report: NvmlReport, root: Path) -> list[Finding]:
    """Check NVIDIA's driver, and whether it sees all cards of the machine."""
    cards = nvidia_cards(root)
    if report.problem is None:
        cuda = f", CUDA {report.cuda[0]}.{report.cuda[1]}" if report.cuda else ""
        found = [_ok("driver", f"NVIDIA driver {report.driver}{cuda}, {len(report.gpus)} GPU(s)")]
        lost = [gpu for gpu in report.gpus if gpu.problem]
        found += [sentence("machine", "gpu", "error", f"{gpu.name}, {gpu.problem}") for gpu in lost]
        if cards > len(report.gpus):
            what = f"the machine has {cards} NVIDIA cards, but the driver sees {len(report.gpus)}"
            do = "check the kernel log (dmesg) for the missing card, and its power and seating"
            found.append(_advice("driver", what, do))
        return found
    lacks_driver = report.driver is None and "no NVIDIA driver" in report.problem
    if lacks_driver and not cards:
        return [_ok("driver", "no NVIDIA card and no driver")]
    return [sentence("machine", "driver", "error" if cards else "advice", report.problem, do=_INSTALL)]


_INSTALL = "install the driver, or give the container its GPUs (docker run --gpus all)"


def nvidia_cards(root: Path) -> int:
    """Count the NVIDIA cards on the PCI bus, without the driver."""
    return sum(_is_nvidia(device) for device in (root / "sys/bus/pci/devices").glob("*"))


def _is_nvidia(device: Path) -> bool:
    try:
        vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
    except (OSError, ValueError):
        return False
    return vendor == _NVIDIA and kind.startswith(_DISPLAY)


def check_torch(machine: Machine, probed: Probed) -> list[Finding]:
    """Check that torch and torchvision can be imported, and that torch is recent enough."""
    view = probed.view
    if view.version is None:
        do = "install it anew: pip install --force-reinstall torch torchvision"
        return [_error("torch", str(view.problem), do)]
    found = [_ok("torch", str(torch_line(machine)))]
    if _version(view.version) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        what = f"torch {view.version} is older than {oldest}, and unsafe on weights of others"
        found = [_error("torch", what, "pip install --upgrade torch torchvision")]
    if view.problem:
        found.append(_error("torch", view.problem, "see python -c 'import torch; torch.cuda.init()'"))
    if VISION in probed.failures:
        do = "install matching versions: pip install --upgrade torch torchvision"
        found.append(_error(VISION, f"torchvision can't be used: {probed.failures[VISION]}", do))
    return found


def _version(text: str) -> tuple[int, int]:
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else OLDEST_TORCH


def check_devices(machine: Machine, report: NvmlReport, probed: Probed | None) -> list[Finding]:
    """Check each device, the CPU last, and report remarks about all of them."""
    failures = probed.failures if probed else {}
    found = [finding for device in machine.devices for finding in _check_device(device, machine, failures)]
    said = {report.problem, *(f"{gpu.name}: {gpu.problem}" for gpu in report.gpus)}
    if machine.torch is not None:
        said.add(machine.torch.problem)
    notes = [note for note in machine.notes if note not in said]
    return [*found, *(sentence("machine", "gpu", "advice", note, do="see: mptui detect") for note in notes)]


def _check_device(device: Device, machine: Machine, failures: dict[str, str]) -> Iterator[Finding]:
    title = device_title(device)
    if not device.usable:
        yield sentence("machine", device.torch_name, "error", f"{title} can't be used, {device.notes[0]}")
        return
    if device.torch_name in failures:
        do = "update the driver, or install a build of torch that suits it (https://pytorch.org/get-started)"
        yield _error(device.torch_name, f"{title}: {failures[device.torch_name]}", do)
        return
    advised = recommend(device, machine.host.cpus_usable)
    named = ", ".join(filter(None, (title, memory_words(device, 1))))
    what = f"{named}; {advised.precision}: {advised.reason}; {', '.join(start_with(advised))}"
    yield _ok(device.torch_name, what)
    yield from _state(device, title)


def _state(device: Device, title: str) -> Iterator[Finding]:
    """Report what slows a GPU down at present."""
    gpu = device.gpu
    if gpu is None:
        return
    held = sum(process.memory or 0 for process in gpu.processes or ())
    if gpu.memory_total and held > _HELD * gpu.memory_total:
        do = "wait for that process, end it, or choose another GPU with --device cuda:N"
        yield _advice(device.torch_name, f"{title}: {others_on(gpu.processes)}", do)
    if harmful := [reason for reason in gpu.throttle or () if reason in HARMFUL_THROTTLING]:
        what = f"{title}: its clocks are throttled ({', '.join(harmful)})"
        yield _advice(device.torch_name, what, "check its cooling and power supply")
    if gpu.temperature_c is not None and gpu.temperature_c >= _HOT_C:
        what = f"{title}: {gpu.temperature_c:.0f} °C"
        yield _advice(device.torch_name, what, "check its cooling; it slows down when it is hotter")
