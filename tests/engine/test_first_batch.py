"""Pictures of the first training images: they are those that the network gets."""

import numpy as np
import pytest
import torch

from mptui.data.pictures import SEAM, bright, coloured
from mptui.engine.reporting.pictures import visible
from mptui.events import ImagesGenerated
from tests.engine.blots import CLASSES, SIDE, Blot, Scene
from tests.engine.small import build_trainer, config, end, losses, of


def trained(folder, kind=Blot, *, wanted=True, data=None, **options):
    """Train two steps; return the trainer, its events, the tiles, and what the network got first."""
    run = config(
        training={"max_steps": 2, "batch_size": 6},
        data={"image_size": SIDE, **(data or {})},
        logging={"pictures": 5 if wanted else 0},
    )
    taken, seen = [], []

    def take(tiles):
        taken.extend(tiles)
        return "predictions/data.png"

    trainer, events = build_trainer(run, folder, kind=kind, on_data=take, **options)
    hook = trainer.context.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    trainer.train()
    hook.remove()
    end(trainer)
    return trainer, events, taken, seen[0]


@pytest.mark.parametrize(
    "data", [{"augment": "default"}, {"augment": "default", "mixup_alpha": 1.0}, {"augment": ["trivial"]}]
)
def test_they_are_the_first_batch_bit_for_bit_with_the_classes(tmp_path, data):
    trainer, events, taken, first = trained(tmp_path, data=data)
    assert np.array_equal(np.stack(taken), visible(first.numpy(), trainer.context.job.config.data))
    (event,) = [event for event in of(events, ImagesGenerated) if event.what == "data"]
    assert (event.images, event.path) == (6, "predictions/data.png")
    with trainer.context.job.train_loader.window_at(0, 1, 0) as window:
        batch = next(iter(window))
    for words, label in zip(event.labels, batch.targets.tolist(), strict=True):
        assert CLASSES[label] in words
        assert ("%" in words) == ("mixup_alpha" in data)


def test_a_mask_is_beside_its_image_as_it_was_cut_and_turned(tmp_path):
    trainer, events, taken, first = trained(tmp_path, Scene, data={"augment": "default"})
    images = visible(first.numpy(), trainer.context.job.config.data)
    with trainer.context.job.train_loader.window_at(0, 1, 0) as window:
        masks = next(iter(window)).targets.numpy()
    for tile, image, mask in zip(taken, images, masks, strict=True):
        assert np.array_equal(tile[:, :SIDE], image)
        assert np.array_equal(tile[:, SIDE + SEAM :], coloured(mask, bright(("background", "bright"))))
    assert [event.labels for event in of(events, ImagesGenerated) if event.what == "data"] == [[]]


def test_a_run_is_the_same_with_and_without_them(tmp_path):
    with_them, events, taken, _ = trained(tmp_path / "on", data={"augment": "default"})
    without, plain, none, _ = trained(tmp_path / "off", wanted=False, data={"augment": "default"})
    assert taken
    assert not none
    assert losses(events) == losses(plain)
    pairs = zip(with_them.context.model.parameters(), without.context.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
