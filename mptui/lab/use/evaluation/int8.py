"""Rounds a trained network to 8 bits, weights and activations, by torchao's quantization of programs.

Weights of convolutions and linear layers are int8, symmetric, a scale for each output channel; their inputs
uint8, a scale and a zero point for each tensor, from histograms over calibration batches (Jacob et al. 2018,
"Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference"). torchao's own
quantizer for x86 refuses residual networks with current versions of torch, so layers are annotated here.
"""

import importlib.util
import logging
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from mptui.errors import ConfigError

Inputs = tuple[torch.Tensor, ...]

_LEAST_STEP = 2**-12
"""Smallest scale: activations that are always 0 have none."""
_ENUMS = "register_constant() on Enum"
"""Part of what torch logs when torchao registers its own enums, which torch knows by itself now."""


class Int8Network(nn.Module):
    """A network that computes with weights and activations of 8 bits.

    Its layers compute on rounded floats, with the results of integers; with integers only if it is compiled
    for a CPU.

    Args:
        program: The rounded program; it has at least two samples in a batch.
    """

    def __init__(self, program: torch.fx.GraphModule) -> None:
        super().__init__()
        self._program = [program]  # no submodule: an exported program has no eval()

    @property
    def program(self) -> torch.fx.GraphModule:
        """The rounded program."""
        return self._program[0]

    @property
    def nbytes(self) -> int:
        """Bytes of weights and buffers that are computed with: the exact ones are still in the program."""
        nodes = self.program.graph.find_nodes(op="get_attr")
        tensors = {str(node.target): _attribute(self.program, str(node.target)) for node in nodes}
        return sum(tensor.nbytes for tensor in tensors.values() if isinstance(tensor, torch.Tensor))

    def forward(self, *inputs: torch.Tensor) -> Any:  # noqa: ANN401 - whatever the network gives
        """Compute the outputs of a batch."""
        if len(inputs[0]) > 1:
            return self.program(*inputs)
        return self.program(*map(_twice, inputs))[:1]


def check_installed() -> None:
    """Check that torchao is there.

    Raises:
        ConfigError: It is not.
    """
    if importlib.util.find_spec("torchao") is None:
        raise ConfigError("int8: torchao not installed", hint="Install with: pip install 'mptui[int8]'")


@torch.no_grad()
def rounded_to_int8(model: nn.Module, calibration: Iterable[Inputs]) -> Int8Network:
    """Return a network that computes as `model` in eval mode, with weights and activations of 8 bits.

    Args:
        model: The network, with fp32 weights; it is not changed.
        calibration: Batches of inputs that the range of each activation is measured on.

    Raises:
        Exception: torch can't export the network, or torchao can't round it.
    """
    logging.getLogger("torch.utils._pytree").addFilter(_is_no_enum)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of their own deprecated parts
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

        batches = [batch if len(batch[0]) > 1 else tuple(map(_twice, batch)) for batch in calibration]
        rows = {0: torch.export.Dim.AUTO}
        program = torch.export.export(model, batches[0], dynamic_shapes=tuple(rows for _ in batches[0]))
        prepared = prepare_pt2e(program.module(), _quantizer())
        for batch in batches:
            prepared(*batch)
        return Int8Network(convert_pt2e(prepared))


def _is_no_enum(record: logging.LogRecord) -> bool:
    return _ENUMS not in record.getMessage()


def _attribute(module: nn.Module, name: str) -> Any:  # noqa: ANN401 - whatever is there
    *parents, last = name.split(".")
    return getattr(module.get_submodule(".".join(parents)), last)


def _twice(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, tensor])


def _quantizer() -> Any:  # noqa: ANN401 - of a library without types
    from torchao.quantization.pt2e.observer import HistogramObserver, PerChannelMinMaxObserver
    from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec, Quantizer

    activation = QuantizationSpec(
        torch.uint8, HistogramObserver.with_args(eps=_LEAST_STEP), 0, 255, torch.per_tensor_affine
    )
    weight = QuantizationSpec(
        torch.int8,
        PerChannelMinMaxObserver.with_args(eps=_LEAST_STEP),
        -128,
        127,
        torch.per_channel_symmetric,
        ch_axis=0,
    )
    aten = torch.ops.aten
    layers = {aten.conv2d.default, aten.linear.default}

    class _Layers(Quantizer):  # type: ignore[misc] # torchao has no types
        def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
            for node in model.graph.nodes:
                if node.op == "call_function" and node.target in layers:
                    node.meta["quantization_annotation"] = QuantizationAnnotation(
                        input_qspec_map={node.args[0]: activation, node.args[1]: weight}, _annotated=True
                    )
            return model

        def validate(self, model: torch.fx.GraphModule) -> None:
            """Accept what was annotated."""

    return _Layers()
