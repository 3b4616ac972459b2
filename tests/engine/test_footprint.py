"""The counted memory of a step, beside that of real steps with real tensors."""

from functools import partial

import numpy as np
import pytest
import torch
from timm.layers import DropPath
from timm.models.convnext import ConvNeXt

from mptui.config.schema import RunConfig
from mptui.engine.memory import tape
from mptui.engine.memory.ledger import BATCHES_AHEAD, WORKSPACE, _pass_memory, footprint
from mptui.engine.memory.tape import UncountableError, no_storage
from mptui.engine.optim.guarded_step import Updater
from mptui.engine.optim.optimizers import build_optimizer
from mptui.engine.precision import Precision
from mptui.errors import ConfigError
from mptui.hardware.devices import CONTEXT_BYTES
from mptui.models.zoo import build
from mptui.registry.models import MODELS, ModelSpec
from mptui.registry.optimizers import OPTIMIZERS
from mptui.tasks.build_task import build_task
from tests.engine.real_memory import RowsInTurn, network_without_values, really_alive
from tests.small_cnn import SmallCnn

slow = partial(pytest.param, marks=pytest.mark.slow)


def run_config(model, side, batch, memory=None, width=8, depth=1, fused="auto", **training):
    return RunConfig.model_validate(
        {
            "model": {"name": model, "width": width, "depth": depth},
            "training": {"batch_size": batch, **training},
            "data": {"image_size": side},
            "memory": memory or {},
            "speed": {"fused": fused},
        }
    )


def tensors_of_a_step(config, task, precision, device="cpu", classes=10):
    """Return the bytes that the count has for the same."""
    counted = footprint(config, task, device=device, precision=precision, classes=classes)
    return counted.step.peak(counted.batch_size)


@pytest.fixture
def engine_under_a_log(monkeypatch):
    """Add up gradients as autograd's engine does where a mode sees its operations: never in place."""
    monkeypatch.setattr(tape, "_OWN", -1)
    _pass_memory.cache_clear()
    yield
    _pass_memory.cache_clear()


SNR = {"min_snr_gamma": 5.0}


