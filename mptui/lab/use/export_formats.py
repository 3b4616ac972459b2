"""The file formats of exported networks, and whether the file computes what the run does."""

import contextlib
import json
import logging
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from mptui.events import finite_json
from mptui.lab.use.evaluate import Course, EvaluationData
from mptui.lab.use.preprocessing_code import code_of, words_of
from mptui.lab.use.trained import Trained
from mptui.models.vae import Autoencoder, read_layout, read_vae
from mptui.models.vae_layout import CONFIG, WEIGHTS
from mptui.registry.names import SampleKind
from mptui.runs.planning.build import LoaderMaker

# The file formats of exported networks: how each is written, and loaded again by its own runtime
# -----------------------------------------------------------------------------------------------
# The facts of a network (`mptui.lab.use.export_formats`) are a JSON text inside each file, under `FACTS`.

FACTS = "mptui"
"""Name of the facts in a file."""
_FACTS_FILE = f"{FACTS}.json"

Inputs = tuple[torch.Tensor, ...]
"""Arguments of a network on the CPU; the first axis of each is the batch."""
Network = Callable[[Inputs], torch.Tensor]
"""Outputs of a loaded network for inputs of any batch size."""
NewModel = Callable[[], nn.Module]
"""Builds the run's network on the CPU, with random weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFormat:
    """A file format of exported networks.

    Attributes:
        suffix: Suffix of its files.
        write: Called with the network (on the CPU, float32, eval mode), example inputs with a batch of 2, the
            facts, and the path of the new file.
        load: Called with the path and a `NewModel`. Returns the network as the format's own runtime computes
            it, and the facts in the file.
        usage: Python code that loads a file; `{file}` is its name.
        modules: Modules that are not installed with mptui.
        extra: The extra of mptui that installs them.
        file: Name of its files, where that is fixed.
        model: The network that it is for: a key of `mptui.registry.models.MODELS`; "": any.
    """

    suffix: str
    write: Callable[[nn.Module, Inputs, str, Path], None]
    load: Callable[[Path, NewModel], tuple[Network, str]]
    usage: str
    modules: tuple[str, ...] = ()
    extra: str = ""
    file: str = ""
    model: str = ""


def input_names(inputs: Inputs) -> list[str]:
    """Return the names of a network's inputs."""
    return ["images", "timesteps", "labels"][: len(inputs)]


def _write_safetensors(model: nn.Module, inputs: Inputs, facts: str, path: Path) -> None:
    save_file(_state_of(model), path, metadata={FACTS: facts})


