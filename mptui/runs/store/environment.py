"""environment.json: the software and hardware of a run, to reproduce it."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from mptui.hardware.devices import Device
from mptui.io.atomic import Guard
from mptui.runs.store.directory import ENVIRONMENT, VERSION, write_json

_PACKAGES = ("mptui", "torch", "torchvision", "numpy", "pillow", "safetensors", "textual", "nvidia-ml-py")
_WORDS = r"(?:token|secret|password|passwd|api[_-]?key|access[_-]?key|credential)"
_SECRET_NAME = re.compile(_WORDS, re.IGNORECASE)
_NAMED = re.compile(
    rf"(--[\w-]*{_WORDS}[\w-]* +|[\w-]*{_WORDS}[\w-]*[\"']? *[=:] *)([^\s,;]+)", re.IGNORECASE
)
_IN_ADDRESS = re.compile(r"(\w://[^\s/:@]*:)[^\s/@]+@")
_SHORTEST = 8
"""Length below which a value is too common to be treated as a secret."""


def write_environment(run: Path, device: Device, driver: str | None, guard: Guard) -> None:
    """Write environment.json, as `describe_environment` returns it; raises as `write_json`."""
    write_json(run / ENVIRONMENT, describe_environment(device, driver), guard)


def describe_environment(device: Device, driver: str | None) -> dict[str, Any]:
    """Return versions, device, git commit and command line, without values that look like secrets."""
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
        "directory": redact(str(Path.cwd())),
    }


def redact(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Remove secrets: values named like one, passwords in URLs, values of such variables."""
    for name, value in environ.items():
        if len(value) >= _SHORTEST and _SECRET_NAME.search(name):
            text = text.replace(value, "…")
    return _IN_ADDRESS.sub(r"\1…@", _NAMED.sub(r"\1…", text))


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit(folder: Path) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607 - the user's git
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
