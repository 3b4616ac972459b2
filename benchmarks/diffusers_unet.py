"""Our diffusion U-Net beside diffusers' UNet2DModel with its schedulers: loss, and images a second.

    python -m benchmarks.diffusers_unet DATA     # results/diffusers_unet-training.json, -sampling.json

Needs diffusers (`pip install 'mptui[peers]'`). DATA has train/ and val/ with folders of images. For each
seed, both networks are trained on the same batches of images of 16 px, with the same optimizer, rates,
clipping and number of steps, in fp32 and channels last. Ours gets its noise as in `mptui run`, theirs from
DDPMScheduler with the same noise levels; they take turns epoch by epoch, so that both meet the same load of
the machine. Neither has an EMA. The losses are of both on the same noise on val/, after the last step. Images
a second are of processor time, which other programs hardly change.

Sampling is that of `mptui sample` beside the loop of diffusers' documentation, by networks that have learnt
nothing, with as many steps at the same timesteps; the sides take turns, and the first round is not counted.
"""

import argparse
import time
from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.common import alternate, parser_of, ratios, save, spread, turn
from mptui.data.layouts.walk import walk_images
from mptui.data.noise import Noiser, Noising
from mptui.data.noise_schedule import TIMESTEPS, alphas_cumprod
from mptui.data.transforms import HALF
from mptui.models.diffusion_unet import DiffusionUNet
from mptui.registry.names import SamplingMethod
from mptui.tasks.image_sampler import ImageSampler

Rows = npt.NDArray[np.int64]
CPU = torch.device("cpu")
SIDE, WIDTH, DEPTH = 16, 32, 2
BATCH, LR, WARMUP, CLIP = 32, 1e-3, 50, 1.0
METHODS: tuple[SamplingMethod, ...] = ("ancestral", "ddim")


