"""The names of the networks, read without importing torchvision, which takes seconds."""

import importlib.util
import re
from pathlib import Path

_REGISTERED = re.compile(r"^@register_model\([^)\n]*\)\n(?:@[^\n]*\n)*def (\w+)\(", re.MULTILINE)


def model_names() -> list[str]:
    """All names that `mptui.models.zoo` builds, in alphabetical order; torchvision's from its source."""
    return sorted([*_classifiers(), "unet", "diffusion_unet"])


def _classifiers() -> list[str]:
    spec = importlib.util.find_spec("torchvision")
    folders = [] if spec is None else spec.submodule_search_locations or []
    files = [file for folder in folders for file in Path(folder, "models").glob("*.py")]
    return [name for file in files for name in _REGISTERED.findall(file.read_text(encoding="utf-8"))]
