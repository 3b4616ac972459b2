"""Builds the optimizer of a network: groups of parameters, frozen layers, and the state of each."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from mptui.config.schema import Freeze, TrainingConfig
from mptui.engine.optim.fused import FusedOptimizer
from mptui.engine.ranks.group import as_shard, shard_of
from mptui.errors import ConfigError
from mptui.models.layers import layers_named, layers_of
from mptui.models.weights import head_names
from mptui.registry.optimizers import OPTIMIZERS, Groups
from mptui.torch_private import ConvNd, NormBase

# Frozen layers, as `training.freeze` names them: not trained, and unchanged to the bit
# -------------------------------------------------------------------------------------
# A frozen weight has no gradient, and so no place in the optimizer, the gradient norm and the EMA.
# BatchNorm of a frozen layer stays in evaluation mode: it normalises by its running statistics, which don't
# move (as `trainable = False` in Keras, https://keras.io/guides/transfer_learning). Dropout stays active.


def frozen_in(training: TrainingConfig, epoch: int) -> Freeze:
    """Return what is frozen in `epoch` (from 0): "backbone", the named layers, or None."""
    if isinstance(training.freeze, int):
        return "backbone" if epoch < training.freeze else None
    return training.freeze


def frozen_at_last(training: TrainingConfig) -> Freeze:
    """Return what is frozen in the last epoch, in which a run takes the most memory."""
    return frozen_in(training, training.epochs - 1)


def frozen_parameters(model: torch.nn.Module, frozen: Freeze) -> list[torch.nn.Parameter]:
    """Return the parameters that are frozen, without those that the network itself does not train.

    Raises:
        ConfigError: There is no such layer, or no weights are left to train.
    """
    within = {p for module in _modules(model, frozen) for p in module.parameters()}
    if frozen == "backbone":
        within -= set(head_parameters(model))
    trainable = [p for p in model.parameters() if p.requires_grad]
    if trainable and within.issuperset(trainable):
        raise ConfigError(
            "training.freeze: no weights are left to train",
            hint='name fewer layers, or use "backbone": all but the head',
        )
    return [p for p in trainable if p in within]


class FrozenLayers:
    """Layers that are frozen until `thaw`; all others of the network are put into training mode.

    Parts that the network itself has put into evaluation mode stay so: its author wants, for example, a
    BatchNorm whose statistics don't move. A network that is wholly in evaluation mode has asked for nothing.

    Args:
        model: The network.
        frozen: From `frozen_in`.

    Attributes:
        kept_in_eval: Names of these parts, without those inside another one.

    Raises:
        ConfigError: There is no such layer, or no weights are left to train.
    """

    def __init__(self, model: torch.nn.Module, frozen: Freeze) -> None:
        self.frozen = frozen
        self._parameters = frozen_parameters(model, frozen)
        for parameter in self._parameters:
            parameter.requires_grad = False
            parameter.grad = None
        in_eval = {name: m for name, m in model.named_modules() if not m.training} if model.training else {}
        self.kept_in_eval = [name for name in in_eval if name.rpartition(".")[0] not in in_eval]
        model.train()
        for module in in_eval.values():
            module.training = False
        self._norms = [
            norm
            for module in _modules(model, frozen)
            for norm in module.modules()
            if isinstance(norm, NormBase) and norm.training
        ]
        for norm in self._norms:
            norm.eval()

    def thaw(self) -> None:
        """Train the weights again, and the statistics of their BatchNorm."""
        for parameter in self._parameters:
            parameter.requires_grad = True
        for norm in self._norms:
            norm.train()


def _modules(model: torch.nn.Module, frozen: Freeze) -> Sequence[torch.nn.Module]:
    if frozen == "backbone":
        return [model]
    names = frozen if isinstance(frozen, list) else []
    return [model.get_submodule(name) for name in layers_named(model, names, key="training.freeze")]


# Builds the optimizer of a run, and updates its hyperparameters after a switch to another profile
# ------------------------------------------------------------------------------------------------


def build_optimizer(
    model: torch.nn.Module, training: TrainingConfig, lr: torch.Tensor, *, fused: bool
) -> torch.optim.Optimizer:
    """Build the optimizer named by `training.optimizer`, over the model's trainable parameters.

    Args:
        model: The network, on its device.
        training: Optimizer name and hyperparameters.
        lr: 0-dim float32 tensor on the device that a fused optimizer reads at each step.
        fused: One kernel updates all parameters, and skips the update if `found_inf` is set.
    """
    groups = parameter_groups(model, training)
    return OPTIMIZERS[training.optimizer].build(groups, lr, fused=fused, **_settings(training))


def continued(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, training: TrainingConfig, lr: torch.Tensor
) -> torch.optim.Optimizer:
    """Return one of the weights that are trained now, with the state of `optimizer`.

    The arguments are those of `build_optimizer`. Weights that were not trained have no state yet.
    """
    other = build_optimizer(model, training, lr, fused=isinstance(optimizer, FusedOptimizer))
    state = OptimizerState(training.optimizer, model, optimizer).state_dict()
    OptimizerState(training.optimizer, model, other).load_state_dict(state)
    return other


def trained_rates(model: torch.nn.Module, training: TrainingConfig) -> dict[torch.Tensor, float]:
    """Return the factor of the learning rate of each trained weight; an optimizer is for these."""
    return {p: group["lr_scale"] for group in parameter_groups(model, training) for p in group["params"]}


def take_settings(optimizer: torch.optim.Optimizer, training: TrainingConfig) -> None:
    """Give `optimizer` the settings of `training` but for its name; one that is new has them."""
    for group in optimizer.param_groups:
        if group["decays"]:
            group["weight_decay"] = training.weight_decay
        group.update(_settings(training))


def shrink_momentum(optimizer: torch.optim.Optimizer, name: str, factor: float) -> None:
    """Multiply the momentum of the optimizer called `name` by `factor`, if it has one."""
    momentum = OPTIMIZERS[name].momentum
    for state in optimizer.state.values():
        if momentum is not None and isinstance(buffer := state.get(momentum), torch.Tensor):
            buffer.mul_(factor)


def supports_fused(name: str, device: torch.device) -> bool:
    """Whether the optimizer called `name` has a fused kernel for this kind of device."""
    return OPTIMIZERS[name].has_fused and device.type in {"cuda", "cpu", "xpu", "mps"}


def _settings(training: TrainingConfig) -> dict[str, Any]:
    """Return the settings of [training] that the optimizer uses, by key, or its own values of those unset."""
    own = OPTIMIZERS[training.optimizer].settings
    given = {key: getattr(training, key) for key in own}
    return {key: own[key] if value is None else value for key, value in given.items()}


# Optimizer state keyed by parameter names
# ----------------------------------------


class OptimizerState:
    """State of a torch optimizer, independent of the order of its parameters.

    Args:
        name: The optimizer's name in the configuration; state of another one is refused.
        model: The model, which gives the parameter names.
        optimizer: An optimizer of the parameters of `model`.
    """

    def __init__(self, name: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._name = name
        self._model = model
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return the name under `optimizer`, and each tensor under `KEY/PARAMETER`."""
        named = {shard_of(p): (name, p) for name, p in self._model.named_parameters()}
        tensors = {
            f"{key}/{named[p][0]}": as_shard(value, named[p][1])
            for p, state in self._optimizer.state.items()
            for key, value in state.items()
            if isinstance(value, torch.Tensor)
        }
        return {"optimizer": self._name, **tensors}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Copy the tensors into the optimizer's state, without those of weights that it does not train.

        Raises:
            RuntimeError: The state is of another optimizer.
            KeyError: The state is of another model.
        """
        if state_dict["optimizer"] != self._name:
            raise RuntimeError(f"the optimizer is {state_dict['optimizer']}, not {self._name}")
        parameters = {name: shard_of(p) for name, p in self._model.named_parameters()}
        trained = {p for group in self._optimizer.param_groups for p in group["params"]}
        states: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        for full_name, value in state_dict.items():
            if isinstance(value, torch.Tensor):
                key, _, name = full_name.partition("/")
                if (parameter := parameters[name]) in trained:
                    states.setdefault(parameter, {})[key] = shard_of(value)
        if isinstance(self._optimizer, FusedOptimizer):
            self._optimizer.load(states)
            return
        self._optimizer.state.clear()  # torch's optimizers allocate state at the first step
        for parameter, state in states.items():
            self._optimizer.state[parameter] = {
                key: _like(parameter, value).copy_(value) for key, value in state.items()
            }


def _like(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(parameter) if value.ndim else torch.empty((), device=parameter.device)


# The parameter groups of an optimizer: weight decay and learning rate of each parameter
# --------------------------------------------------------------------------------------

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
    kinds = nn.Linear, nn.MultiheadAttention, ConvNd
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
