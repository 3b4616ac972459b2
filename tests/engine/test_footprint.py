import pytest
import torch

from mptui.config.schema import RunConfig
from mptui.engine.autotune.memory_estimate import UncountableError, footprint
from mptui.engine.optim.optimizer import build_optimizer
from mptui.errors import ConfigError
from mptui.models.zoo import build
from mptui.registry.optimizers import OPTIMIZERS
from mptui.tasks.build_task import build_task


def run_config(model, side, batch, **training):
    return RunConfig.model_validate(
        {
            "model": {"name": model, "width": 8, "depth": 2},
            "training": {"batch_size": batch, **training},
            "data": {"image_size": side},
        }
    )


def network_without_values(config, task):
    """Return the network of the real sizes; to draw its weights would take most of a test."""
    with torch.device("meta"):
        model = build(config.model, num_classes=10, task=task, side=config.data.image_size)
    return model.to_empty(device="cpu")


def really_kept(config, task, dtype):
    """Return the bytes that autograd saves in a real forward pass, without weights and buffers."""
    side, size = config.data.image_size, config.training.batch_size
    model = network_without_values(config, task)
    learnt = build_task(task, [str(i) for i in range(10)], config.training)
    batch = learnt.made_up_batch(torch.randn(size, 3, side, side))
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype=dtype, enabled=dtype is not None),
    ):
        loss = learnt.loss(model(*batch.inputs), batch, batch.valid, size)
    del loss
    return sum(storage.nbytes() for pointer, storage in kept.items() if pointer not in own)


@pytest.mark.parametrize(
    ("model", "task", "side", "batch", "precision"),
    [
        ("resnet18", "classification", 64, 5, "fp32"),
        ("resnet18", "classification", 64, 5, "bf16"),
        ("unet", "segmentation", 32, 3, "fp32"),
        ("unet", "segmentation", 32, 7, "bf16"),
        ("vit_b_16", "classification", 32, 3, "fp32"),
        ("diffusion_unet", "diffusion", 32, 3, "fp32"),
        ("diffusion_unet", "diffusion", 32, 3, "bf16"),
    ],
)
def test_the_activations_are_those_of_a_real_forward_pass(model, task, side, batch, precision):
    config = run_config(model, side, batch)
    predicted = footprint(config, task, device="cpu", precision=precision).activations
    real = really_kept(config, task, torch.bfloat16 if precision == "bf16" else None)
    assert predicted == pytest.approx(real, rel=0.02)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_gradients_optimizer_and_average_are_those_of_the_real_ones(optimizer):
    has_ema = not OPTIMIZERS[optimizer].averages
    config = run_config("resnet18", 64, 2, optimizer=optimizer, ema_decay=0.99 if has_ema else None)
    model = network_without_values(config, "classification")
    real = build_optimizer(model, config.training, torch.zeros(()), fused=True)
    states = {id(t): t.nbytes for each in real.state.values() for t in each.values() if t.ndim}
    weights = sum(p.nbytes for p in model.parameters())
    buffers = sum(b.nbytes for b in model.buffers())
    counted = footprint(config, "classification", device="cpu", precision="fp32")
    assert counted.weights == weights + buffers
    assert (counted.gradients, counted.average) == (weights, weights if has_ema else 0)
    assert counted.optimizer == sum(states.values())


@pytest.mark.parametrize("freeze", ["backbone", ["conv1", "bn1", "layer*"]])
def test_frozen_weights_have_no_gradient_no_state_and_no_activations(freeze):
    training = {"optimizer": "adamw", "ema_decay": 0.99}
    configs = (
        run_config("resnet18", 64, 8, **training, **m) for m in ({}, {"freeze": freeze}, {"freeze": 1})
    )
    whole, frozen, thawed = (
        footprint(each, "classification", device="cpu", precision="fp32") for each in configs
    )
    head = 4 * (512 * 10 + 10)
    assert (frozen.gradients, frozen.optimizer, frozen.average) == (head, 2 * head, head)
    assert frozen.activations < whole.activations / 20
    assert (frozen.weights, frozen.parameters) == (whole.weights, whole.parameters)
    assert thawed == whole


def test_the_largest_batch_fits_and_one_more_does_not():
    def counted(batch):
        return footprint(run_config("unet", 32, batch), "segmentation", device="cpu", precision="fp32")

    free = counted(300).total
    largest = counted(16).largest_batch(16, free)
    assert largest in {299, 300}
    assert counted(largest + 2).total > free
    assert counted(16).largest_batch(16, 0) == 0


def test_a_network_whose_layers_are_computed_from_tensors_is_not_counted_wrongly():
    with pytest.raises(UncountableError):
        footprint(run_config("regnet_y_400mf", 64, 2), "classification", device="cpu", precision="fp32")


def test_what_can_not_be_built_is_said():
    with pytest.raises(ConfigError, match="no network called"):
        footprint(run_config("resnet5o", 64, 2), "classification", device="cpu", precision="fp32")
