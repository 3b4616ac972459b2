"""An optimizer's tensors by the names of the parameters they belong to."""

from collections.abc import Mapping
from typing import Any

import torch

from mptui.engine.optim.fused import FusedOptimizer


class OptimizerState:
    """The state of a torch optimizer in a form that does not depend on the order of its parameters.

    Args:
        name: The optimizer's name in the configuration: another kind's tensors are refused.
        model: Names the parameters.
        optimizer: Over parameters of `model`.
    """

    def __init__(self, name: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._name, self._model, self._optimizer = name, model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """`optimizer`: its name; `KEY/PARAMETER`: a tensor."""
        names: dict[torch.Tensor, str] = {p: name for name, p in self._model.named_parameters()}
        tensors = {
            f"{key}/{names[p]}": value
            for p, state in self._optimizer.state.items()
            for key, value in state.items()
            if isinstance(value, torch.Tensor)
        }
        return {"optimizer": self._name, **tensors}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Copy the tensors into the optimizer's own, in place where it has them.

        Raises:
            RuntimeError: They are of another kind of optimizer.
            KeyError: They are of another model.
        """
        if state_dict["optimizer"] != self._name:
            raise RuntimeError(f"the optimizer is {state_dict['optimizer']}, not {self._name}")
        parameters = dict(self._model.named_parameters())
        if not isinstance(self._optimizer, FusedOptimizer):
            self._optimizer.state.clear()  # torch's own make theirs at their first step
        for full_name, value in state_dict.items():
            if isinstance(value, torch.Tensor):
                key, _, name = full_name.partition("/")
                self._load(key, parameters[name], value)

    def _load(self, key: str, parameter: torch.Tensor, value: torch.Tensor) -> None:
        own = self._optimizer.state[parameter].get(key)
        if own is None:
            own = torch.empty_like(parameter) if value.ndim else torch.empty((), device=parameter.device)
            self._optimizer.state[parameter][key] = own
        own.copy_(value)
