"""Loads weights files without running code from them."""

import argparse
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

from mptui.errors import ConfigError
from mptui.models.layers import RGB_BANDS, adapted_filters, first_convolution
from mptui.text import clean, dtype_name

State = dict[str, torch.Tensor]

_WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.)+")
_AUXILIARY_HEAD = re.compile(r"^(?:aux\d|AuxLogits)\.")
_OLD_DENSENET_KEY = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12])\.")
_NAMED_IN_AN_ERROR = 3
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".pth.tar", ".pt.tar")
"""Endings of weights files."""
_KEYS = ("state_dict", "model", "model_state_dict", "model_state", "net", "network", "weights", "params")
"""Keys of the weights as they were trained, in the checkpoints of other programs."""
_AVERAGED = re.compile(r"(?i)(?:^|[._])(?:ema|swa|avg|averaged|average|teacher|momentum|encoder_k)(?:$|[._])")
_FOREIGN = re.compile(r"Unsupported global: GLOBAL ([\w.]+)")
_LARGE_HEAD = 2.0
"""A head whose weights are larger than torch's own by this factor is scaled down."""
_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""Types of weights that can be cast to each other, apart from rounding."""


def load_weights(model: nn.Module, path: str | Path, key: str | None = None) -> list[str]:
    """Load the weights in a file into `model`.

    Prefixes of DataParallel, DDP and torch.compile and the auxiliary heads of googlenet and inception_v3 are
    ignored. A head for another number of classes keeps its random weights; a first convolution of RGB is
    adapted to the bands of the model (`adapted_filters`).

    Args:
        model: The network, on any device.
        path: A .safetensors file, or one of torch (`SUFFIXES`) with tensors only: a state dict, or a
            checkpoint that has one under a key.
        key: The key of the state dict in the checkpoint, or the prefix of the names to take; None: the
            weights as they were trained, and the prefix that fits the network.

    Returns:
        Warnings for the user; empty if all weights were used.

    Raises:
        ConfigError: The file is missing, can't be read safely, belongs to another network, or holds tensors
            that are not plain floating point weights: sparse, quantised, without data, integer, NaN.
    """
    path = Path(path)
    state, notes = read_weights(path, key)
    weights, more = _fitting(_canonical(state), model, path, key)
    return [*notes, *more, *load_state(model, weights, path)]


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
    if not path.name.endswith(SUFFIXES):
        raise ConfigError(
            f"model.weights: {path}: not one of {', '.join(SUFFIXES)}",
            hint="use a weights file of one of these kinds",
        )
    if not path.is_file():
        raise ConfigError(f"model.weights: {path}: no such file", hint="check the path of the weights file")


def read_state(path: Path) -> Mapping[str, torch.Tensor]:
    """Read the tensors of a weights file by name, as `read_weights` does."""
    return read_weights(path, None)[0]


def read_weights(path: Path, key: str | None) -> tuple[Mapping[str, torch.Tensor], list[str]]:
    """Read the tensors of a weights file by name, without running code from it.

    Args:
        path: The file.
        key: The key of the state dict in a checkpoint; None: of the weights as they were trained.

    Returns:
        The tensors, and warnings for the user.

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
                hint="check the permissions of the file and its disk, then try again",
            ) from error
        if found := _FOREIGN.search(str(error)):
            raise ConfigError(
                f"model.weights: {path}: holds Python objects ({found[1]}), whose code is not run",
                hint="save model.state_dict() with torch.save, where the model can be loaded",
            ) from error
        raise ConfigError(
            f"model.weights: {path}: damaged, or not only tensors ({type(error).__name__})",
            hint="download the file again, or save only the weights as .safetensors",
        ) from error
    return _chosen(content, path, key)


def _unpickled(path: Path) -> object:
    with torch.serialization.safe_globals(
        [argparse.Namespace]
    ):  # the flags of the training, as timm saves them
        return torch.load(path, map_location="cpu", weights_only=True)


def _chosen(content: object, path: Path, key: str | None) -> tuple[Mapping[str, torch.Tensor], list[str]]:
    """Return the state dict in a checkpoint, and a warning where it has others of the same network."""
    states = dict(_states(content))
    if key in states:
        return states[key], []
    if not states:
        keys = (
            f", but a dict with the keys {_first(map(str, content))}" if isinstance(content, Mapping) else ""
        )
        raise ConfigError(
            f"model.weights: {path}: not a state dict{keys}", hint="save model.state_dict() instead"
        )
    names = (_WRAPPERS.sub("", name) for state in states.values() for name in state)
    if key is not None and not any(name.startswith(f"{key}.") for name in names):
        raise ConfigError(
            f"model.weights_key = {key}: {path} has none of that name, but {_first(filter(None, states))}",
            hint="choose one of these, a prefix of the names in it, or leave it unset",
        )
    averaged = [name for name in states if _AVERAGED.search(name)]
    trained = [name for name in states if name not in averaged]
    known = [name for name in trained if name.rpartition(".")[2] in _KEYS]
    taken = known or trained or averaged
    if len(taken) > 1:
        raise ConfigError(
            f"model.weights: {path}: has several state dicts: {_first(taken)}",
            hint=f"choose one: --set model.weights_key={taken[0]}",
        )
    others = [name for name in averaged if name != taken[0]]
    told = f"the weights of {taken[0]} are taken; averaged ones are there, too"
    return states[taken[0]], [
        f"{clean(path.name)}: {told}: --set model.weights_key={name}" for name in others[:1]
    ]


