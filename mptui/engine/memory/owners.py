"""What the memory of a CUDA device belongs to when it is full.

torch's allocator lists its blocks by address (`torch.cuda.memory._snapshot`, a dictionary of this process:
nothing is unpickled). A block belongs to the tensors that begin in it; what belongs to none that the run
keeps are activations, their gradients and temporaries.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from mptui import format as fmt
from mptui.engine.job import Parts
from mptui.engine.optim.ema import WeightAverage

GAPS = "free, in gaps"
REST = "activations and temporaries"
_ACTIVE = "active"


def kept_tensors(model: torch.nn.Module, parts: Parts) -> dict[str, list[torch.Tensor]]:
    """Return the tensors that last from step to step, by what they are."""
    states = parts.optimizer.state.values()
    average = parts.average
    return {
        "weights": [*model.parameters(), *model.buffers()],
        "gradients": [each.grad for each in model.parameters() if each.grad is not None],
        "optimizer states": [
            value for state in states for value in state.values() if isinstance(value, torch.Tensor)
        ],
        "averaged weights": average.averages() if isinstance(average, WeightAverage) else [],
    }


def owners(
    segments: Iterable[Mapping[str, Any]], kept: Mapping[str, Iterable[torch.Tensor]]
) -> list[tuple[str, int]]:
    """Return what the allocator's memory belongs to, the largest first: names and bytes.

    Args:
        segments: Those of torch's snapshot, of one device.
        kept: The tensors of the run by what they are.
    """
    blocks = []
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            blocks.append((address, block["size"], block["state"].startswith(_ACTIVE)))
            address += block["size"]
    blocks.sort()
    starts = [address for address, _, _ in blocks]
    names: dict[int, str] = {}
    for name, tensors in kept.items():
        for tensor in tensors:
            number = bisect_right(starts, tensor.untyped_storage().data_ptr()) - 1
            if number >= 0:
                names[number] = name
    sums: Counter[str] = Counter()
    for number, (_, size, is_active) in enumerate(blocks):
        sums[names.get(number, REST) if is_active else GAPS] += size
    return sums.most_common()


def owners_in_words(model: torch.nn.Module, parts: Parts, device: torch.device) -> str:
    """Describe what the memory of a device belongs to now; "" where its allocator doesn't tell."""
    if device.type != "cuda":
        return ""
    snapshot = torch.cuda.memory._snapshot(device)
    here = [each for each in snapshot["segments"] if each["device"] == (device.index or 0)]
    return ", ".join(f"{fmt.size(size)} {name}" for name, size in owners(here, kept_tensors(model, parts)))
