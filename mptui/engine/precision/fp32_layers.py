"""Layers that are configured to compute in fp32: `precision.fp32_layers`."""

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch

from mptui.engine.precision.fp32_region import Fp32Region
from mptui.errors import ConfigError


def layers_named(model: torch.nn.Module, patterns: Sequence[str]) -> list[str]:
    """Return the names of the modules that match `patterns`, without those inside another match.

    Args:
        model: The network.
        patterns: Module names; `*` matches any text, dots included.

    Raises:
        ConfigError: A pattern matches no module.
    """
    names = [name for name, _ in model.named_modules() if name]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = get_close_matches(pattern, names, n=1) or names[:1]
            raise ConfigError(
                f'precision.fp32_layers: the network has no layer "{pattern}"',
                hint=f"use names of the network's layers, such as {near[0]}" if near else "remove it",
            )
    chosen: list[str] = []
    for name in names:
        inside = any(name.startswith(f"{outer}.") for outer in chosen)
        if not inside and any(fnmatchcase(name, pattern) for pattern in patterns):
            chosen.append(name)
    return chosen


def apply_fp32_layers(
    model: torch.nn.Module, patterns: Sequence[str], device: torch.device
) -> list[Fp32Region]:
    """Make the layers that match `patterns` compute in fp32, until the result is removed.

    Raises:
        ConfigError: A pattern matches no module.
    """
    return [Fp32Region(model, name, device) for name in layers_named(model, patterns)]