class Residual(torch.nn.Module):
    """A block whose path is dropped now and then."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.GroupNorm(1, 8)
        self.drop = DropPath(0.1)

    def forward(self, images):
        return images + self.drop(torch.nn.functional.gelu(self.norm(self.conv(images))))


def residual(num_classes, side):
    """Return a network of two residual blocks."""
    pool = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), Residual(), Residual(), *pool, torch.nn.Linear(8, num_classes)
    )


SMALL_CONVNEXT = ModelSpec(
    task="classification",
    build=lambda num_classes, side: ConvNeXt(
        num_classes=num_classes, depths=(0, 0, 0, 2), dims=(8, 8, 16, 16), drop_path_rate=0.1
    ),
)


@pytest.mark.usefixtures("engine_under_a_log")
@pytest.mark.parametrize(
    ("model", "task", "side", "batches", "training", "checkpointed"),
    [
        ("small_cnn", "classification", 32, [3, 5], {}, False),
        slow("unet", "segmentation", 32, [7], {}, False),
        slow("unet", "segmentation", 32, [1, 7], {}, True),
        slow("diffusion_unet", "diffusion", 32, [2, 3, 6], SNR, False),
        slow("diffusion_unet", "diffusion", 32, [2, 3, 6], SNR, True),
        # its rates of dropped paths are computed
        slow("timm/convnext_atto", "classification", 32, [3], {}, False),
        slow("small_convnext", "classification", 32, [3], {}, True),
        ("residual", "classification", 32, [3], {}, True),
    ],
)
def test_the_peak_is_that_of_a_real_step_to_the_byte(
    model, task, side, batches, training, checkpointed, monkeypatch
):
    monkeypatch.setitem(MODELS, "small_convnext", SMALL_CONVNEXT)
    monkeypatch.setitem(MODELS, "residual", ModelSpec(task="classification", build=residual))
    for batch in batches:
        config = run_config(model, side, batch, {"activation_checkpointing": checkpointed}, **training)
        assert tensors_of_a_step(config, task, "fp32") == really_alive(config, task, None)


@pytest.mark.usefixtures("engine_under_a_log")
@pytest.mark.parametrize(
    ("model", "task", "classes"),
    [
        ("small_cnn", "classification", 150),
        slow("unet", "segmentation", 2),
        slow("small_cnn", "classification", 2),
        slow("unet", "segmentation", 150),
    ],
)
def test_it_is_that_of_a_step_with_the_classes_of_the_data(model, task, classes):
    config = run_config(model, 32, 4)
    assert tensors_of_a_step(config, task, "fp32", classes=classes) == really_alive(
        config, task, None, classes
    )


@pytest.mark.usefixtures("engine_under_a_log")
@pytest.mark.parametrize(("layers", "bidirectional"), [slow(1, False), (1, True), slow(2, True)])
def test_recurrent_layers_keep_a_workspace(monkeypatch, layers, bidirectional):
    spec = ModelSpec(
        task="classification",
        build=lambda num_classes, side: RowsInTurn(num_classes, bidirectional, layers),
    )
    name = f"rows_in_{layers}_layers"  # networks of a name are built once
    monkeypatch.setitem(MODELS, name, spec)
    config = run_config(name, 32, 16)
    real = really_alive(config, "classification", None)
    assert tensors_of_a_step(config, "classification", "fp32") == pytest.approx(real, rel=0.03)


@pytest.mark.slow
@pytest.mark.usefixtures("engine_under_a_log")
@pytest.mark.parametrize(
    ("model", "task", "side", "batches", "size"),
    [
        ("resnet50", "classification", 224, [3, 64], {}),
        ("unet", "segmentation", 512, [1, 4], {"width": 64, "depth": 4}),
        ("diffusion_unet", "diffusion", 64, [2, 3, 8], {"width": 128, "depth": 3}),
    ],
)
def test_it_is_to_the_byte_for_networks_of_their_usual_size(model, task, side, batches, size):
    for batch in batches:
        config = run_config(model, side, batch, optimizer="adamw", **size)
        with no_storage():  # torch's own engine, without half a minute of convolutions
            alive = really_alive(config, task, None)
        assert tensors_of_a_step(config, task, "fp32") == alive


@pytest.mark.usefixtures("engine_under_a_log")
@pytest.mark.parametrize(
    ("model", "task", "side", "batch", "training"),
    [
        ("small_cnn", "classification", 32, 7, {}),
        slow("resnet18", "classification", 64, 5, {}),
        slow("unet", "segmentation", 32, 7, {}),
        slow("vit_b_16", "classification", 32, 3, {}),
        slow("diffusion_unet", "diffusion", 32, 3, SNR),
    ],
)
def test_it_is_in_16_bits_too_with_the_weights_that_autocast_keeps(model, task, side, batch, training):
    config = run_config(model, side, batch, **training)
    real = really_alive(config, task, torch.bfloat16)
    # torch's fake tensors have the statistics of a normalisation in 16 bits, a CPU in 32
    assert tensors_of_a_step(config, task, "bf16") == pytest.approx(real, rel=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(
    ("model", "task", "side", "batch", "size"),
    [
        ("resnet50", "classification", 224, 64, {}),
        ("unet", "segmentation", 512, 4, {"width": 64, "depth": 4}),
        ("diffusion_unet", "diffusion", 64, 32, {"width": 128, "depth": 3}),
    ],
)
def test_it_is_about_that_of_a_step_on_a_gpu(model, task, side, batch, size, precision):
    config, device = run_config(model, side, batch, optimizer="adamw", **size), torch.device("cuda")
    with device:
        network = build(config.model, num_classes=10, task=task, side=side)
    learnt = build_task(task, [str(i) for i in range(10)], config.training)
    lr = torch.zeros((), device=device)
    computes = Precision(precision, device)
    updater = Updater(
        network,
        build_optimizer(network, config.training, lr, fused=True),
        computes,
        lr=lr,
        rates=lambda applied: np.zeros(4, np.float32),
        clip_grad_norm=None,
        average=None,
    )
    for _ in range(3):  # in the first, cuDNN tries algorithms
        torch.cuda.reset_peak_memory_stats()
        made = learnt.dummy_batch(torch.zeros(batch, 3, side, side, device=device))
        with computes.forward_context():
            loss = learnt.loss(network(*made.inputs), made, made.valid, batch)
        computes.backward(loss)
        updater.step(loss.detach())
        del made, loss
    updater.close()
    counted = footprint(config, task, device="cuda", precision=precision, classes=10)
    ahead = BATCHES_AHEAD * 3 * side**2 * 4 * batch  # nothing is prefetched here
    assert counted.allocated - ahead == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.1)


def grouped(num_classes, side):
    """A network whose activations are those of group normalisations."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.GroupNorm(2, 8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, num_classes),
    )


def test_autocast_keeps_on_cuda_in_fp32_what_it_keeps_on_a_cpu_in_16_bits(monkeypatch):
    monkeypatch.setitem(MODELS, "grouped", ModelSpec(task="classification", build=grouped))
    config = run_config("grouped", 32, 4)
    cpu, cuda, in_fp32 = (
        footprint(config, "classification", device=kind, precision=precision, classes=10).activations
        for kind, precision in (("cpu", "bf16"), ("cuda", "bf16"), ("cuda", "fp32"))
    )
    assert cpu < 0.8 * cuda
    assert cuda > 0.9 * in_fp32


