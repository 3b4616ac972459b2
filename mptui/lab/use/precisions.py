"""Compares precisions for inference: metrics, speed and memory of one trained network in each, int8 too."""

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from mptui.data.loader import Loader
from mptui.data.types import Dataset, SampleRequest, Split
from mptui.engine.evaluate import ValidationResult, evaluate
from mptui.engine.precision import DTYPES, Precision, build_precision
from mptui.errors import ConfigError
from mptui.events import Event, Warned
from mptui.hardware.formats import Support
from mptui.lab.use.evaluate import EvaluationData, HalvingBatches, Note, OnProgress, open_samples
from mptui.lab.use.forward_speed import forward_seconds
from mptui.lab.use.trained import Trained
from mptui.models.layers import tensors_of
from mptui.registry.names import LONG_NAMES, PRECISIONS
from mptui.runs.planning.build import LoaderMaker
from mptui.text import clean
from mptui.torch_private import ConvNd, inductor_config

# Rounds a trained network to 8 bits, weights and activations, by torchao's quantization of programs
# --------------------------------------------------------------------------------------------------
# Weights of convolutions and linear layers are int8, symmetric, a scale for each output channel; their
# inputs uint8, a scale and a zero point for each tensor, from histograms over calibration batches (Jacob et
# al. 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference").
# torchao's own quantizer for x86 refuses residual networks with current versions of torch, so layers are
# annotated here.

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
        raise ConfigError("int8: torchao not installed", hint="install with: pip install 'mptui[int8]'")


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


# Compares precisions for inference: metrics, speed and memory of one trained network in each
# -------------------------------------------------------------------------------------------
# In 16 bits, convolutions and linear layers have their weights in 16 bits, and all computes under autocast,
# which would cast these weights at each pass: outputs are those of fp32 weights under autocast. Layers that
# the run keeps in fp32 stay so.

INT8 = "int8"
NAMES = (*PRECISIONS, INT8)
_CALIBRATION = 256
"""Training samples that the ranges of activations are measured on."""


@dataclass(frozen=True, slots=True)
class PrecisionResult:
    """A trained network in one precision.

    Attributes:
        precision: The precision.
        support: How the device supports it; None: unknown.
        result: Loss and metrics; None if it can't be computed.
        images_per_second: Of forward passes alone, the median; None if it was not measured.
        weight_bytes: Bytes of weights and buffers.
        peak_bytes: Most memory on the device in a forward pass; None on a CPU.
        note: What to know of it; "" if nothing.
    """

    precision: str
    support: Support | None
    result: ValidationResult | None
    images_per_second: float | None = None
    weight_bytes: int = 0
    peak_bytes: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class PrecisionComparison:
    """A trained network in several precisions on the same samples."""

    data: EvaluationData
    rows: list[PrecisionResult]


def precision_names(text: str) -> list[str]:
    """Return the precisions of a list such as `fp32,bf16,int8`, or of `all`.

    Raises:
        ConfigError: One is unknown, or what it needs is not installed.
    """
    names = [LONG_NAMES.get(word, word) for word in text.replace(" ", "").split(",") if word]
    names = list(NAMES) if names == ["all"] else list(dict.fromkeys(names))
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        wrong = clean(", ".join(unknown) or "none", 100)
        raise ConfigError(f"--precisions: {wrong}: no such precision", hint=f"use {', '.join(NAMES)} or all")
    if INT8 in names:
        check_installed()
    return names


def compare_precisions(
    trained: Trained,
    given: Mapping[str, Any],
    names: Sequence[str],
    *,
    compiled: bool,
    on_progress: OnProgress,
    note: Note,
) -> PrecisionComparison:
    """Evaluate a trained network in each precision.

    Args:
        trained: The run.
        given: Values of [data] that a person gave; empty: the run's own data.
        names: From `precision_names`.
        compiled: Measure the speed of compiled code; int8 has no other speed.
        on_progress: Called with (checked files, all files), then with (batches done, all batches).
        note: Called with what a person should know.

    Raises:
        ConfigError: There is no set of that name.
        DataError: The data is missing or unreadable, or has other classes.
        MemoryExhaustedError: Not even one sample fits into memory.
    """
    data = open_samples(trained, given, on_progress=on_progress, note=note)

    def tell(event: Event) -> None:
        if isinstance(event, Warned):
            note(event.message)

    maker = LoaderMaker(trained.plan, data.dataset, tell, lambda problem: None, lambda: None)
    with maker.make(data.split, train=False) as loader:
        batch = next(_inputs(loader))
        measure = _Measure(trained, loader, batch, compiled, on_progress, note)
        rows = [measure.as_stored(name) for name in names if name != INT8]
        if INT8 in names:
            with maker.make(_calibration_samples(data.dataset, data.split), train=False) as samples:
                rows.append(measure.rounded(list(_inputs(samples))))
    return PrecisionComparison(data, sorted(rows, key=lambda row: names.index(row.precision)))


