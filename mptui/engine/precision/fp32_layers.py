"""Layers that are configured to compute in fp32: `precision.fp32_layers`."""

from collections.abc import Sequence

import torch

from mptui.engine.precision.fp32_region import Fp32Region
from mptui.models.layers import layers_named


def apply_fp32_layers(
    model: torch.nn.Module, patterns: Sequence[str], device: torch.device
) -> list[Fp32Region]:
    """Make the layers that match `patterns` compute in fp32, until the result is removed.

    Raises:
        ConfigError: A pattern matches no module.
    """
    names = layers_named(model, patterns, key="precision.fp32_layers")
    return [Fp32Region(model, name, device) for name in names]
