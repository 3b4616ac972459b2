"""Physical lower bound of step time, from its operations, its bytes and the machine's measured ceilings.

Layers run one after the other. Each takes at least the longer of two times: its operations at the ceiling of
a large product or convolution, whichever is faster (on some processors they come from different libraries),
and its bytes at the ceiling of a large copy. Both ceilings are measured in the same run as the figures
compared with them.

Bytes that a step must move: a convolution or product reads two operands and writes one, three times
(forward, input gradient, weight gradient; the first layer has no input gradient). A batch normalization,
fused with its activation, reads its values twice, for statistics and use, and writes once; backward it reads
them and their gradient twice and writes once. Pooling and resizing move input and output, twice. Additions
and concatenations count as fused with their neighbours. One multiply-add is two operations.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

_PRODUCTS = (nn.modules.conv._ConvNd, nn.Linear)
_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
_RESIZING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Upsample)

REPEATS = 5
PRODUCT_SIDE = {"cpu": 2048, "cuda": 8192}
COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 31}
CONVOLUTION = {"cpu": (8, 256, 28), "cuda": (64, 512, 56)}
"""Batch size, channels in and out, and side in pixels, of a 3x3 convolution."""


@dataclass(frozen=True)
class Layer:
    """Multiply-adds and values moved by one pass of one layer, per image."""

    name: str
    multiply_adds: int
    values: int


@dataclass(frozen=True)
class Work:
    """Work of a training step per image, pass by pass."""

    passes: tuple[Layer, ...]

    @property
    def operations(self) -> int:
        """Operations of a step, per image."""
        return sum(2 * each.multiply_adds for each in self.passes)

    @property
    def values(self) -> int:
        """Values read and written in a step, per image."""
        return sum(each.values for each in self.passes)

    def images_per_second(self, operations_s: float, bytes_s: float, value_bytes: int) -> float:
        """Returns the bound as throughput.

        Args:
            operations_s: Operations per second of a large product or convolution in the same precision.
            bytes_s: Bytes per second that a large copy reads and writes, together.
            value_bytes: Bytes of an activation.
        """
        seconds = (
            max(2 * each.multiply_adds / operations_s, each.values * value_bytes / bytes_s)
            for each in self.passes
        )
        return 1 / sum(seconds)


def work_of(model: nn.Module, side: int, batch: int) -> Work:
    """Computes the work of a training step of `model` on images of `side` pixels, weights shared by `batch`.

    Runs the model once on the meta device and leaves it there.
    """
    passes: list[Layer] = []

    def note(name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...], torch.Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            moved, put = inputs[0].numel(), output.numel()
            if isinstance(module, _PRODUCTS):
                weights = module.weight.numel()
                macs = _multiply_adds(module, inputs[0], output)
                times = 2 if not any(p.multiply_adds for p in passes) else 3
                passes.extend([Layer(name, macs, moved + put + weights // batch)] * times)
            elif isinstance(module, _NORMS):
                passes.extend([Layer(name, 0, 3 * put), Layer(name, 0, 5 * put)])
            elif isinstance(module, _RESIZING):
                passes.extend([Layer(name, 0, moved + put)] * 2)

        return hook

    model = model.to("meta")
    hooks = [module.register_forward_hook(note(name)) for name, module in model.named_modules()]
    with torch.no_grad():
        model.eval()(torch.empty(1, 3, side, side, device="meta"))
    for hook in hooks:
        hook.remove()
    return Work(tuple(passes))


def _multiply_adds(module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> int:
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return given.numel() * weight[0].numel()  # each input pixel meets all weights of its channel
    return output.numel() * weight[0].numel()


def ceilings(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Measures the ceilings of this machine.

    Returns:
        Operations per second of a large product or convolution, whichever is faster, and bytes per second of
        a large copy, read and written.
    """
    side, size = PRODUCT_SIDE[device.type], COPY_BYTES[device.type]
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    product = 2 * side**3 / _seconds(lambda: torch.mm(left, right), device)
    copy = _seconds(lambda: target.copy_(source), device)
    return {"operations_s": max(product, _convolution(device, dtype)), "bytes_s": 2 * size / copy}


def _convolution(device: torch.device, dtype: torch.dtype) -> float:
    """Returns operations per second of a large convolution, channels last."""
    count, channels, side = CONVOLUTION[device.type]
    with torch.device(device), torch.no_grad():
        layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False).to(dtype)
        layer = layer.to(memory_format=torch.channels_last)
        images = torch.randn(count, channels, side, side, dtype=dtype)
        images = images.contiguous(memory_format=torch.channels_last)
        seconds = _seconds(lambda: layer(images), device)
    return 2 * count * side**2 * channels**2 * 9 / seconds


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Returns median seconds of `work` after warm-up, device time included."""
    work()
    took = []
    for _ in range(REPEATS):
        synchronize(device)
        started = time.perf_counter()
        work()
        synchronize(device)
        took.append(time.perf_counter() - started)
    return statistics.median(took)


def synchronize(device: torch.device) -> None:
    """Waits until `device` has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    """Prints a device as torch sees it, with its ceilings in its fastest type, as JSON; argv has its name."""
    device = torch.device(sys.argv[1])
    about: dict[str, object] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "free_bytes": None,
        "half": ["bf16", "fp16"],
    }
    dtype = torch.float32
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        about |= {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "processors": properties.multi_processor_count,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            "free_bytes": torch.cuda.mem_get_info(device)[0],
        }
        dtype = torch.bfloat16 if properties.major >= 8 else torch.float16
        about["half"] = [*(["bf16"] if dtype == torch.bfloat16 else []), "fp16"]
    print(json.dumps({**about, "ceilings": ceilings(device, dtype)}))


if __name__ == "__main__":
    main()