@dataclass(frozen=True, slots=True)
class _Measure:
    trained: Trained
    loader: Loader
    batch: Inputs
    compiled: bool
    on_progress: Callable[[int, int], None]
    note: Note

    def as_stored(self, name: str) -> PrecisionResult:
        """Measure fp32, or a format of 16 bits."""
        trained = self.trained
        precision = build_precision(name, trained.device, trained.config.precision.grad_scaler)
        with _weights_in(DTYPES.get(name), trained):
            rate, peak = self._speed(trained.model, precision)
            return PrecisionResult(
                precision=name,
                support="native" if name == "fp32" else trained.plan.device.native.get(name),
                result=self._result(trained.model, precision),
                images_per_second=rate,
                weight_bytes=sum(value.nbytes for value in tensors_of(trained.model).values()),
                peak_bytes=peak,
            )

    def rounded(self, calibration: list[Inputs]) -> PrecisionResult:
        """Measure int8."""
        trained = self.trained
        try:
            network = rounded_to_int8(trained.model, calibration)
        except Exception as error:  # noqa: BLE001 - of torch.export and torchao: whatever they can't do
            why = clean(str(error).strip().partition("\n")[0] or type(error).__name__, 120)
            return PrecisionResult(INT8, None, None, note=f"this network can't be rounded: {why}")
        exact = build_precision("fp32", trained.device, trained.config.precision.grad_scaler)
        row = PrecisionResult(INT8, None, self._result(network, exact), weight_bytes=network.nbytes)
        if trained.device.type != "cpu":
            why = f"torch has no int8 convolutions on {trained.device.type}"
            return replace(row, note=f"rounded, but computed in fp32: {why}")
        if not self.compiled:
            return replace(
                row, note="rounded, but computed in fp32; --compile measures its speed in integers"
            )
        rate, _ = self._speed(network, exact)
        return replace(row, images_per_second=rate, note="its speed is that of integers")

    def _result(self, model: nn.Module, precision: Precision) -> ValidationResult:
        device = self.trained.device
        return evaluate(
            model,
            self.trained.task,
            self.loader,
            precision,
            device=device,
            on_progress=lambda progress: self.on_progress(progress.done, progress.total),
            check_stop=lambda: None,
            in_pieces=HalvingBatches(device, self.note),
            outputs_stay=True,
        )

    @torch.no_grad()
    def _speed(self, model: nn.Module, precision: Precision) -> tuple[float | None, int | None]:
        """Return images a second of forward passes, and the most bytes on the device; None: not measured."""
        device = self.trained.device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        try:
            with precision.forward_context(), _compiled(model, on=self.compiled) as forward:
                seconds = forward_seconds(lambda: forward(*self.batch), device)
        except Exception as error:  # noqa: BLE001 - of the compiler: the metrics need no speed
            self.note(f"{precision.name}: the speed can't be measured: {clean(str(error).strip(), 120)}")
            return None, None
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
        return len(self.batch[0]) / seconds, peak


@contextlib.contextmanager
def _compiled(model: nn.Module, *, on: bool) -> Iterator[Callable[..., Any]]:
    if not on:
        yield model
        return
    # weights are constants: int8 layers become integer kernels only so
    with inductor_config().patch(freezing=True):
        yield torch.compile(model.program if isinstance(model, Int8Network) else model, dynamic=False)


@contextlib.contextmanager
def _weights_in(dtype: torch.dtype | None, trained: Trained) -> Iterator[None]:
    """Store weights that autocast would cast in `dtype`; None: as they are."""
    kept = {id(part) for region in trained.fp32_regions for part in region.module.modules()}
    layers = (m for m in trained.model.modules() if isinstance(m, ConvNd | nn.Linear) and id(m) not in kept)
    exact = {parameter: parameter.data for layer in layers for parameter in layer.parameters(recurse=False)}
    try:
        for parameter, value in exact.items():
            parameter.data = value if dtype is None else value.to(dtype)
        yield
    finally:
        for parameter, value in exact.items():
            parameter.data = value


def _inputs(loader: Loader) -> Iterator[Inputs]:
    for window in loader.windows(epoch=0, accumulate=1):
        for batch in window:
            yield tuple(each.clone() for each in batch.inputs)


@dataclass(frozen=True, slots=True)
class _EveryNth:
    """Samples of a split at equal distances: a split is sorted by class."""

    split: Split
    step: int

    def __len__(self) -> int:
        return -(-len(self.split) // self.step)

    def request(self, index: int) -> SampleRequest:
        """Return the request for sample `index`."""
        return self.split.request(index * self.step)


def _calibration_samples(dataset: Dataset, measured: Split) -> Split:
    split = dataset.train if len(dataset.train) else measured
    return _EveryNth(split, -(-len(split) // _CALIBRATION))
