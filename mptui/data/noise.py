"""The forward process of a diffusion model (Ho, Jain and Abbeel 2020), on the device in float32.

The timestep and the noise of a sample depend only on the seed, the epoch and its index: micro-batches, a
repeated step and a resumed run see the same noise, on any device up to rounding.

Shapes: B samples, H and W pixels, C channels, T timesteps.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mptui.config.schema import RunConfig
from mptui.data.batch import Batch, to_device
from mptui.data.noise_schedule import TIMESTEPS, alphas_cumprod
from mptui.data.rng import STEP, RandomStream, keys, uniforms
from mptui.models.latents import FrozenVae, open_vae
from mptui.registry.names import NoiseSchedule, Prediction
from mptui.registry.tasks import LABEL_DROPOUT

_GOLDEN = (math.sqrt(5) - 1) / 2
_STEP = int(STEP.astype(np.int64))
_FIRST, _SECOND = (
    int(np.uint64(factor).astype(np.int64)) for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_LOW_32 = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Noising:
    """How images, or their latents, become noisy, and what of them is the target.

    Attributes:
        schedule: The noise levels by timestep.
        prediction: The target.
        null_label: The label of images of any class; None: the network learns no classes.
        label_dropout: Fraction of training samples that get `null_label` in place of their own.
        vae: Encodes the images as the latents that are learnt; None: the images are.
    """

    schedule: NoiseSchedule = "cosine"
    prediction: Prediction = "epsilon"
    null_label: int | None = None
    label_dropout: float = LABEL_DROPOUT
    vae: FrozenVae | None = None

    @classmethod
    def of(cls, config: RunConfig, num_classes: int, device: torch.device) -> "Noising":
        """Return that of a run whose data has so many classes; the VAE, if there is one, is on `device`.

        Raises:
            ConfigError: As `open_vae`.
        """
        training = config.training
        null_label = num_classes if config.model.class_conditional else None
        dropout = LABEL_DROPOUT if training.label_dropout is None else training.label_dropout
        vae = open_vae(config.model, device)
        return cls(training.noise_schedule, training.prediction, null_label, dropout, vae)


class Noiser:
    """Adds noise to the batches of a split.

    Args:
        seed: Seed of the noise and the timesteps.
        device: The device of the images.
        channels_last: Whether the noise is NHWC in memory.
        train: Whether timesteps are random; otherwise each sample has a fixed one, evenly distributed.
        mirror: Whether to first mirror images left to right with a probability of 1/2; latents never, as
            those of a mirrored image are others.
        noising: The schedule and the target.
    """

    def __init__(
        self,
        seed: int,
        device: torch.device,
        *,
        channels_last: bool,
        train: bool,
        mirror: bool,
        noising: Noising,
    ) -> None:
        self._seed = seed
        self._channels_last = channels_last
        self._train = train
        self._mirror = mirror and noising.vae is None
        self._predicts_v = noising.prediction == "v"
        self._null_label = noising.null_label
        self._dropout = noising.label_dropout if train else 0.0
        alpha_bar = alphas_cumprod(noising.schedule)
        self._image_T = torch.tensor(np.sqrt(alpha_bar), dtype=torch.float32, device=device)
        self._noise_T = torch.tensor(np.sqrt(1 - alpha_bar), dtype=torch.float32, device=device)

    def add(self, batch: Batch, indices: npt.NDArray[np.int64], epoch: int) -> None:
        """Make the images of a batch noisy: sets its target, timesteps and labels. Never syncs.

        Args:
            batch: Normalised images or latents, and the labels_B of samples with classes as targets.
            indices: As of `noised`.
            epoch: As of `noised`.
        """
        labels_B = batch.targets
        batch.images_BCHW, batch.targets, batch.timesteps = self.noised(batch.images_BCHW, indices, epoch)
        if self._null_label is not None:
            hidden_B = uniforms(RandomStream.LABEL, self._seed, epoch, indices, count=1)[:, 0] < self._dropout
            batch.labels = labels_B.masked_fill(to_device(hidden_B, labels_B.device), self._null_label)

    def noised(
        self, images_BCHW: torch.Tensor, indices: npt.NDArray[np.int64], epoch: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draw noise and timesteps for these samples. Never syncs.

        Args:
            images_BCHW: float32 in -1..1.
            indices: Indices of the samples in the split, length B.
            epoch: Epoch, from 0.

        Returns:
            The noisy images and the target, both float32 BCHW, and timesteps_B as int64.
        """
        B, C, H, W = images_BCHW.shape
        drawn = np.stack(
            [
                keys(RandomStream.NOISE, self._seed, epoch, indices).view(np.int64),
                self._timesteps(indices, epoch),
                uniforms(RandomStream.GEOMETRY, self._seed, epoch, indices, count=1)[:, 0] < 0.5,
            ]
        )
        keys_B, timesteps_B, mirrored_B = to_device(drawn, images_BCHW.device)
        if self._mirror:
            images_BCHW = torch.where(mirrored_B.view(B, 1, 1, 1) == 1, images_BCHW.flip(3), images_BCHW)
        noise_BCHW = normal_images(keys_B, (C, H, W), channels_last=self._channels_last)
        image_share, noise_share = (
            table.index_select(0, timesteps_B).view(B, 1, 1, 1) for table in (self._image_T, self._noise_T)
        )
        noisy_BCHW = torch.addcmul(images_BCHW * image_share, noise_BCHW, noise_share)
        if not self._predicts_v:
            return noisy_BCHW, noise_BCHW, timesteps_B
        v_BCHW = torch.addcmul(noise_BCHW * image_share, images_BCHW, noise_share, value=-1)
        return noisy_BCHW, v_BCHW, timesteps_B

    def _timesteps(self, indices: npt.NDArray[np.int64], epoch: int) -> npt.NDArray[np.int64]:
        if self._train:
            places_B = uniforms(RandomStream.TIMESTEP, self._seed, epoch, indices, count=1)[:, 0]
        else:
            # multiples of the golden ratio: consecutive samples are evenly distributed
            places_B = np.mod((indices + 0.5) * _GOLDEN, 1.0, dtype=np.float64)
        return (places_B * TIMESTEPS).astype(np.int64)


