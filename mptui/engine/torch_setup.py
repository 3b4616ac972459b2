"""Sets torch's global switches, before the first model is built: nothing else does."""

import os
from collections.abc import Callable

import torch

from mptui.config.schema import RunConfig

_64_BITS = 2**64 - 1


def prepare_torch(config: RunConfig, device: torch.device) -> None:
    """Set determinism, the seed and the switches of a run: once, before the model is made."""
    if config.training.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.training.deterministic)
    torch.backends.cudnn.benchmark = not config.training.deterministic
    torch.manual_seed(config.training.seed)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    set_switches(config)


def set_switches(config: RunConfig) -> None:
    """Set what another profile may change in the middle of a run: TF32 and autograd's anomaly mode.

    TF32 goes through the older setters: mixed with the `fp32_precision` ones of torch 2.9 they clash.
    """
    torch.set_float32_matmul_precision("high" if config.precision.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = config.precision.tf32
    torch.autograd.set_detect_anomaly(config.guards.detect_anomaly)


class StepSeeds:
    """Randomness on the device from the position in the run alone: the same after a resume or a retry."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._seeders: list[Callable[[int], object]] = [torch.default_generator.manual_seed]
        if device.type == "mps":
            self._seeders.append(torch.mps.manual_seed)
        elif device.type != "cpu":
            module = torch.get_device_module(device)
            self._seeders.append(module.default_generators[device.index or 0].manual_seed)

    def set(self, epoch: int, sample: int) -> None:
        """Seed dropout and its like for the optimizer step that begins there in the data.

        Not for the count of steps: a batch that is left out must not change what comes after it.
        """
        place = (epoch << 40) + sample
        # SplitMix64's last steps (Steele, Lea and Flood 2014): torch's generator on the CPU takes the lower
        # 32 bits alone, and each of them must depend on the epoch
        mixed = (self._seed * 0x9E3779B97F4A7C15 + place) & _64_BITS
        mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _64_BITS
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _64_BITS
        position = (mixed ^ mixed >> 31) >> 1
        for seeder in self._seeders:
            seeder(position)
