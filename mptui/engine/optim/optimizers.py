"""The parameter groups of an optimizer: weight decay and learning rate of each parameter."""

import re
from typing import Any

import torch
from torch import nn

from mptui.config.schema import TrainingConfig
from mptui.engine.ranks.shards import shard_of
from mptui.models.layers import layers_of
from mptui.models.weights import head_names
from mptui.registry.optimizers import OPTIMIZERS, Groups

_TOKEN_OR_POSITION = re.compile(
    r"(?:^|[._])(?:cls|class|dist|reg|register|mask)_tokens?$"
    r"|(?:^|[._])pos(?:ition(?:al)?)?_emb(?:ed(?:ding)?s?)?(?:\.weight)?$"
    r"|(?:^|[._])relative_position_bias_table$"
)


def parameter_groups(model: torch.nn.Module, training: TrainingConfig) -> Groups:
    """Return the trainable parameters in groups, those with weight decay first; of sharded ones the shards.

    A group is a dictionary as `torch.optim` takes it, with `params`, `weight_decay` (0 where `decays` is
    False: see `undecayed`) and `lr_scale`: the factor of the learning rate, 1 in a run without `layer_decay`
    and `head_lr_scale`. For an optimizer that has a way of its own with them, those with `hidden` are
    matrices of hidden layers.
    """
    scales = lr_scales(model, training)
    apart = OPTIMIZERS[training.optimizer].matrix_state_bytes is not None
    hidden = hidden_matrices(model) if apart else set()
    spared = undecayed(model)
    groups: dict[tuple[bool, float, bool], dict[str, Any]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            decays, scale = parameter not in spared, scales.get(parameter, 1.0)
            decay = training.weight_decay if decays else 0.0
            is_hidden = parameter in hidden
            empty = {
                "params": [],
                "weight_decay": decay,
                "decays": decays,
                "lr_scale": scale,
                "hidden": is_hidden,
            }
            groups.setdefault((decays, scale, is_hidden), empty)["params"].append(shard_of(parameter))
    return [groups[key] for key in sorted(groups, key=lambda key: not key[0])]


def lr_scales(model: torch.nn.Module, training: TrainingConfig) -> dict[torch.nn.Parameter, float]:
    """Return the factor of the learning rate of each parameter; one that is missing has the factor 1.

    Layer-wise decay as in ELECTRA (Clark et al. 2020) and BEiT (Bao et al. 2022): of L layers (`layers_of`),
    the last one, the head, has the full rate, and layer n of 0 … L - 1 the factor layer_decay^(L - 1 - n).
    """
    scales: dict[torch.nn.Parameter, float] = {}
    if training.layer_decay != 1.0:
        for above, layer in enumerate(reversed(layers_of(model))):
            scales |= dict.fromkeys(layer, training.layer_decay**above)
    if training.layer_decay != 1.0 or training.head_lr_scale != 1.0:
        scales |= dict.fromkeys(head_parameters(model), training.head_lr_scale)
    return scales


def head_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters of the layers that output the logits."""
    return [p for name in head_names(model) for p in model.get_submodule(name).parameters()]


def hidden_matrices(model: torch.nn.Module) -> set[nn.Parameter]:
    """Return the weights of linear layers, attention and convolutions, but for those of the head."""
    kinds = nn.Linear, nn.MultiheadAttention, nn.modules.conv._ConvNd
    found = {
        parameter
        for module in model.modules()
        if isinstance(module, kinds)
        for parameter in module.parameters(recurse=False)
        if parameter.ndim >= 2
    }
    return found.difference(head_parameters(model)) if found else found


def undecayed(model: torch.nn.Module) -> set[nn.Parameter]:
    """Return the parameters without weight decay.

    They are norms and biases, which have fewer than two axes; class tokens and position embeddings, by their
    usual names; and what a module names by `no_weight_decay()`, as the networks of timm do.
    """
    spared = {p for name, p in model.named_parameters() if p.ndim < 2 or _TOKEN_OR_POSITION.search(name)}
    for module in model.modules():
        names = getattr(module, "no_weight_decay", None)
        if callable(names):
            own = dict(module.named_parameters(remove_duplicate=False))
            spared.update(own[name] for name in names() if name in own)
    return spared
