"""Images of a diffusion model after its validations."""

import numpy as np
import pytest
import torch

from mptui.engine.mailbox import Stopped
from mptui.engine.reporting import pictures
from mptui.events import ImagesGenerated
from tests.engine.blots import SIDE
from tests.engine.small import NoiseNet, build_trainer, config, end, losses, of

SAMPLING = {"count": 5, "steps": 3, "every_epochs": 1}


def build(folder, *, task="diffusion", taken=None, sampling=SAMPLING, **training):
    """Return a trainer, its events, and the images that it gives."""
    run = config(
        training={
            "optimizer": "adamw",
            "lr": 2e-3,
            "epochs": 2,
            "batch_size": 8,
            "ema_decay": 0.9,
            **training,
        },
        data={"image_size": SIDE},
        sampling=sampling,
    )
    model = NoiseNet() if task == "diffusion" else None
    images = []

    def take(epoch, pixels):
        images.append((epoch, pixels))
        return f"samples/{epoch}.png"

    trainer, events = build_trainer(run, folder, model=model, task=task, train=8, val=4, on_images=take)
    return trainer, events, images


def trained(folder, **settings):
    trainer, events, images = build(folder, **settings)
    trainer.train()
    end(trainer)
    return trainer, events, images


def test_images_follow_each_validation_and_change_nothing_of_the_run(tmp_path):
    with_images, events, images = trained(tmp_path / "with")
    without, plain, none = trained(tmp_path / "without", sampling={"count": 0})
    assert [epoch for epoch, _ in images] == [1, 2]
    assert none == []
    assert [(e.epoch, e.path, e.images) for e in of(events, ImagesGenerated)] == [
        (1, "samples/1.png", 5),
        (2, "samples/2.png", 5),
    ]
    assert all(e.seconds > 0 for e in of(events, ImagesGenerated))
    assert losses(events) == losses(plain)
    for one, other in zip(
        with_images.context.model.parameters(), without.context.model.parameters(), strict=True
    ):
        assert torch.equal(one, other)
    assert with_images.context.model.training
    for _, pixels in images:
        assert (pixels.shape, pixels.dtype) == ((5, SIDE, SIDE, 3), np.uint8)
    assert not np.array_equal(images[0][1], images[1][1])


def test_they_are_made_with_the_averaged_weights(tmp_path):
    _, _, averaged = trained(tmp_path / "average", epochs=1)
    _, _, own = trained(tmp_path / "own", ema_decay=None, epochs=1)
    assert not np.array_equal(averaged[0][1], own[0][1])
    _, _, again = trained(tmp_path / "again", epochs=1)
    assert np.array_equal(averaged[0][1], again[0][1])


def test_unset_they_take_a_small_share_of_the_time_and_the_last_are_of_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "_SHARE", 1e9)
    _, _, images = trained(tmp_path, sampling={"count": 2, "steps": 1}, epochs=12)
    assert [epoch for epoch, _ in images] == [1, 10, 12]


def test_a_stop_does_not_wait_for_them(tmp_path):
    trainer, events, images = build(tmp_path)
    forward = trainer.context.model.forward

    def stopping(noisy, timesteps):
        if not trainer.context.model.training and int(timesteps[0]) == 999 and len(noisy) > 1:
            trainer.context.mailbox.stop(None)
        return forward(noisy, timesteps)

    trainer.context.model.forward = stopping
    with pytest.raises(Stopped):
        trainer.train()
    end(trainer)
    assert images == of(events, ImagesGenerated) == []
    assert trainer.context.model.training


def test_a_batch_that_does_not_fit_is_made_in_parts(tmp_path):
    trainer, _, images = build(tmp_path)
    context = trainer.context
    forward = context.model.forward

    def full(noisy, timesteps):
        if context.phase == "sampling" and len(noisy) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(noisy, timesteps)

    context.model.forward = full
    trainer.train()
    end(trainer)
    assert [len(pixels) for _, pixels in images] == [5, 5]


def test_a_classifier_makes_none(tmp_path):
    _, events, images = trained(tmp_path, task="classification")
    assert images == of(events, ImagesGenerated) == []
