"""The file formats of exported networks: how each is written, and loaded again by its own runtime.

The facts of a network (`mptui.lab.use.export.facts`) are a JSON text inside each file, under `FACTS`.
"""

import contextlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from mptui.models.latent.autoencoder import Autoencoder
from mptui.models.latent.vae_folder import read_layout, read_vae
from mptui.models.latent.vae_layout import CONFIG, WEIGHTS

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
