"""Training steps on images that are tiny in the last layers, by matrix products and by oneDNN's convolutions.

    python -m benchmarks.tiny_images         # results/tiny_images.json

Both networks have the same weights and take steps in turns, in one process: forward under autocast, backward,
clipping, AdamW. `mptui.models.layers.multiply_tiny_images` makes the products.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torchvision.models import get_model

from benchmarks.common import alternate, parser_of, ratios, save, spread
from mptui.models.layers import multiply_tiny_images

ROUNDS = 5
STEPS = 5
CASES = (("resnet18", 32, 64), ("resnet18", 64, 64), ("resnet50", 32, 64), ("resnet50", 64, 32))


def steps_of(
    model: str, side: int, batch: int, precision: torch.dtype, *, products: bool
) -> Callable[[], float]:
    """Returns what takes `STEPS` training steps, and returns the median of their seconds."""
    torch.manual_seed(0)
    network = get_model(model, num_classes=10).to(memory_format=torch.channels_last)
    if products:
        multiply_tiny_images(network)
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    images = torch.randn(batch, 3, side, side).to(memory_format=torch.channels_last)
    classes = torch.randint(0, 10, (batch,))

    def step() -> float:
        began = time.perf_counter()
        with torch.autocast("cpu", precision, enabled=precision != torch.float32):
            loss = F.cross_entropy(network(images), classes)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - began

    return lambda: statistics.median(step() for _ in range(STEPS))


def measure(model: str, side: int, batch: int, precision: torch.dtype) -> dict[str, Any]:
    """Measures seconds per step of both, and their ratio in each round."""
    print(f"{model}, {side} px, batch {batch}, {precision}")
    sides = {
        name: steps_of(model, side, batch, precision, products=name == "products")
        for name in ("products", "convolutions")
    }
    for take in sides.values():
        take()  # warm-up
    seconds = alternate(sides, ROUNDS)
    return {
        "name": f"{model}-{side}-{str(precision).removeprefix('torch.')}",
        "batch": batch,
        "seconds": {name: spread(values) for name, values in seconds.items()},
        "ratio": ratios(seconds["products"], seconds["convolutions"]),
    }


def main() -> None:
    """Measures and writes results/tiny_images.json."""
    parser_of(__doc__).parse_args()
    found = [measure(*case, dtype) for case in CASES for dtype in (torch.bfloat16, torch.float32)]
    for each in found:
        print(f"{each['name']}: {each['ratio']['median']:.2f}")
    save("tiny_images", {"rounds": ROUNDS, "steps": STEPS, "cases": found})


if __name__ == "__main__":
    main()
