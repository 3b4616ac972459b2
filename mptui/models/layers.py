"""The layers of any network: by order and by name; other bands at the input, heads."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mptui.errors import ConfigError
from mptui.torch_private import BatchNorm, Convolve, NormBase, convolve_by, is_in_backward

# The layers of any network: by their order from the input, and by name
# ---------------------------------------------------------------------

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def layers_of(model: nn.Module) -> list[list[nn.Parameter]]:
    """Return the parameters of each layer, first layer first.

    A layer is a block, such as a residual or a transformer block: the outermost module of a class that the
    network has more than once. Other modules are opened, so that each convolution or linear layer outside of
    blocks is a layer, too. Norms, biases, tokens and position embeddings outside of blocks belong to the
    layer before them, and before the first matrix to the first layer: as in BEiT (Bao et al. 2022).

    The order is that in which the modules were registered.
    """
    kinds = Counter(type(module) for module in model.modules())
    layers: list[list[nn.Parameter]] = [[]]
    seen: set[nn.Parameter] = set()
    begun = False

    def add(parameters: list[nn.Parameter]) -> None:
        layers[-1].extend(p for p in parameters if p not in seen)
        seen.update(parameters)

    def visit(module: nn.Module) -> None:
        nonlocal begun
        is_block = kinds[type(module)] > 1 and type(module) not in _CONTAINERS
        if not is_block and any(module.children()):
            add(list(module.parameters(recurse=False)))
            for child in module.children():
                visit(child)
            return
        parameters = list(module.parameters())
        if any(parameter.ndim >= 2 for parameter in parameters):
            if begun:
                layers.append([])
            begun = True
        add(parameters)

    visit(model)
    return [layer for layer in layers if layer]


def layers_named(model: nn.Module, patterns: Sequence[str], *, key: str) -> list[str]:
    """Return the names of the modules that match `patterns`, without those inside another match.

    Args:
        model: The network.
        patterns: Module names; `*` matches any text, dots included.
        key: The setting that has the patterns, for the message.

    Raises:
        ConfigError: A pattern matches no module.
    """
    names = [name for name, _ in model.named_modules() if name]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = get_close_matches(pattern, names, n=1) or names[:1]
            raise ConfigError(
                f'{key}: the network has no layer "{pattern}"',
                hint=f"use names of the network's layers, such as {near[0]}" if near else "remove it",
            )
    chosen: list[str] = []
    for name in names:
        inside = any(name.startswith(f"{outer}.") for outer in chosen)
        if not inside and any(fnmatchcase(name, pattern) for pattern in patterns):
            chosen.append(name)
    return chosen


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a network has BatchNorm, whose statistics are those of a micro-batch."""
    return any(isinstance(module, BatchNorm) for module in model.modules())


def has_synchronized_norm(model: nn.Module) -> bool:
    """Whether a network has BatchNorm that normalizes by the samples of all ranks."""
    return any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a network's state by name, without extra state that is none."""
    state: dict[str, object] = model.state_dict()
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


# Fits a network for RGB to images of another number of bands: its first convolution is adapted
# ---------------------------------------------------------------------------------------------

RGB_BANDS = 3


def first_convolution(model: nn.Module) -> tuple[str, nn.Conv2d] | None:
    """Return the convolution that sees the image, the first one registered, and its name; or None."""
    found = ((name, module) for name, module in model.named_modules() if isinstance(module, nn.Conv2d))
    return next(found, None)


def adapt_first_convolution(model: nn.Module, bands: int) -> bool:
    """Let the first convolution of a network for RGB with random weights take `bands` bands.

    Its weights are drawn anew, so that its outputs keep their variance.

    Returns:
        Whether it takes them now; False: it takes neither RGB nor these bands.
    """
    found = first_convolution(model)
    if found is None:
        return False
    _, conv = found
    if conv.in_channels == bands:
        return True
    if conv.in_channels != RGB_BANDS or conv.groups != 1:
        return False
    out, _, height, width = conv.weight.shape
    drawn = torch.randn(out, bands, height, width, dtype=conv.weight.dtype, device=conv.weight.device)
    conv.weight = nn.Parameter(drawn * conv.weight.detach().std() * (RGB_BANDS / bands) ** 0.5)
    conv.in_channels = bands
    return True