def _states(
    content: object, key: str = "", depth: int = 2
) -> Iterator[tuple[str, Mapping[str, torch.Tensor]]]:
    """Yield the state dicts in a checkpoint by their keys, joined by dots."""
    if _is_state(content):
        yield key, content  # type: ignore[misc] # as was just checked
    elif isinstance(content, Mapping) and depth:
        for name, value in content.items():
            if isinstance(name, str) and not name.startswith(("optim", "scaler", "amp")):
                yield from _states(value, f"{key}.{name}" if key else name, depth - 1)


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
        is_count = bare == "n_averaged" or _is_counter(bare)
        if not is_count and not _AUXILIARY_HEAD.match(bare):
            canonical[bare] = tensor
    return canonical


def _fitting(weights: State, model: nn.Module, path: Path, key: str | None) -> tuple[State, list[str]]:
    """Take a common prefix of names away that the network's names lack, such as `model.` of Lightning.

    Raises:
        ConfigError: Several prefixes fit, or `key` is neither a key nor a prefix.
    """
    own = {name for name in model.state_dict() if not _is_counter(name)}
    counts: Counter[str] = Counter()
    for name in weights:
        counts.update(name[: -len(rest)] for rest in _tails(name) if rest in own)
    fitting = [prefix for prefix, count in counts.items() if count == max(counts.values())]
    if key is not None and any(name.startswith(f"{key}.") for name in weights):
        fitting = [f"{key}."]
    fit_few = not fitting or (key is None and 2 * counts[fitting[0]] < len(own))
    if fit_few or "" in fitting:
        return weights, []
    averaged = [prefix for prefix in fitting if _AVERAGED.search(prefix)]
    taken = [prefix for prefix in fitting if prefix not in averaged] or averaged
    if len(taken) > 1:
        raise ConfigError(
            f"model.weights: {path}: has the weights of the network several times: {_first(taken)}",
            hint=f"choose one: --set model.weights_key={taken[0][:-1]}",
        )
    inside = {
        name.removeprefix(taken[0]): each for name, each in weights.items() if name.startswith(taken[0])
    }
    outside = [name for name in weights if not name.startswith(taken[0])]
    told = f"{clean(path.name)}: the weights of {taken[0][:-1]} are taken"
    notes = [f"{told}, and not {_first(outside)}"] if outside else []
    others = [prefix for prefix in averaged if prefix not in taken]
    notes += [f"{told}; averaged ones: --set model.weights_key={prefix[:-1]}" for prefix in others[:1]]
    return inside, notes[-1:]


def _tails(name: str) -> Iterator[str]:
    """Yield a name, and what is left of it after each of its first parts."""
    yield name
    for _ in range(3):
        name = name.partition(".")[2]
        if name:
            yield name


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
    if found is None or found[1].in_channels == RGB_BANDS:
        return []
    name = f"{found[0]}.weight"
    are_of_rgb = name in weights and weights[name].ndim == 4 and weights[name].shape[1] == RGB_BANDS
    if not are_of_rgb:
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
            hint="save the state dict of the float32 model: dense tensors, not quantised, with their data",
        )


def _odd_kind(tensor: torch.Tensor) -> str | None:
    """Describe a tensor that is not plain floating point; None if it is."""
    if tensor.is_nested:
        return "nested"
    if tensor.is_meta:
        return "on the meta device, without data"
    if tensor.is_quantized:
        return f"quantised ({dtype_name(tensor.dtype)})"
    if tensor.layout != torch.strided:
        return f"sparse ({str(tensor.layout).removeprefix('torch.')})"
    return None if tensor.dtype in _DTYPES else f"of dtype {dtype_name(tensor.dtype)}"


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
            hint="use an earlier checkpoint: the training that saved this one had diverged",
        )


def other_network(path: Path, faults: list[str]) -> ConfigError:
    """Return the error for a file with the weights of another network."""
    return ConfigError(
        "\n".join([f"model.weights: {path}: these are the weights of another network", *faults]),
        hint="use the --model that the file was trained with",
    )


def _first(names: Iterable[str]) -> str:
    listed = list(names)
    more = len(listed) - _NAMED_IN_AN_ERROR
    return ", ".join(listed[:_NAMED_IN_AN_ERROR]) + (f" and {more} more" if more > 0 else "")
