"""What a training step launches on a GPU beside the network, counted on tensors without storage."""

from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mptui.config.resolve import resolve
from mptui.config.schema import GradScalerConfig
from mptui.data import device_cache
from mptui.data.batch import Batch
from mptui.data.device_cache import WholeImages, WholePass
from mptui.data.to_device import Finish
from mptui.data.transforms import IMAGENET, Geometry
from mptui.engine.job import build_average
from mptui.engine.memory.tape import Tape
from mptui.engine.optim.guarded_step import Updater
from mptui.engine.optim.optimizers import build_optimizer
from mptui.engine.precision import build_precision
from mptui.engine.reporting.reporter import AppliedMetrics, Meter
from mptui.registry.names import SampleKind
from mptui.tasks.build_task import build_task
from tests.engine.small import small_net

GPU = torch.device("cuda", 0)
CLASSES = [str(number) for number in range(100)]
BATCH, SIDE, IMAGES = 64, 224, 128


class Launches(TorchDispatchMode):
    """Counts the operations on a GPU that compute or copy; views and allocations do not."""

    def __init__(self):
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # what only writes into tensors, as fused optimizers, has no form without storage
        out = func(*args, **(kwargs or {})) if func._schema.returns else None
        tensors = [each for each in tree_leaves((args, kwargs, out)) if isinstance(each, torch.Tensor)]
        launches_nothing = func.is_view or func.namespace == "prim" or "empty" in func.__name__
        alias = func in (torch.ops.aten._unsafe_view.default, torch.ops.aten.detach.default)
        if any(each.is_cuda for each in tensors) and not launches_nothing and not alias:
            self.found[str(func)] += 1
        return out


def profile(task):
    return resolve("fast", task=task, flags={}, sets=(), environ={}).config.training


def photos(kind=SampleKind.CLASS):
    """Return a pass over photos of two shapes that lie on a GPU, cut and coloured there."""
    sizes = np.where(np.arange(IMAGES)[:, None] % 2, (600, 448), (448, 600))
    counts = sizes.prod(axis=1)
    images = WholeImages(
        torch.empty(int(counts.sum()), 3, dtype=torch.uint8, device=GPU),
        None,
        torch.empty(IMAGES, dtype=torch.int64, device=GPU),
        np.cumsum(counts) - counts,
        sizes,
        np.arange(IMAGES),
    )
    return WholePass(images, np.arange(IMAGES), Geometry.for_training(kind, SIDE), IMAGENET, seed=0, epoch=0)


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize(
    ("precision", "most"),
    [("bf16", 31), pytest.param("fp16", 48, marks=pytest.mark.slow)],  # torch's GradScaler takes ten
)
def test_a_step_of_the_fast_profile_launches_little_beside_the_network(monkeypatch, precision, most):
    monkeypatch.setattr(device_cache, "has_kernel", lambda device: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # there is no driver
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)
    training = profile("classification")
    with FakeTensorMode(allow_non_fake_inputs=True), Launches() as launches:
        with torch.device(GPU):
            model = small_net()
        lr = torch.zeros((), device=GPU)
        optimizer = build_optimizer(model, training, lr, fused=True)
        task = build_task("classification", CLASSES, training)
        scaling = build_precision(precision, GPU, GradScalerConfig())
        updater = Updater(
            model,
            optimizer,
            scaling,
            lr=lr,
            rates=lambda applied: np.zeros(1000, np.float32),
            clip_grad_norm=training.clip_grad_norm,
            average=build_average(model, training, optimizer, None),
        )
        metrics = AppliedMetrics(task.metrics(GPU, training=True), lambda: task.metrics(GPU, training=True))
        finish = Finish(SIDE, GPU, IMAGENET, channels_last=True)
        meter, data, unscaled = Meter(GPU), photos(), torch.ones((), device=GPU)
        steps = []
        for step in range(IMAGES // BATCH):
            before = launches.found.copy()
            metrics.begin()
            images, labels = data.read(range(step * BATCH, (step + 1) * BATCH), finish)
            batch = Batch(images, labels.long(), BATCH, BATCH, np.arange(BATCH))
            tape = Tape(nullcontext)
            dtype = torch.bfloat16 if precision == "bf16" else torch.float16
            outputs = torch.empty(BATCH, len(CLASSES), dtype=dtype, device=GPU, requires_grad=True)
            with tape:
                loss = task.loss(outputs, batch, BATCH, BATCH)
                metrics.update(outputs.detach().clone(), batch)
                with monkeypatch.context() as without_engine:
                    without_engine.setattr(
                        torch.autograd,
                        "backward",
                        lambda loss, one, tape=tape: tape.backward(loss, lambda _: None),
                    )
                    scaling.backward(loss)
            loss = loss.detach()
            for parameter in model.parameters():
                parameter.grad = torch.empty_like(parameter)
            updater.set_rate()
            updater.unscale()
            updater.clip()
            metrics.end(updater.good)
            updater.apply()
            updater.commit(loss)
            scale = scaling.loss_scale()
            figures = loss, updater.norm, updater.found_inf, unscaled if scale is None else scale, updater.lr
            meter.write(figures, (step, 1, step, BATCH, 0))
            steps.append(launches.found - before)
    assert sum(steps[-1].values()) <= most, steps[-1]