class Side(ABC):
    """A network with its schedule: in training, and making images."""

    network: nn.Module

    @abstractmethod
    def noised(self, images: torch.Tensor, indices: Rows, epoch: int) -> tuple[torch.Tensor, ...]:
        """Returns noisy images, noise and timesteps_B."""

    @abstractmethod
    def predicted(self, noisy: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        """Returns the noise that the network sees."""

    @abstractmethod
    def images(self, count: int, steps: int, method: SamplingMethod) -> torch.Tensor:
        """Returns pixels_BHWC, uint8."""


class Ours(Side):
    """The U-Net, noise and sampler of mptui."""

    def __init__(self, seed: int) -> None:
        self.network = DiffusionUNet(width=WIDTH, depth=DEPTH).to(memory_format=torch.channels_last)
        self._noiser = Noiser(seed, CPU, channels_last=True, train=True, mirror=False, noising=Noising())

    def noised(self, images: torch.Tensor, indices: Rows, epoch: int) -> tuple[torch.Tensor, ...]:
        return self._noiser.noised(images, indices, epoch)

    def predicted(self, noisy: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        noise: torch.Tensor = self.network(noisy, timesteps)
        return noise

    def images(self, count: int, steps: int, method: SamplingMethod) -> torch.Tensor:
        draw = ImageSampler(
            network=self.network,
            forward_context=torch.no_grad,
            noising=Noising(),
            normalization=HALF,
            side=SIDE,
            device=CPU,
            channels_last=True,
            method=method,
            steps=steps,
            seed=0,
        )
        return draw(np.arange(count))


class Diffusers(Side):
    """The U-Net and schedulers of diffusers, with our number of channels, blocks and heads."""

    def __init__(self, seed: int) -> None:
        from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel

        self.network = UNet2DModel(
            sample_size=SIDE,
            block_out_channels=tuple(WIDTH * (level + 1) for level in range(DEPTH + 1)),
            layers_per_block=2,
            down_block_types=("DownBlock2D", *["AttnDownBlock2D"] * DEPTH),
            up_block_types=(*["AttnUpBlock2D"] * DEPTH, "UpBlock2D"),
            attention_head_dim=32,
            norm_num_groups=8,
        ).to(memory_format=torch.channels_last)
        levels = {"num_train_timesteps": TIMESTEPS, "beta_schedule": "squaredcos_cap_v2"}
        self._schedulers = {
            "ancestral": DDPMScheduler(**levels, timestep_spacing="trailing"),
            "ddim": DDIMScheduler(**levels, timestep_spacing="trailing"),
        }
        theirs = self._schedulers["ancestral"].alphas_cumprod.double().numpy()
        np.testing.assert_allclose(theirs, alphas_cumprod(), rtol=1e-3, atol=1e-7)

    def noised(self, images: torch.Tensor, indices: Rows, epoch: int) -> tuple[torch.Tensor, ...]:
        noise = torch.randn_like(images)
        timesteps = torch.randint(0, TIMESTEPS, (len(images),))
        noisy = self._schedulers["ancestral"].add_noise(images, noise, timesteps)
        return noisy, noise, timesteps

    def predicted(self, noisy: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        noise: torch.Tensor = self.network(noisy, timesteps, return_dict=False)[0]
        return noise

    def images(self, count: int, steps: int, method: SamplingMethod) -> torch.Tensor:
        scheduler = self._schedulers[method]
        scheduler.set_timesteps(steps)
        sample = torch.randn(count, 3, SIDE, SIDE).contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            for timestep in scheduler.timesteps:
                noise = self.network(sample, timestep, return_dict=False)[0]
                sample = scheduler.step(noise, timestep, sample, return_dict=False)[0]
        return (sample / 2 + 0.5).clamp(0, 1).mul(255).round().to(torch.uint8).permute(0, 2, 3, 1)


SIDES = {"mptui": Ours, "diffusers": Diffusers}


class Training:
    """One network in training; each call of `epoch` trains one."""

    def __init__(self, side: Side, images: torch.Tensor, epochs: int, seed: int) -> None:
        self._side, self._images, self._seed = side, images, seed
        self._optimizer = torch.optim.AdamW(side.network.parameters(), lr=LR, fused=True)
        steps = epochs * (len(images) // BATCH)
        warm = torch.optim.lr_scheduler.LinearLR(self._optimizer, 0.1, total_iters=WARMUP)
        rest = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, steps - WARMUP)
        self._rates = torch.optim.lr_scheduler.SequentialLR(self._optimizer, [warm, rest], [WARMUP])
        self.seconds = 0.0

    def epoch(self, number: int) -> None:
        order = np.random.default_rng((self._seed, number)).permutation(len(self._images))
        began = time.process_time()
        self._side.network.train()
        for first in range(0, len(order) - BATCH + 1, BATCH):
            indices = order[first : first + BATCH]
            images = self._images[indices].contiguous(memory_format=torch.channels_last)
            noisy, noise, timesteps = self._side.noised(images, indices, number)
            loss = F.mse_loss(self._side.predicted(noisy, timesteps), noise)
            self._optimizer.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(self._side.network.parameters(), CLIP)
            self._optimizer.step()
            self._rates.step()
        self.seconds += time.process_time() - began


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", choices=("training", "sampling"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5, help="of sampling, the first one not counted")
    parser.add_argument("--count", type=int, default=16, help="images of each round")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    settings = {key: value for key, value in vars(given).items() if key not in {"data", "only"}}
    if given.only != "sampling":
        save("diffusers_unet-training", {"settings": settings, **_trained(given)})
    if given.only != "training":
        sides = {name: make(0) for name, make in SIDES.items()}
        document = {name: _sampled(given, sides, name) for name in METHODS}
        save("diffusers_unet-sampling", {"settings": settings, "images_per_second": document})


def _trained(given: argparse.Namespace) -> dict[str, Any]:
    """Trains both with each seed; returns their sizes, losses and images a second."""
    train, val = (_images(given.data / part) for part in ("train", "val"))
    losses: dict[str, list[float]] = {name: [] for name in SIDES}
    rates: dict[str, list[float]] = {name: [] for name in SIDES}
    for seed in range(given.seeds):
        torch.manual_seed(seed)
        sides = {name: make(seed) for name, make in SIDES.items()}
        trainings = {name: Training(side, train, given.epochs, seed) for name, side in sides.items()}
        for number in range(given.epochs):
            for name in turn(SIDES, number):
                trainings[name].epoch(number)
        for name, side in sides.items():
            losses[name].append(_loss(side, val))
            rates[name].append(given.epochs * len(train) / trainings[name].seconds)
            told = f"loss {losses[name][-1]:.4f}  {rates[name][-1]:.1f} images/s"
            print(f"  seed {seed}  {name:<12} {told}", flush=True)
    return {
        "networks": {name: _size(side) for name, side in sides.items()},
        "val_loss": {**losses, "ratio": ratios(losses["mptui"], losses["diffusers"])},
        "images_per_second": {**rates, "ratio": ratios(rates["mptui"], rates["diffusers"])},
    }


def _images(folder: Path) -> torch.Tensor:
    """Returns all images as images_NCHW in -1..1."""
    opened = (Image.open(path).convert("RGB") for path in sorted(walk_images(str(folder))))
    pixels = np.stack([np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)) for image in opened])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1


@torch.no_grad()
def _loss(side: Side, val: torch.Tensor) -> float:
    """Returns the error on noise and timesteps that are the same for both."""
    noiser = Noiser(0, CPU, channels_last=True, train=False, mirror=False, noising=Noising())
    side.network.eval()
    noisy, noise, timesteps = noiser.noised(val, np.arange(len(val)), 0)
    return float(F.mse_loss(side.predicted(noisy, timesteps), noise))


def _size(side: Side) -> dict[str, float]:
    noisy, timesteps = torch.zeros(1, 3, SIDE, SIDE), torch.zeros(1, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        side.predicted(noisy, timesteps)
    parameters = sum(parameter.numel() for parameter in side.network.parameters())
    return {"parameters": parameters, "gflop_forward": counter.get_total_flops() / 1e9}


def _sampled(given: argparse.Namespace, sides: dict[str, Side], method: SamplingMethod) -> dict[str, Any]:
    def rate(name: str) -> float:
        began = time.process_time()
        sides[name].images(given.count, given.steps, method)
        return float(given.count / (time.process_time() - began))

    for side in sides.values():
        side.network.eval()
    figures = alternate({name: partial(rate, name) for name in sides}, given.rounds)
    counted = {name: found[1:] for name, found in figures.items()}
    return {name: spread(found) for name, found in counted.items()} | {
        "ratio": ratios(counted["mptui"], counted["diffusers"])
    }


if __name__ == "__main__":
    main()
