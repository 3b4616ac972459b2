"""The workspace that a recurrent layer keeps for its backward pass: torch's fake tensors leave it empty."""

from collections.abc import Callable
from typing import Any

import torch

_FLOAT = 4
_GATES = 4
"""Gates of an LSTM, the only recurrent layer that torch gives to oneDNN."""

_CUDNN_VALUES = {0: 1, 1: 1, 2: 6, 3: 5}
"""Mode of cuDNN (ReLU, tanh, LSTM, GRU) -> values that each unit keeps of a step; estimated."""


def with_workspace(func: Any, args: Any, outputs: Any) -> Any:  # noqa: ANN401 - of any operation
    """Return the outputs of an operation on fake tensors, with a workspace of its real size."""
    if func not in _SIZES:
        return outputs
    place, size_of = _SIZES[func]
    made = list(outputs)
    made[place] = made[place].new_empty(size_of(args), dtype=torch.uint8)
    return tuple(made)


def _onednn_bytes(args: Any) -> int:  # noqa: ANN401 - those of mkldnn_rnn_layer
    """Return the bytes of oneDNN's workspace of one layer in one direction.

    It has the gates of each step, and the states with their gradients between all steps and at the ends:
    of the layer's inputs in rows of the larger of both sizes (oneDNN, src/cpu/rnn/rnn_utils.cpp).
    """
    input_TBI, hidden, is_training = args[0], args[10], args[15]
    if not is_training:
        return 0
    T, B, inputs = input_TBI.shape
    between = (T + 1) * (6 * max(inputs, hidden) + 5 * hidden)
    return int(_FLOAT * B * (T * _GATES * hidden + between))


def _cudnn_bytes(args: Any) -> int:  # noqa: ANN401 - those of _cudnn_rnn
    """Return the bytes of cuDNN's reserve space, which keeps the gates and cells of each step."""
    input_TBI, mode, hidden, layers, is_training, is_bidirectional = (
        args[place] for place in (0, 6, 7, 9, 12, 13)
    )
    if not is_training:
        return 0
    rows = input_TBI.shape[:-1].numel()
    return int(
        rows * hidden * _CUDNN_VALUES[mode] * layers * (1 + is_bidirectional) * input_TBI.element_size()
    )


_SIZES: dict[Any, tuple[int, Callable[[Any], int]]] = {
    torch.ops.aten.mkldnn_rnn_layer.default: (3, _onednn_bytes),
    torch.ops.aten._cudnn_rnn.default: (3, _cudnn_bytes),
}
"""Operation -> place of the workspace in its outputs, and its bytes."""
