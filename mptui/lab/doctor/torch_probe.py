"""Tests torch in a separate process, so that an import that crashes or hangs is only a finding.

The child reports torch's devices and trains a convolution on each.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mptui.hardware.torch_view import TorchDevice, TorchView, read_torch
from mptui.processes.child import exit_code_name, start
from mptui.text import clean

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
