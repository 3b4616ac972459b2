"""Loads weights files without running code from them."""

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

from mptui.errors import ConfigError
from mptui.models.bands import RGB_BANDS, adapted_filters, first_convolution
from mptui.text import clean

State = dict[str, torch.Tensor]

_WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.)+")
_AUXILIARY_HEAD = re.compile(r"^(?:aux\d|AuxLogits)\.")
_OLD_DENSENET_KEY = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12])\.")
_NAMED_IN_AN_ERROR = 3
_LARGE_HEAD = 2.0
"""A head whose weights are larger than torch's own by this factor is scaled down."""
_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""Types of weights that can be cast to each other, apart from rounding."""


def load_weights(model: nn.Module, path: str | Path) -> list[str]:
    """Load the weights in a file into `model`.

    Prefixes of DataParallel, DDP and torch.compile and the auxiliary heads of googlenet and inception_v3 are
    ignored. A head for another number of classes keeps its random weights; a first convolution of RGB is
    adapted to the bands of the model (`adapted_filters`).

    Args:
        model: The network, on any device.
        path: A .safetensors file, or a .pth or .pt file with tensors only: a state dict, or one under the key
            `state_dict` or `model`.

    Returns:
        Warnings for the user; empty if all weights were used.

    Raises:
        ConfigError: The file is missing, can't be read safely, belongs to another network, or holds tensors
            that are not plain floating point weights: sparse, quantised, without data, integer, NaN.
    """
    return load_state(model, read_state(Path(path)), Path(path))


def load_state(model: nn.Module, state: Mapping[str, torch.Tensor], path: Path) -> list[str]:
    """Load weights by name into `model`, as `load_weights` does; `path` is their file, for messages."""
    weights = _resized_positions(model, _canonical(state))
    _check_kinds(weights, path)
    own = {name: tensor for name, tensor in model.state_dict().items() if not _is_counter(name)}
    warnings = [*_drop_other_head(weights, own, model, path), *_fit_bands(weights, model, path)]
    _check_names(weights, own, path)
    _check_shapes(weights, own, path)
    _check_finite(weights, own, path)
    versioned = OrderedDict(weights)
    # MNASNet refuses weights without the version of its layers
    versioned._metadata = model.state_dict()._metadata  # type: ignore[attr-defined]
    model.load_state_dict(versioned, strict=False)
    return warnings


def check_file(path: Path) -> None:
    """Check that the file exists and is of a known kind, without reading it.

    Raises:
        ConfigError: It is missing or of another kind.
    """
    if path.suffix not in {".safetensors", ".pth", ".pt"}:
        raise ConfigError(
            f"model.weights: {path}: not a .safetensors, .pth or .pt file",
            hint="Use a weights file of one of these kinds.",
        )
    if not path.is_file():
        raise ConfigError(f"model.weights: {path}: no such file", hint="Check the path of the weights file.")


def read_state(path: Path) -> Mapping[str, torch.Tensor]:
    """Read the tensors of a weights file by name, without running code from it.

    Raises:
        ConfigError: It is missing, can't be read safely, or holds anything else.
    """
    check_file(path)
    try:
        content = load_file(path) if path.suffix == ".safetensors" else _unpickled(path)
    except Exception as error:  # a damaged file can raise nearly anything
        if isinstance(error, OSError) and error.errno is not None:
            raise ConfigError(
                f"model.weights: {path}: cannot read: {(error.strerror or str(error)).lower()}",
                hint="Check the permissions of the file and its disk, then try again.",
            ) from error
        raise ConfigError(
            f"model.weights: {path}: damaged, or not only tensors ({type(error).__name__})",
            hint="Download the file again, or save only the weights as .safetensors.",
        ) from error
    if not _is_state(content):
        raise ConfigError(
            f"model.weights: {path}: not a state dict",
            hint="Save model.state_dict() instead.",
        )
    return content


def _unpickled(path: Path) -> Mapping[str, torch.Tensor]:
    content = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    return content  # type: ignore[no-any-return] # checked by the caller


def _is_state(content: object) -> bool:
    return (
        isinstance(content, Mapping)
        and len(content) > 0
        and all(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items())
    )


def _canonical(weights: Mapping[str, torch.Tensor]) -> State:
    """Rename the weights to those of the unwrapped network in this version of torchvision."""
    canonical: State = {}
    for name, tensor in weights.items():
        bare = _OLD_DENSENET_KEY.sub(r"\1\2.", _WRAPPERS.sub("", name))
        if not _AUXILIARY_HEAD.match(bare) and not _is_counter(bare) and bare != "n_averaged":
            canonical[bare] = tensor
    return canonical


def _resized_positions(model: nn.Module, weights: State) -> State:
    """Interpolate the positions of a vision transformer to the size of the model's images."""
    if not isinstance(model, VisionTransformer) or "encoder.pos_embedding" not in weights:
        return weights
    return dict(interpolate_embeddings(model.image_size, model.patch_size, OrderedDict(weights)))


def _is_counter(name: str) -> bool:
    """Whether this is BatchNorm's batch counter, which older files lack and which is not used."""
    return name.endswith(".num_batches_tracked")


def _drop_other_head(weights: State, own: State, model: nn.Module, path: Path) -> list[str]:
    """Remove the head from `weights` and `own` if it is for another number of classes, or missing."""
    heads = head_names(model)
    names = [name for name in own if name.rpartition(".")[0] in heads]
    there = [name for name in names if name in weights]
    others = [name for name in there if weights[name].shape[:1] != own[name].shape[:1]]
    if others:
        known = f"its head is for {len(weights[others[0]])} classes, not {len(own[others[0]])}"
    elif names and not there:
        known = "it has no head"
    else:
        return []
    for name in names:
        weights.pop(name, None)
        del own[name]
    return [f"{clean(path.name)}: {known}: {', '.join(heads)} starts from random weights"]


