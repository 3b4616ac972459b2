"""The layers that a configuration lets compute in fp32: `precision.fp32_layers`."""

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch

from mptui.engine.precision.fp32_region import Fp32Region
from mptui.errors import ConfigError


def layers_named(model: torch.nn.Module, patterns: Sequence[str]) -> list[str]:
    """The modules that `patterns` name, outermost first, without those inside another of them.

    Args:
        model: The network.
        patterns: Names of modules as in the network; `*` stands for any text, dots too.

    Raises:
        ConfigError: A pattern names no module.
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
    """Let the layers that `patterns` name compute in fp32, whatever the network does, until they are removed.

    Raises:
        ConfigError: A pattern names no module.
    """
    return [Fp32Region(model, name, device) for name in layers_named(model, patterns)]
