"""Checks the driver, torch and each device."""

from collections.abc import Iterator
from pathlib import Path

from mptui.events import HARMFUL_THROTTLING
from mptui.hardware.advice import recommend
from mptui.hardware.describe import device_title, memory_words, others_on, start_with, torch_line
from mptui.hardware.devices import Device, Machine
from mptui.hardware.nvidia.gpus import NvmlReport
from mptui.lab.doctor.findings import Finding, advice, error, ok, sentence
from mptui.lab.doctor.torch_probe import VISION, Probed

OLDEST_TORCH = (2, 10)
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_HOT_C = 88
_HELD = 0.05


def check_driver(report: NvmlReport, root: Path) -> list[Finding]:
    """Check NVIDIA's driver, and whether it sees all cards of the machine."""
    cards = nvidia_cards(root)
    if report.problem is None:
        cuda = f", CUDA {report.cuda[0]}.{report.cuda[1]}" if report.cuda else ""
        found = [ok("machine", "driver", f"NVIDIA driver {report.driver}{cuda}, {len(report.gpus)} GPU(s)")]
        lost = [gpu for gpu in report.gpus if gpu.problem]
        found += [sentence("machine", "gpu", "error", f"{gpu.name}, {gpu.problem}") for gpu in lost]
        if cards > len(report.gpus):
            what = f"the machine has {cards} NVIDIA cards, but the driver sees {len(report.gpus)}"
            do = "check the kernel log (dmesg) for the missing card, and its power and seating"
            found.append(advice("machine", "driver", what, do))
        return found
    if not cards and report.driver is None and "no NVIDIA driver" in report.problem:
        return [ok("machine", "driver", "no NVIDIA card and no driver")]
    return [sentence("machine", "driver", "error" if cards else "advice", report.problem, _INSTALL)]


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
        return [error("machine", "torch", str(view.problem), do)]
    found = [ok("machine", "torch", str(torch_line(machine)))]
    if _version(view.version) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        what = f"torch {view.version} is older than {oldest}, and unsafe on weights of others"
        found = [error("machine", "torch", what, "pip install --upgrade torch torchvision")]
    if view.problem:
        found.append(
            error("machine", "torch", view.problem, "see python -c 'import torch; torch.cuda.init()'")
        )
    if VISION in probed.failures:
        do = "install matching versions: pip install --upgrade torch torchvision"
        found.append(error("machine", VISION, f"torchvision can't be used: {probed.failures[VISION]}", do))
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
    return [*found, *(sentence("machine", "gpu", "advice", note, "see: mptui detect") for note in notes)]


def _check_device(device: Device, machine: Machine, failures: dict[str, str]) -> Iterator[Finding]:
    title = device_title(device)
    if not device.usable:
        yield sentence("machine", device.torch_name, "error", f"{title} can't be used, {device.notes[0]}")
        return
    if device.torch_name in failures:
        do = "update the driver, or install a build of torch that suits it (https://pytorch.org/get-started)"
        yield error("machine", device.torch_name, f"{title}: {failures[device.torch_name]}", do)
        return
    advised = recommend(device, machine.host.cpus_usable)
    named = ", ".join(filter(None, (title, memory_words(device, 1))))
    what = f"{named}; {advised.precision}: {advised.reason}; {', '.join(start_with(advised))}"
    yield ok("machine", device.torch_name, what)
    yield from _state(device, title)


def _state(device: Device, title: str) -> Iterator[Finding]:
    """Report what slows a GPU down at present."""
    gpu = device.gpu
    if gpu is None:
        return
    held = sum(process.memory or 0 for process in gpu.processes or ())
    if gpu.memory_total and held > _HELD * gpu.memory_total:
        do = "wait for that process, end it, or choose another GPU with --device cuda:N"
        yield advice("machine", device.torch_name, f"{title}: {others_on(gpu.processes)}", do)
    if harmful := [reason for reason in gpu.throttle or () if reason in HARMFUL_THROTTLING]:
        what = f"{title}: its clocks are throttled ({', '.join(harmful)})"
        yield advice("machine", device.torch_name, what, "check its cooling and power supply")
    if gpu.temperature_c is not None and gpu.temperature_c >= _HOT_C:
        what = f"{title}: {gpu.temperature_c:.0f} °C"
        yield advice("machine", device.torch_name, what, "check its cooling; it slows down when it is hotter")
