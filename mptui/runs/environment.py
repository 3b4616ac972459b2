"""environment.json: with what a run was made, for whoever must repeat it."""

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from mptui.hardware.devices import Device
from mptui.runs.directory import VERSION

_PACKAGES = ("mptui", "torch", "torchvision", "numpy", "pillow", "safetensors", "textual", "nvidia-ml-py")
_SECRET = re.compile(
    r"(?i)([\w-]*(?:token|secret|password|passwd|api[_-]?key|credential)[\w-]*)([=: ]+)(\S+)"
)


def describe_environment(device: Device, driver: str | None) -> dict[str, Any]:
    """Versions, device, git commit and command line; values that look like secrets are left out."""
    import torch

    return {
        "version": VERSION,
        "mptui": _version("mptui"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "cuda": torch.version.cuda,
        "driver": driver,
        "device": {
            "kind": device.kind,
            "name": device.name,
            "architecture": device.architecture,
            "memory_total": device.memory_total,
        },
        "processors": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "git_commit": _git_commit(Path.cwd()),
        "command": redact(" ".join(sys.argv)),
        "directory": str(Path.cwd()),
    }


def redact(text: str) -> str:
    """Replace the values of what is named like a secret."""
    return _SECRET.sub(r"\1\2…", text)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit(folder: Path) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607 - the person's own git
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
