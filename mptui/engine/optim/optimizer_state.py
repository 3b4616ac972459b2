"""Optimizer state keyed by parameter names."""

from collections.abc import Mapping
from typing import Any

import torch

from mptui.engine.optim.fused import FusedOptimizer
from mptui.engine.ranks.shards import as_shard, shard_of


class OptimizerState:
    """State of a torch optimizer, independent of the order of its parameters.

    Args:
        name: The optimizer's name in the configuration; state of another one is refused.
        model: The model, which gives the parameter names.
        optimizer: An optimizer of the parameters of `model`.
    """

    def __init__(self, name: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._name, self._model, self._optimizer = name, model, optimizer

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
