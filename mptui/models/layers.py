"""The layers of any network: by their order from the input, and by name."""

from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mptui.errors import ConfigError

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def layers_of(model: nn.Module) -> list[list[nn.Parameter]]:
    """Return the parameters of each layer, first layer first.

    A layer is a block, such as a residual or a transformer block: the outermost module of a class that the
    network has more than once. Other modules are opened, so that each convolution or linear layer outside of
    blocks is a layer, too. Norms, biases, tokens and position embeddings outside of blocks belong to the
    layer before them, and before the first matrix to the first layer: as in BEiT (Bao et al. 2022).

    The order is that in which the modules were registered.
    """
    kinds = Counter(type(module) for module in model.modules())
    layers: list[list[nn.Parameter]] = [[]]
    seen: set[nn.Parameter] = set()
    begun = False

    def add(parameters: list[nn.Parameter]) -> None:
        layers[-1].extend(p for p in parameters if p not in seen)
        seen.update(parameters)

    def visit(module: nn.Module) -> None:
        nonlocal begun
        is_block = kinds[type(module)] > 1 and type(module) not in _CONTAINERS
        if not is_block and any(module.children()):
            add(list(module.parameters(recurse=False)))
            for child in module.children():
                visit(child)
            return
        parameters = list(module.parameters())
        if any(parameter.ndim >= 2 for parameter in parameters):
            if begun:
                layers.append([])
            begun = True
        add(parameters)

    visit(model)
    return [layer for layer in layers if layer]


def layers_named(model: nn.Module, patterns: Sequence[str], *, key: str) -> list[str]:
    """Return the names of the modules that match `patterns`, without those inside another match.

    Args:
        model: The network.
        patterns: Module names; `*` matches any text, dots included.
        key: The setting that has the patterns, for the message.

    Raises:
        ConfigError: A pattern matches no module.
    """
    names = [name for name, _ in model.named_modules() if name]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = get_close_matches(pattern, names, n=1) or names[:1]
            raise ConfigError(
                f'{key}: the network has no layer "{pattern}"',
                hint=f"use names of the network's layers, such as {near[0]}" if near else "remove it",
            )
    chosen: list[str] = []
    for name in names:
        inside = any(name.startswith(f"{outer}.") for outer in chosen)
        if not inside and any(fnmatchcase(name, pattern) for pattern in patterns):
            chosen.append(name)
    return chosen


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a network has BatchNorm, whose statistics are those of a micro-batch."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def has_synchronized_norm(model: nn.Module) -> bool:
    """Whether a network has BatchNorm that normalizes by the samples of all ranks."""
    return any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a network's state by name, without extra state that is none."""
    state: dict[str, object] = model.state_dict()
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
