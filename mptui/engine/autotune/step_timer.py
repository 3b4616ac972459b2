"""Times real training steps on a copy of a model and on synthetic batches; the run is unchanged."""

import copy
from collections.abc import Callable

import numpy as np
import torch

from mptui.config.schema import RunConfig
from mptui.data.core.batch import Batch
from mptui.engine.compile.policy import Stopwatch
from mptui.engine.guards.oom_errors import forget_peak, release
from mptui.engine.optim.freezing import FrozenLayers, frozen_at_last
from mptui.engine.optim.guarded_step import Updater
from mptui.engine.optim.optimizer import build_optimizer, supports_fused
from mptui.engine.precision.amp import Precision, build_precision
from mptui.engine.precision.fp32_layers import apply_fp32_layers
from mptui.models.activation_checkpointing import apply_activation_checkpointing
from mptui.models.zoo import input_shape
from mptui.tasks.base import Task

UPDATES = 5
"""Updates per timing: a single one is too short to measure."""

_STEPS = 1000
_FORMATS = {True: torch.channels_last, False: torch.contiguous_format}


class StepTimer:
    """Takes steps as the trainer does: forward under autocast, scaled backward, unscale, clip, update.

    The learning rate is 0, so that all candidates compute with the same weights. The random state is restored
    after each step.

    Args:
        model: The model, which is copied.
        task: Provides the loss.
        config: The run's configuration.
        device: Device of training.
    """

    def __init__(self, model: torch.nn.Module, task: Task, config: RunConfig, device: torch.device) -> None:
        self._model, self._task, self._config, self._device = model, task, config, device
        self._networks: dict[bool, torch.nn.Module] = {}
        self._optimizers: dict[tuple[bool, bool], tuple[torch.optim.Optimizer, torch.Tensor]] = {}

    def step(self, precision: str, *, channels_last: bool) -> Callable[[], float]:
        """Return a timer of one step over a micro-batch, in seconds."""
        network, batch = self._network(channels_last), self._batch(channels_last)
        computing = build_precision(precision, self._device, self._config.precision.grad_scaler)
        fused = supports_fused(self._config.training.optimizer, self._device)
        updater = self._updater(computing, channels_last=channels_last, fused=fused)

        def take() -> float:
            with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
                watch = Stopwatch(self._device)
                with computing.forward_context():
                    loss = self._task.loss(network(*batch.inputs), batch, batch.valid, batch.size)
                computing.backward(loss)
                updater.step(loss.detach())
                return watch.seconds()

        return take

    def update(self, *, channels_last: bool, fused: bool) -> Callable[[], float]:
        """Return a timer of one update of the weights with fixed gradients, in seconds."""
        computing = build_precision("fp32", self._device, self._config.precision.grad_scaler)
        updater = self._updater(computing, channels_last=channels_last, fused=fused)
        loss = torch.zeros((), device=self._device)

        def take() -> float:
            updater.keep_grads(True)
            watch = Stopwatch(self._device)
            for _ in range(UPDATES):
                updater.step(loss)
            return watch.seconds() / UPDATES

        return take

    def close(self) -> None:
        """Free the memory of the copies."""
        if self._networks:
            self._networks.clear()
            self._optimizers.clear()
            release(self._device)
            forget_peak(self._device)

    def _network(self, channels_last: bool) -> torch.nn.Module:
        if channels_last not in self._networks:
            network = copy.deepcopy(self._model).to(self._device)
            apply_fp32_layers(network, self._config.precision.fp32_layers, self._device)
            FrozenLayers(network, frozen_at_last(self._config.training))
            if self._config.memory.activation_checkpointing:
                apply_activation_checkpointing(network)
            self._networks[channels_last] = network.to(memory_format=_FORMATS[channels_last])
        return self._networks[channels_last]

    def _updater(self, computing: Precision, *, channels_last: bool, fused: bool) -> Updater:
        network, key = self._network(channels_last), (channels_last, fused)
        if key not in self._optimizers:
            lr = torch.zeros((), device=self._device)
            self._optimizers[key] = build_optimizer(network, self._config.training, lr, fused=fused), lr
        optimizer, lr = self._optimizers[key]
        updater = Updater(
            network,
            optimizer,
            computing,
            lr=lr,
            rates=lambda applied: np.zeros(_STEPS, np.float32),
            clip_grad_norm=self._config.training.clip_grad_norm,
            average=None,
        )
        updater.close()  # several updaters share one network: none may keep the gradients of another's step
        return updater

    def _batch(self, channels_last: bool) -> Batch:
        side, rows = int(self._config.data.image_size or 0), self._config.training.batch_size
        limit = self._config.memory.micro_batch
        rows = min(rows, limit) if isinstance(limit, int) else rows
        made_up = torch.Generator().manual_seed(0)
        shape = input_shape(self._config.model, self._config.data.channels, side)
        images = torch.randn(rows, *shape, generator=made_up).to(self._device)
        return self._task.made_up_batch(images.contiguous(memory_format=_FORMATS[channels_last]))
