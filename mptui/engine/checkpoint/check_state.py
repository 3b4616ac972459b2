"""Checks that checkpoints can hold the state of a network, before it is trained."""

import json

import torch

from mptui.errors import OwnCodeError
from mptui.io.safetensors import why_unsaveable


def check_state(model: torch.nn.Module) -> None:
    """Check that the state of a network can be saved, and its weights trained.

    Raises:
        OwnCodeError: A tensor has a type or layout that safetensors don't hold, an extra state is not JSON,
            a trained weight is complex or has sparse gradients, or no weight is trained.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise OwnCodeError(
            "no weight of the network is trained: it has none with requires_grad",
            hint="set requires_grad of the weights that are to learn; training.freeze freezes layers",
        )
    for name, value in model.state_dict().items():
        if isinstance(value, torch.Tensor):
            why, remedy = why_unsaveable(value), "register_buffer(..., persistent=False) leaves it out"
        else:
            why, remedy = _why_no_json(value), "return a tensor, or what JSON holds, from get_extra_state"
        if why is not None:
            raise OwnCodeError(f"{name} of the network can't be saved in checkpoints: {why}", hint=remedy)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse:
            raise OwnCodeError(
                f"{name} of the network has sparse gradients, which are not trained",
                hint="leave out sparse=True: the gradients of all rows are then computed",
            )
    for name, parameter in model.named_parameters():
        if parameter.is_complex() and parameter.requires_grad:
            raise OwnCodeError(
                f"{name} of the network is a weight of type {_type(parameter)}, which is not trained",
                hint="hold its real and imaginary parts: torch.view_as_complex(self.weight) in forward",
            )


def _why_no_json(value: object) -> str | None:
    """Return why JSON doesn't give back a value as it is; None if it does."""
    try:
        same = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError) as error:
        return f"its extra state is no JSON: {error}"
    return None if same else f"its extra state changes in JSON: {type(value).__name__}"


def _type(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