def _fit_bands(weights: State, model: nn.Module, path: Path) -> list[str]:
    """Adapt the filters of RGB to a model for other bands."""
    found = first_convolution(model)
    name = f"{found[0]}.weight" if found else ""
    if found is None or name not in weights or found[1].in_channels == RGB_BANDS:
        return []
    if weights[name].ndim != 4 or weights[name].shape[1] != RGB_BANDS:
        return []
    bands = found[1].in_channels
    weights[name] = adapted_filters(weights[name], bands)
    how = "summed" if bands == 1 else f"repeated and scaled by {RGB_BANDS}/{bands}"
    return [f"{clean(path.name)}: {found[0]} is for RGB, not for {bands} bands: its filters are {how}"]


def head_names(model: nn.Module) -> list[str]:
    """Return the names of the layers that output logits: those that timm names, else the last layer."""
    named = getattr(model, "pretrained_cfg", {}).get("classifier")
    if named:
        return [named] if isinstance(named, str) else list(named)
    layers: list[str] = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)
    ]
    return layers[-1:]


def limit_head(model: nn.Module) -> None:
    """Scale random weights of the head down where they are larger than torch's own (variance 1 / 3 fan_in).

    Networks that follow TensorFlow's initialization, as EfficientNet, draw them by the number of classes:
    with two, the first loss may be 17 times that of chance.
    """
    for name in head_names(model):
        weight = model.get_submodule(name).weight
        if isinstance(weight, torch.Tensor) and weight.ndim >= 2:
            with torch.no_grad():
                usual, size = (3 * weight[0].numel()) ** -0.5, weight.square().mean().sqrt()
                weight.mul_(torch.where(size > _LARGE_HEAD * usual, usual / size, torch.ones_like(size)))


def _check_names(weights: State, own: State, path: Path) -> None:
    missing, unexpected = own.keys() - weights.keys(), weights.keys() - own.keys()
    faults = []
    if missing:
        faults.append(f"missing: {_first(name for name in own if name in missing)}")
    if unexpected:
        faults.append(f"unexpected: {_first(name for name in weights if name in unexpected)}")
    if faults:
        raise other_network(path, faults)


def _check_shapes(weights: State, own: State, path: Path) -> None:
    faults = [
        f"{name} is {tuple(weights[name].shape)}, not {tuple(tensor.shape)}"
        for name, tensor in own.items()
        if weights[name].shape != tensor.shape
    ]
    if faults:
        raise other_network(path, faults[:_NAMED_IN_AN_ERROR])


def _check_kinds(weights: State, path: Path) -> None:
    """Refuse tensors that are not plain floating point: copying them fails or changes their values."""
    odd = {name: kind for name, tensor in weights.items() if (kind := _odd_kind(tensor)) is not None}
    if odd:
        faults = [f"{name} is {kind}" for name, kind in list(odd.items())[:_NAMED_IN_AN_ERROR]]
        more = [f"… and {len(odd) - _NAMED_IN_AN_ERROR} more"] if len(odd) > _NAMED_IN_AN_ERROR else []
        raise ConfigError(
            "\n".join([f"model.weights: {path}: not plain floating point weights", *faults, *more]),
            hint="Save the state dict of the float32 model: dense tensors, not quantised, with their data.",
        )


def _odd_kind(tensor: torch.Tensor) -> str | None:
    """Describe a tensor that is not plain floating point; None if it is."""
    if tensor.is_nested:
        return "nested"
    if tensor.is_meta:
        return "on the meta device, without data"
    if tensor.is_quantized:
        return f"quantised ({_named(tensor)})"
    if tensor.layout != torch.strided:
        return f"sparse ({str(tensor.layout).removeprefix('torch.')})"
    return None if tensor.dtype in _DTYPES else f"of dtype {_named(tensor)}"


def _named(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_finite(weights: State, own: State, path: Path) -> None:
    """Refuse NaN and infinite weights: training would appear to diverge."""
    bad = {name: int((~weights[name].to(own[name].dtype).isfinite()).sum()) for name in own}
    bad = {name: count for name, count in bad.items() if count}
    if bad:
        faults = [
            f"{name}: {count:,} of {own[name].numel():,} values are NaN or infinite"
            for name, count in list(bad.items())[:_NAMED_IN_AN_ERROR]
        ]
        more = [f"… and {len(bad) - _NAMED_IN_AN_ERROR} more"] if len(bad) > _NAMED_IN_AN_ERROR else []
        raise ConfigError(
            "\n".join([f"model.weights: {path}: weights that are not finite", *faults, *more]),
            hint="Use an earlier checkpoint: the training that saved this one had diverged.",
        )


def other_network(path: Path, faults: list[str]) -> ConfigError:
    """Return the error for a file with the weights of another network."""
    return ConfigError(
        "\n".join([f"model.weights: {path}: these are the weights of another network", *faults]),
        hint="Use the --model that the file was trained with.",
    )


def _first(names: Iterable[str]) -> str:
    listed = list(names)
    more = len(listed) - _NAMED_IN_AN_ERROR
    return ", ".join(listed[:_NAMED_IN_AN_ERROR]) + (f" and {more} more" if more > 0 else "")
