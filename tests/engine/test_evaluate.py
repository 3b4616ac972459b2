"""The validation loss doesn't depend on the batch size."""

import pytest
import torch

from mptui.engine.epochs import validate
from mptui.engine.evaluate import worst_classes
from mptui.events import Validated, Warned
from tests.engine.blots import Blot, Scene, Unseen
from tests.engine.small import build_trainer, config, diffusion_net, end, losses, of
from tests.gpus import SLOW_CPU

SAMPLES = 21


def measured(folder, kind, batch_size, *, at_once=None, workers=0, **training):
    """Validate an untrained network."""
    run = config(training={"batch_size": batch_size, **training})
    trainer, _ = build_trainer(run, folder, kind=kind, val=SAMPLES, workers=workers)
    trainer.context.micro_batches.limits["validating"] = at_once
    found = validate(trainer.context)
    end(trainer)
    return found


def by_hand(folder, kind):
    """Compute the loss of the set as one batch."""
    trainer, _ = build_trainer(config(training={"batch_size": SAMPLES}), folder, kind=kind, val=SAMPLES)
    windows = trainer.context.job.val_loader.windows(0, 1)
    (batch,) = next(windows)
    with torch.no_grad():
        outputs = trainer.context.model.eval()(*batch.inputs)
        loss = float(trainer.context.task.loss(outputs, batch, batch.valid, batch.size))
    end(trainer)
    return loss


@pytest.mark.parametrize("kind", [Blot, Scene], ids=["classification", "masks with ignored pixels"])
def test_the_loss_does_not_depend_on_the_batches_nor_their_pieces_nor_the_workers(tmp_path, kind):
    expected = pytest.approx(by_hand(tmp_path, kind), rel=1e-6)
    assert measured(tmp_path, kind, 1).loss == expected
    assert measured(tmp_path, kind, 8).loss == expected
    assert measured(tmp_path, kind, 8, at_once=3).loss == expected
    assert measured(tmp_path, kind, 2 * SAMPLES).loss == expected
    assert measured(tmp_path, kind, 5, workers=2).loss == expected


@pytest.mark.parametrize("kind", [Blot, Scene], ids=["classification", "masks with ignored pixels"])
def test_nor_does_the_weighted_loss(tmp_path, kind):
    weights = [9.0, 1.0, 0.1][: 3 if kind is Blot else 2]
    whole = measured(tmp_path, kind, 2 * SAMPLES, class_weights=weights).loss
    plain = measured(tmp_path, kind, 2 * SAMPLES)
    assert whole != pytest.approx(plain.loss, rel=1e-3)
    assert plain.event(1, 1, best=False).loss_terms == []
    in_parts = measured(tmp_path, kind, 4, class_weights=weights)
    assert in_parts.loss == pytest.approx(whole, rel=1e-6)
    assert in_parts.event(1, 1, best=False).loss_terms == ["class weights"]
    again = measured(tmp_path, kind, 8, class_weights=weights, at_once=3).loss
    assert again == pytest.approx(whole, rel=1e-6)


def test_a_set_whose_every_pixel_is_ignored_has_no_loss(tmp_path):
    assert measured(tmp_path, Unseen, 4).loss == 0.0


def test_of_many_classes_the_worst_are_reported():
    f1 = {f"class {number}": (number * 7 % 100) / 100 for number in range(100)}
    table: dict[str, dict[str, float | None]] = {
        "f1": {**f1, "absent": None},
        "recall": dict.fromkeys([*f1, "absent"], 0.5),
    }
    worst = worst_classes(table, 3)
    assert list(worst["f1"].items()) == [("class 0", 0.0), ("class 43", 0.01), ("class 86", 0.02)]
    assert list(worst["recall"]) == list(worst["f1"])
    assert worst_classes(table, 101) == table
    assert worst_classes({}, 3) == {}


TASKS = ["classification", "segmentation", "diffusion"]


def trained(folder, task, device, mode="off"):
    """Train and validate in two epochs; return the losses and what the validations found."""
    trainer, events = build_trainer(
        config(training={"lr": 0.01}, speed={"compile": mode}),
        folder,
        kind=Scene if task == "segmentation" else Blot,
        model=diffusion_net() if task == "diffusion" else None,
        task=task,
        val=SAMPLES,
        device=torch.device(device),
        force_compile=mode != "off",
    )
    trainer.train()
    end(trainer)
    assert of(events, Warned) == []
    return losses(events), [(e.loss, e.metrics) for e in of(events, Validated)]


@pytest.mark.parametrize("device", SLOW_CPU)
@pytest.mark.parametrize("task", TASKS)
def test_a_deterministic_run_of_each_task_measures_the_same_bits_again(tmp_path, task, device):
    torch.use_deterministic_algorithms(True)
    steps, validations = trained(tmp_path / "one", task, device)
    assert len(validations) == 2
    assert repr((steps, validations)) == repr(trained(tmp_path / "other", task, device))


@pytest.mark.parametrize(
    ("task", "device"),
    [
        pytest.param("classification", "cpu", marks=pytest.mark.slow),
        *(pytest.param(task, "cuda", marks=pytest.mark.gpu) for task in TASKS),
    ],
)
def test_a_compiled_run_of_each_task_measures_what_eager_code_does(tmp_path, task, device):
    steps, validations = trained(tmp_path / "eager", task, device)
    compiled_steps, compiled = trained(tmp_path / "compiled", task, device, mode="default")
    assert compiled_steps == pytest.approx(steps, rel=1e-2)
    for (loss, metrics), (expected, expected_metrics) in zip(compiled, validations, strict=True):
        assert loss == pytest.approx(expected, rel=1e-2)
        assert metrics == pytest.approx(expected_metrics, abs=0.1)
