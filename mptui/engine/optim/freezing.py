"""Frozen layers, as `training.freeze` names them: not trained, and unchanged to the bit.

A frozen weight has no gradient, and so no place in the optimizer, the gradient norm and the EMA. BatchNorm of
a frozen layer stays in evaluation mode: it normalises by its running statistics, which don't move (as
`trainable = False` in Keras, https://keras.io/guides/transfer_learning). Dropout stays active.
"""

from collections.abc import Sequence

import torch

from mptui.config.base_tables import Freeze
from mptui.config.schema import TrainingConfig
from mptui.engine.optim.param_groups import head_parameters
from mptui.errors import ConfigError
from mptui.models.layers import layers_named


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
            if isinstance(norm, torch.nn.modules.batchnorm._NormBase) and norm.training
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
