"""Activation checkpointing (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost").

Of each block of a network only the inputs are kept for the backward pass, which computes the rest again, by
torch.utils.checkpoint: with the same random numbers and the same autocast state, so that gradients are those
without it, to the bit. BatchNorm counts each batch once.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from mptui.errors import ConfigError
from mptui.models.wrapped_forward import Forward, WrappedForward

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_LEAST_MATRICES = (2, 1)
"""Matrices or kernels in a block. Blocks of one, such as a convolution with its norm, are taken where there
are none of two: of them less is saved."""


def recomputing() -> bool:
    """Whether this is a forward pass inside a backward pass: one that repeats another."""
    return torch._C._current_graph_task_id() != -1


def apply_activation_checkpointing(model: nn.Module) -> list[WrappedForward]:
    """Recompute the blocks of `model` in the backward pass, until the result is removed.

    Raises:
        ConfigError: As `blocks_of`.
    """
    blocks = blocks_of(model)
    wrapped = [WrappedForward(block, _checkpointed) for block in blocks]
    norms = [norm for block in blocks for norm in block.modules() if isinstance(norm, _NormBase)]
    return wrapped + [WrappedForward(norm, partial(_counted_once, norm)) for norm in norms]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a network, such as residual or transformer blocks, in the order of registration.

    A block is a module of several layers whose class the network has more than once, or a member of an
    `nn.ModuleList`. Stages are opened: they have several blocks of one class.

    Raises:
        ConfigError: It has none.
    """
    kinds = Counter(type(module) for module in model.modules())

    def blocks_in(module: nn.Module, least: int) -> Iterator[nn.Module]:
        for part in _parts(module, least):
            if isinstance(part, _CONTAINERS) or (kinds[type(part)] > 1 and not _is_stage(part, least)):
                yield part
            else:
                yield from blocks_in(part, least)

    found = (list(blocks_in(model, least)) for least in _LEAST_MATRICES)
    blocks = next(filter(None, found), [])
    if not blocks:
        raise ConfigError(
            "memory.activation_checkpointing: this network has no repeated blocks to recompute",
            hint="set it to false, or use another network; memory.micro_batch saves memory, too",
        )
    return blocks


def _is_stage(module: nn.Module, least: int) -> bool:
    kinds = Counter(type(part) for part in _parts(module, least))
    return max(kinds.values(), default=0) > 1


def _parts(module: nn.Module, least: int) -> Iterator[nn.Module]:
    """Yield the modules of `least` layers or more directly inside `module`, or inside its containers."""
    for child in module.children():
        matrices = sum(parameter.ndim > 1 for parameter in child.parameters())
        if matrices < least or not any(child.children()):
            continue
        inner = list(_parts(child, least)) if isinstance(child, _CONTAINERS) else [child]
        # e.g. a level of a U-Net
        yield from inner or ([child] if isinstance(module, nn.ModuleList) else [])


def _checkpointed(forward: Forward) -> Forward:
    def keep_inputs(*inputs: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the block takes and gives
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        return checkpoint(forward, *inputs, use_reentrant=False, **named)

    return keep_inputs


def _counted_once(norm: _NormBase, forward: Forward) -> Forward:
    def count_once(images: torch.Tensor) -> Any:  # noqa: ANN401 - as of the module
        # compiled code is functional: what it computes again it does not store again
        if torch.compiler.is_compiling() or not recomputing():
            return forward(images)
        momentum, count = norm.momentum, norm.num_batches_tracked
        norm.momentum, norm.num_batches_tracked = 0.0, None if count is None else count.clone()
        try:
            return forward(images)
        finally:
            norm.momentum, norm.num_batches_tracked = momentum, count

    return count_once