def _state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the state of a network, with a copy for each further name of a tensor that layers share."""
    tensors: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is no tensor")
        storage = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.contiguous().clone() if storage in storages else tensor.contiguous()
        storages.add(storage)
    return tensors


def _load_safetensors(path: Path, new_model: NewModel) -> tuple[Network, str]:
    with safe_open(path, framework="pt") as file:
        facts = (file.metadata() or {}).get(FACTS, "")
    model = new_model()
    model.load_state_dict(load_file(path))
    model.eval()
    return lambda inputs: model(*inputs), facts


def _write_pt2(model: nn.Module, inputs: Inputs, facts: str, path: Path) -> None:
    with _silent():
        program = torch.export.export(model, inputs, dynamic_shapes=_any_batch(inputs))
        torch.export.save(program, path, extra_files={_FACTS_FILE: facts})


def _load_pt2(path: Path, new_model: NewModel) -> tuple[Network, str]:
    extra_files = {_FACTS_FILE: ""}
    with _silent():  # a file of this process: of others, torch.export.load can run code
        module = torch.export.load(path, extra_files=extra_files).module()
    return lambda inputs: module(*inputs), extra_files[_FACTS_FILE]


def _write_onnx(model: nn.Module, inputs: Inputs, facts: str, path: Path) -> None:
    with _silent():
        program = torch.onnx.export(
            model,
            inputs,
            dynamo=True,
            input_names=input_names(inputs),
            output_names=["outputs"],
            dynamic_shapes=_any_batch(inputs),
            verbose=False,
        )
        assert program is not None, "returned with dynamo=True"
        program.model.metadata_props[FACTS] = facts
        program.save(path)


def _load_onnx(path: Path, new_model: NewModel) -> tuple[Network, str]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]

    def network(inputs: Inputs) -> torch.Tensor:
        feed = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
        return torch.from_numpy(session.run(None, feed)[0])

    return network, session.get_modelmeta().custom_metadata_map.get(FACTS, "")


def _write_diffusers(model: nn.Module, inputs: Inputs, facts: str, path: Path) -> None:
    assert isinstance(model, Autoencoder)
    layout = model.layout.model_copy(update=json.loads(facts)["latents"])
    (path.parent / CONFIG).write_text(layout.as_text(), encoding="utf-8")
    save_file(_state_of(model), path, metadata={FACTS: facts, "format": "pt"})


def _load_diffusers(path: Path, new_model: NewModel) -> tuple[Network, str]:
    model = read_vae(path.parent, read_layout(path.parent)).eval()
    with safe_open(path, framework="pt") as file:
        return lambda inputs: model(*inputs), (file.metadata() or {}).get(FACTS, "")


def _any_batch(inputs: Inputs) -> tuple[dict[int, torch.export.Dim], ...]:
    batch = torch.export.Dim("batch")
    return tuple({0: batch} for _ in inputs)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Suppress warnings of torch about its own code."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


EXPORT_FORMATS: dict[str, ExportFormat] = {
    "safetensors": ExportFormat(
        suffix=".safetensors",
        write=_write_safetensors,
        load=_load_safetensors,
        usage="from safetensors.torch import load_file\n\nmodel.load_state_dict(load_file({file!r}))",
    ),
    "pt2": ExportFormat(
        suffix=".pt2",
        write=_write_pt2,
        load=_load_pt2,
        usage="import torch\n\n# only of a file that you trust: it can run code\n"
        "model = torch.export.load({file!r}).module()",
    ),
    "onnx": ExportFormat(
        suffix=".onnx",
        write=_write_onnx,
        load=_load_onnx,
        usage="import onnxruntime\n\nsession = onnxruntime.InferenceSession({file!r})",
        modules=("onnx", "onnxscript", "onnxruntime"),
        extra="onnx",
    ),
    "diffusers": ExportFormat(
        suffix=".safetensors",
        write=_write_diffusers,
        load=_load_diffusers,
        usage='from diffusers import AutoencoderKL\n\nvae = AutoencoderKL.from_pretrained(".")'
        "\n\n# or: mptui run --model latent_diffusion --set model.vae=DIR",
        file=WEIGHTS,
        model="vae",
    ),
}
"""Name -> format; the first is the default."""


# Compares a loaded network with the run's on real images, at several batch sizes
# -------------------------------------------------------------------------------
# Exporters can return a network that runs and is wrong (pytorch issues 169178 and 166797), so that only the
# outputs tell.

BATCH_SIZES = (1, 7, 32)
LOADED = sum(BATCH_SIZES)
"""Images that are loaded at once."""
TOLERANCE = 1e-4
"""Largest difference of an output, as a share of the largest output if that is above 1."""


@dataclass(slots=True)
class Agreement:
    """How far two networks agree.

    Attributes:
        images: Number of images compared; those of a small set are counted again.
        difference: Largest absolute difference of an output; NaN if an output is NaN in one of them.
        largest: Largest absolute output of the run's network.
        other_classes: Number of images (with masks: of pixels) to which the two give different classes.
    """

    images: int = 0
    difference: float = 0.0
    largest: float = 0.0
    other_classes: int = 0

    @property
    def tolerance(self) -> float:
        """The largest difference that is accepted."""
        return TOLERANCE * max(1.0, self.largest)

    @property
    def close(self) -> bool:
        """Whether the difference is within the tolerance; not with NaN."""
        return self.difference <= self.tolerance


def compare(
    predict: Callable[..., torch.Tensor],
    network: Network,
    batches: Iterator[Inputs],
    *,
    images: int,
    has_classes: bool,
    on_progress: Callable[[int, int], None],
) -> Agreement:
    """Compare the outputs of the two for `images` images.

    Args:
        predict: Returns the outputs of the run's network, as `mptui predict` computes them in the file's
            precision.
        network: The loaded network.
        batches: Inputs of `LOADED` images each.
        images: Images to compare.
        has_classes: Whether axis 1 of the outputs is that of the classes.
        on_progress: Called with (images done, images).
    """
    found = Agreement()
    with torch.inference_mode():
        for inputs in _pieces(batches, images):
            ours, theirs = predict(*inputs), network(inputs)
            difference = (ours - theirs).abs().max().item()
            found.images += len(ours)
            # max() of Python would drop a NaN
            found.difference = difference if not difference <= found.difference else found.difference
            found.largest = max(found.largest, ours.abs().max().item())
            if has_classes:
                found.other_classes += int((ours.argmax(1) != theirs.argmax(1)).sum())
            on_progress(found.images, images)
            if not found.difference <= found.tolerance:
                break
    return found


def _pieces(batches: Iterator[Inputs], images: int) -> Iterator[Inputs]:
    """Cut batches of `LOADED` images into batches of `BATCH_SIZES`, until there are `images` of them."""
    left = images
    for inputs in batches:
        for pieces in zip(*(torch.split(tensor, list(BATCH_SIZES)) for tensor in inputs), strict=True):
            yield tuple(piece[:left] for piece in pieces)
            left -= min(left, len(pieces[0]))
            if not left:
                return


def real_inputs(
    trained: Trained, data: EvaluationData, on_bad: Callable[[object], None]
) -> Generator[Inputs]:
    """Yield inputs of `LOADED` images, in float32 on the CPU.

    Where fewer are left they are repeated. `trained` is opened with a batch size of `LOADED`.
    """
    maker = LoaderMaker(trained.plan, data.dataset, lambda event: None, on_bad, lambda: None)
    with maker.make(data.split, train=False) as loader:
        for window in loader.windows(epoch=0, accumulate=1):
            for batch in window:
                rows = torch.arange(LOADED) % batch.size
                yield tuple(tensor[rows].contiguous() for tensor in batch.inputs)


def has_classes(kind: SampleKind) -> bool:
    """Whether axis 1 of the outputs is that of the classes."""
    return kind is not SampleKind.IMAGE


# What a user of an exported network must know: classes, input, origin, metrics, licences
# ---------------------------------------------------------------------------------------

NOT_STATED = "not stated"
_VERSION = 1


def facts_of(trained: Trained, course: Course, licence: str | None) -> dict[str, Any]:
    """Return the facts of a network, JSON-ready.

    Args:
        trained: The run.
        course: Its course.
        licence: The SPDX identifier under which the file will be given away; None: not stated.
    """
    config = trained.config
    facts: dict[str, Any] = finite_json(
        {
            "version": _VERSION,
            "task": trained.plan.task,
            "model": config.model.model_dump(exclude_none=True, exclude_defaults=True),
            "classes": list(trained.classes),
            "input": {
                **words_of(trained),
                "code": code_of(trained),
            },
            "run": {
                "name": trained.run.name,
                "checkpoint": trained.checkpoint,
                "step": trained.step,
                "precision": course.precision,
                "ema": config.training.ema_decay is not None,
                "data": config.data.name if config.data.path is None else Path(config.data.path).name,
            },
            "metrics": course.measured or {},
            "licences": licences_of(trained.model, course.weights, licence),
        }
    )
    return facts


def as_text(facts: dict[str, Any]) -> str:
    """Return facts as they are stored in a file."""
    return json.dumps(facts, ensure_ascii=True, allow_nan=False, sort_keys=True)


def licences_of(model: nn.Module, weights: str | None, licence: str | None) -> dict[str, str]:
    """Return the licences that bear on an exported network, as far as they are known.

    Args:
        model: The network.
        weights: What its weights were at the start, as `model.weights`.
        licence: The licence of the file.
    """
    package = type(model).__module__.partition(".")[0]
    return {
        "network": f"{package}: {_licence_of_package(package)}",
        "initial weights": "random" if weights is None else f"{Path(weights).name}: {NOT_STATED}",
        "data": NOT_STATED,
        "this file": licence or NOT_STATED,
    }


def _licence_of_package(package: str) -> str:
    try:
        entries = metadata(package)
    except PackageNotFoundError:
        return NOT_STATED
    names = [name for name in ("License-Expression", "License") if name in entries]
    return entries[names[0]].strip().splitlines()[0][:80] if names else NOT_STATED