@pytest.mark.parametrize(
    ("optimizer", "fused"),
    [
        ("adamw", False),
        ("muon", True),
        ("sgd_schedule_free", True),
        *(slow(name, True) for name in OPTIMIZERS if name not in {"muon", "sgd_schedule_free"}),
        *(slow(name, False) for name in OPTIMIZERS if name != "adamw"),
    ],
)
def test_weights_gradients_optimizer_and_average_are_those_of_the_real_ones(optimizer, fused, recwarn):
    has_ema = not OPTIMIZERS[optimizer].averages
    ema_decay = 0.99 if has_ema else None
    config = run_config("small_cnn", 64, 2, fused=fused, optimizer=optimizer, ema_decay=ema_decay)
    model = network_without_values(config, "classification")
    real = build_optimizer(model, config.training, torch.zeros(()), fused=True)  # its state is there at once
    states = {id(t): t.nbytes for each in real.state.values() for t in each.values() if t.ndim}
    weights = sum(p.nbytes for p in model.parameters())
    buffers = sum(b.nbytes for b in model.buffers())
    recwarn.clear()
    counted = footprint(config, "classification", device="cpu", precision="fp32", classes=10)
    assert not [str(each.message) for each in recwarn]  # nor of a network of one's own
    assert counted.weights == weights + 2 * buffers  # with those that a refused step goes back to
    assert (counted.gradients, counted.average) == (weights, weights if has_ema else 0)
    counts_of_steps = 8 * len([*model.parameters()])
    assert counted.optimizer == pytest.approx(sum(states.values()), abs=counts_of_steps)


def test_the_parts_are_those_of_the_peak_and_gradients_are_there_once_batches_add_up():
    counted, split = (
        footprint(
            run_config("small_cnn", 64, 64, memory),
            "classification",
            device="cuda",
            precision="fp32",
            classes=10,
        )
        for memory in ({}, {"micro_batch": 32})
    )
    lasting = counted.weights + counted.optimizer
    beside = (WORKSPACE * counted.step.largest("activations") + BATCHES_AHEAD * 3 * 64**2 * 4) * 64
    assert counted.allocated == pytest.approx(lasting + counted.step.peak(64) + beside)
    assert counted.total == counted.allocated + CONTEXT_BYTES["cuda"]
    assert sum(counted.by_module.values()) == counted.activations
    assert counted.by_module["layer1.0"] > 0
    assert counted.gradients_at_peak < counted.gradients == split.gradients_at_peak
    assert split.batch_size == 32
    assert split.activations < counted.activations


class DeepCnn(SmallCnn):
    """`small_cnn` with more layers."""

    def __init__(self, num_classes):
        super().__init__(num_classes)
        more = [layer for _ in range(2) for layer in (torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU())]
        self.layer2 = torch.nn.Sequential(*self.layer2, *more)  # the last module is the head


@pytest.mark.parametrize("freeze", ["backbone", slow(["layer1", "layer2*"])])
def test_frozen_weights_have_no_gradient_no_state_and_no_activations(freeze, monkeypatch):
    spec = ModelSpec(task="classification", build=lambda num_classes, side: DeepCnn(num_classes))
    monkeypatch.setitem(MODELS, "deep_cnn", spec)
    training = {"optimizer": "adamw", "ema_decay": 0.99}
    configs = (
        run_config("deep_cnn", 32, 64, **training, **m) for m in ({}, {"freeze": freeze}, {"freeze": 1})
    )
    whole, frozen, thawed = (
        footprint(each, "classification", device="cpu", precision="fp32", classes=10) for each in configs
    )
    head = 4 * (16 * 10 + 10)
    assert (frozen.gradients, frozen.average) == (head, head)
    assert frozen.optimizer == pytest.approx(2 * head, abs=8)
    assert frozen.activations < whole.activations / 2  # one layer at a time
    assert (frozen.weights, frozen.parameters) == (whole.weights, whole.parameters)
    assert thawed == whole


def test_the_largest_batch_fits_and_one_more_does_not():
    def counted(batch):
        return footprint(
            run_config("small_cnn", 32, batch), "classification", device="cpu", precision="fp32", classes=10
        )

    free = counted(300).total
    largest = counted(16).largest_batch(free)
    assert largest in {299, 300}
    assert counted(largest + 2).total > free
    assert counted(16).largest_batch(0) == 0


def test_a_network_whose_layers_are_computed_from_tensors_is_not_counted_wrongly():
    with pytest.raises(UncountableError):
        footprint(
            run_config("timm/regnetx_002", 64, 2),
            "classification",
            device="cpu",
            precision="fp32",
            classes=10,
        )


@pytest.mark.slow
def test_layers_that_are_computed_from_numbers_alone_are_counted():
    config = run_config("regnet_y_400mf", 32, 2)
    real = build(config.model, num_classes=10, task="classification", side=32)
    for device in ("cpu", "cuda"):
        counted = footprint(config, "classification", device=device, precision="fp32", classes=10)
        assert counted.parameters == sum(parameter.numel() for parameter in real.parameters())


def test_what_can_not_be_built_is_said():
    with pytest.raises(ConfigError, match="no network called"):
        footprint(run_config("resnet5o", 64, 2), "classification", device="cpu", precision="fp32", classes=10)