def adapted_filters(weight: torch.Tensor, bands: int) -> torch.Tensor:
    """Convert the filters of a first convolution from RGB to other bands, as timm does.

    For one band, they are summed over RGB. For others, R, G and B are repeated in turn and scaled by
    3 / bands, which keeps the size of the outputs (`timm.models.adapt_input_conv`).

    Args:
        weight: Filters of shape (O, 3, height, width).
        bands: Number of bands.
    """
    if bands == 1:
        return weight.sum(dim=1, keepdim=True)
    turns = -(-bands // RGB_BANDS)
    return weight.repeat(1, turns, 1, 1)[:, :bands] * (RGB_BANDS / bands)


# Convolves tiny images on a CPU by matrix products
# --------------------------------------------------
# In place of oneDNN's convolutions with outputs of up to 2x2, such as the last maps of a ResNet at 32 pixels,
# and of those with kernel taps that see padding alone. A training step of ResNet-18 at 32 pixels, batch 64,
# takes 0.57 of the time in bf16, 0.80 in float32 (`python -m benchmarks.tiny_images`). And oneDNN's gradient
# in bf16 (AVX-512 and later) doesn't write the weights of such taps, which should be zero: what the memory
# had before, even NaN, reaches the weights (torch 2.13 to 2.15, strides above 1, kernels above 3).

_TINY = 2
"""Height and width of outputs up to which a product is faster with any kernel; at 4 it is not. The images are
at most twice as large: others have kernels of many taps, as those that cut patches for a transformer."""


def multiply_tiny_images(model: nn.Module) -> None:
    """Let each convolution of `model` compute by a matrix product where images on a CPU are tiny.

    The function is the same, but for the rounding of another order of sums; an exported program has the
    convolutions.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.padding_mode == "zeros":
            convolve_by(module, partial(_convolve, module))


def _convolve(
    conv: nn.Conv2d,
    plain: Convolve,
    images_BCHW: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    is_here = images_BCHW.device.type == "cpu" and images_BCHW.dim() == 4
    if not is_here or isinstance(conv.padding, str) or torch.compiler.is_exporting():
        return plain(images_BCHW, weight, bias)
    sides = images_BCHW.shape[-2:]
    is_small = conv.groups == 1 and max(sides) <= 2 * _TINY  # asked first: nearly all images are larger
    is_tiny = is_small and max(_outputs(conv, sides, axis) for axis in (0, 1)) <= _TINY
    if not is_tiny and not has_idle_taps(conv, sides):
        return plain(images_BCHW, weight, bias)
    return _product(conv, [_reach(conv, sides, axis) for axis in (0, 1)], images_BCHW, weight, bias)


@dataclass(frozen=True, slots=True)
class _Reach:
    """The taps of a kernel that see the image, in one dimension.

    Attributes:
        taps: From the first to the last of them.
        pixels: What each of them sees, in the padded image.
    """

    taps: slice
    pixels: tuple[slice, ...]


def _reach(conv: nn.Conv2d, sides: Sequence[int], axis: int) -> _Reach:
    assert isinstance(conv.padding, tuple), "chosen so"
    side, pad, outputs = sides[axis], conv.padding[axis], _outputs(conv, sides, axis)
    kernel, stride, dilation = conv.kernel_size[axis], conv.stride[axis], conv.dilation[axis]
    live = [tap for tap in range(kernel) if _sees(side, stride, tap * dilation - pad, outputs)] or [0]
    taps = range(live[0], live[-1] + 1)
    length = (outputs - 1) * stride + 1
    pixels = tuple(slice(tap * dilation, tap * dilation + length, stride) for tap in taps)
    return _Reach(slice(taps.start, taps.stop), pixels)


def _product(
    conv: nn.Conv2d,
    reaches: Sequence[_Reach],
    images_BCHW: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    rows, columns = reaches
    assert isinstance(conv.padding, tuple), "chosen so"
    high, wide = conv.padding
    padded_BHWC = F.pad(images_BCHW, (wide, wide, high, high)).permute(0, 2, 3, 1)
    kernel_OHWC = weight.permute(0, 2, 3, 1)[:, rows.taps, columns.taps]
    patches = torch.cat([padded_BHWC[:, y, x] for y in rows.pixels for x in columns.pixels], dim=-1)
    if conv.groups == 1:
        outputs_BHWC = F.linear(patches, kernel_OHWC.flatten(1), bias)
    else:
        outputs_BHWC = _grouped(patches, kernel_OHWC, conv.groups)
        outputs_BHWC = outputs_BHWC if bias is None else outputs_BHWC + bias.to(outputs_BHWC.dtype)
    return outputs_BHWC.permute(0, 3, 1, 2)


def _grouped(patches: torch.Tensor, kernel_OHWC: torch.Tensor, groups: int) -> torch.Tensor:
    taps, channels = kernel_OHWC.shape[1:3].numel(), kernel_OHWC.shape[3]
    patches_GMK = patches.reshape(-1, taps, groups, channels).permute(2, 0, 1, 3).flatten(2)
    kernel_GKO = kernel_OHWC.reshape(groups, -1, taps * channels).transpose(1, 2)
    outputs_MO = torch.matmul(patches_GMK, kernel_GKO).transpose(0, 1).flatten(1)
    return outputs_MO.view(*patches.shape[:3], -1)


def has_idle_taps(conv: nn.Conv2d, sides: Sequence[int]) -> bool:
    """Whether a row or column of the kernel only sees padding, for images of `sides` (H, W)."""
    return any(_is_idle(conv, sides, axis) for axis in (0, 1))


def _is_idle(conv: nn.Conv2d, sides: Sequence[int], axis: int) -> bool:
    assert isinstance(conv.padding, tuple), "chosen so"
    side, pad, stride = sides[axis], conv.padding[axis], conv.stride[axis]
    kernel, dilation = conv.kernel_size[axis], conv.dilation[axis]
    if side >= kernel * dilation + stride + pad:
        return False
    outputs = _outputs(conv, sides, axis)
    return not all(_sees(side, stride, tap * dilation - pad, outputs) for tap in range(kernel))


def _outputs(conv: nn.Conv2d, sides: Sequence[int], axis: int) -> int:
    """Height (`axis` 0) or width (1) of the output."""
    assert isinstance(conv.padding, tuple), "chosen so"
    reach = conv.dilation[axis] * (conv.kernel_size[axis] - 1) + 1
    return (sides[axis] + 2 * conv.padding[axis] - reach) // conv.stride[axis] + 1


def _sees(side: int, stride: int, shift: int, outputs: int) -> bool:
    """Whether a tap that is `shift` pixels right of an output's place sees the image in any output."""
    first = max(0, -(shift // stride))  # the first output whose tap is not left of the image
    return first < outputs and first * stride + shift < side


# Wraps the forward of a module in place: the network's structure, names and state_dict stay as they are
# ------------------------------------------------------------------------------------------------------

Forward = Callable[..., Any]

_CHAIN = "_wrapped_forward"


class WrappedForward:
    """Replaces the forward of `module` by `around(forward)` until `remove`; a later one is outside.

    Several can be removed in any order.
    """

    def __init__(self, module: nn.Module, around: Callable[[Forward], Forward]) -> None:
        self._module = module
        # first a forward of the instance, which the class does not have
        self._chain: list[Any] = vars(module).setdefault(_CHAIN, [vars(module).get("forward")])
        self._chain.append(self)
        self._around = around
        module.forward = around(module.forward)

    @property
    def module(self) -> nn.Module:
        """The module whose forward is wrapped."""
        return self._module

    def remove(self) -> None:
        """Restore the forward without this one."""
        module, own = self._module, self._chain[0]
        self._chain.remove(self)
        vars(module).pop("forward")
        if own is not None:
            module.forward = own
        for wrapped in self._chain[1:]:
            module.forward = wrapped._around(module.forward)
        if len(self._chain) == 1:
            vars(module).pop(_CHAIN)


# Activation checkpointing (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost")
# --------------------------------------------------------------------------------------------
# Of each block of a network only the inputs are kept for the backward pass, which computes the rest again,
# by torch.utils.checkpoint: with the same random numbers and the same autocast state, so that gradients are
# those without it, to the bit. BatchNorm counts each batch once.

_LEAST_MATRICES = (2, 1)
"""Matrices or kernels in a block. Blocks of one, such as a convolution with its norm, are taken where there
are none of two: of them less is saved."""


def recomputing() -> bool:
    """Whether this is a forward pass inside a backward pass: one that repeats another."""
    return is_in_backward()


def apply_activation_checkpointing(model: nn.Module) -> list[WrappedForward]:
    """Recompute the blocks of `model` in the backward pass, until the result is removed.

    Raises:
        ConfigError: As `blocks_of`.
    """
    blocks = blocks_of(model)
    wrapped = [WrappedForward(block, _checkpointed) for block in blocks]
    norms = [norm for block in blocks for norm in block.modules() if isinstance(norm, NormBase)]
    return wrapped + [WrappedForward(norm, partial(_counted_once, norm)) for norm in norms]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a network, such as residual or transformer blocks, in the order of registration.

    A block is a module of several layers whose class the network has more than once, or a member of an
    `nn.ModuleList`. Stages are opened: they have several blocks of one class.

    Raises:
        ConfigError: It has none.
    """
    kinds = Counter(type(module) for module in model.modules())

    def blocks_in(module: nn.Module, least: int) -> Iterator[nn.Module]:
        for part in _parts(module, least):
            is_repeated = kinds[type(part)] > 1 and not _is_stage(part, least)
            if is_repeated or isinstance(part, _CONTAINERS):
                yield part
            else:
                yield from blocks_in(part, least)

    found = (list(blocks_in(model, least)) for least in _LEAST_MATRICES)
    blocks = next(filter(None, found), [])
    if not blocks:
        raise ConfigError(
            "memory.activation_checkpointing: this network has no repeated blocks to recompute",
            hint="set it to false, or use another network; memory.micro_batch saves memory, too",
        )
    return blocks


def _is_stage(module: nn.Module, least: int) -> bool:
    kinds = Counter(type(part) for part in _parts(module, least))
    return max(kinds.values(), default=0) > 1


def _parts(module: nn.Module, least: int) -> Iterator[nn.Module]:
    """Yield the modules of `least` layers or more directly inside `module`, or inside its containers."""
    for child in module.children():
        matrices = sum(parameter.ndim > 1 for parameter in child.parameters())
        if matrices < least or not any(child.children()):
            continue
        inner = list(_parts(child, least)) if isinstance(child, _CONTAINERS) else [child]
        # e.g. a level of a U-Net
        yield from inner or ([child] if isinstance(module, nn.ModuleList) else [])


def _checkpointed(forward: Forward) -> Forward:
    def keep_inputs(*inputs: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the block takes and gives
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        return checkpoint(forward, *inputs, use_reentrant=False, **named)

    return keep_inputs


def _counted_once(norm: NormBase, forward: Forward) -> Forward:
    def count_once(images: torch.Tensor) -> Any:  # noqa: ANN401 - as of the module
        # compiled code is functional: what it computes again it does not store again
        if torch.compiler.is_compiling() or not recomputing():
            return forward(images)
        momentum, count = norm.momentum, norm.num_batches_tracked
        norm.momentum = 0.0
        norm.num_batches_tracked = None if count is None else count.clone()
        try:
            return forward(images)
        finally:
            norm.momentum = momentum
            norm.num_batches_tracked = count

    return count_once
