"""The host's time that holding the buffers of a network adds to a step. Run it as a module."""

import time

import torch
import torchvision

from mptui.engine.optim.buffers import RevertibleBuffers

CALLS, REPEATS = 300, 12


class WithCodebook(torch.nn.Module):
    """A ResNet-18 with a codebook and a count of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torchvision.models.resnet18()
        self.register_buffer("codes", torch.zeros(1024, 64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


def microseconds(model: torch.nn.Module, *, sync: bool) -> float:
    """Return the least processor time of a call, of several repeats."""
    buffers, good = RevertibleBuffers(model, sync=sync), torch.tensor(True)
    buffers.refresh()
    best = float("inf")
    for _ in range(REPEATS):
        started = time.process_time()
        for _ in range(CALLS):
            buffers.keep_if(good)
        best = min(best, (time.process_time() - started) / CALLS)
    return best * 1e6


def main() -> None:
    """Print the times of a ResNet-18, and of one with buffers of its own."""
    torch.set_num_threads(1)
    for name, model in (("resnet18", torchvision.models.resnet18()), ("with a codebook", WithCodebook())):
        for how, sync in (("asked", True), ("not asked", False)):
            print(f"{name}, the device {how}: {microseconds(model, sync=sync):.1f} us a step")


if __name__ == "__main__":
    main()