def normal_images(keys_B: torch.Tensor, shape: tuple[int, int, int], *, channels_last: bool) -> torch.Tensor:
    """Draw noise of this shape (C, H, W) for each key: float32 noise_BCHW, the same in any memory layout."""
    C, H, W = shape
    # in the order of pixels
    noise_BCHW = normals(keys_B, H * W * C).view(-1, H, W, C).permute(0, 3, 1, 2)
    return noise_BCHW if channels_last else noise_BCHW.contiguous()


def normals(keys_B: torch.Tensor, count: int) -> torch.Tensor:
    """Draw `count` standard normal numbers for each key: float32 (B, count).

    SplitMix64 makes 64 bits for two of them, which Box and Muller (1958) transform; the largest possible
    value is 6.7.
    """
    steps = torch.arange(1, -(-count // 2) + 1, device=keys_B.device) * _STEP
    bits = _mixed(keys_B[:, None] + steps)
    uniform = ((bits >> 32) & _LOW_32).float().add_(0.5).mul_(2.0**-32)
    angle = (bits & _LOW_32).float().mul_(2 * math.pi * 2.0**-32)
    radius = uniform.log_().mul_(-2.0).sqrt_()
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :count]


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    """Apply SplitMix64's finaliser, as in `rng`; int64 wraps like uint64, but its shifts extend the sign."""
    bits = (bits ^ _shifted(bits, 30)) * _FIRST
    bits = (bits ^ _shifted(bits, 27)) * _SECOND
    return bits ^ _shifted(bits, 31)


def _shifted(bits: torch.Tensor, by: int) -> torch.Tensor:
    return (bits >> by) & ((1 << (64 - by)) - 1)
