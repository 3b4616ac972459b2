"""Pictures of validations: the worst samples, the same ones each time, and what is predicted of them."""

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from mptui.config.schema import DataConfig
from mptui.data.batch import Batch
from mptui.data.pictures import EXTRA, HIT, MISSED, SEAM, bright
from mptui.data.types import IGNORE
from mptui.engine.mailbox import Stopped
from mptui.engine.reporting import pictures as reporting_pictures
from mptui.engine.reporting.pictures import PickedSamples, of_classes, visible
from mptui.events import EpochFinished, ImagesGenerated, Validated
from tests.engine.blots import CLASSES, SIDE, Blot, Scene, Unseen
from tests.engine.small import build_trainer, config, end, losses, of

SAMPLES = 45


def trained(folder, *, kind=Blot, keep=5, at_once=None, batch_size=8, task=None, stop_in=None, **training):
    """Train; return the trainer, its events and the pictures."""
    run = config(
        training={"epochs": 3, "batch_size": batch_size, **training},
        logging={"pictures": keep},
        data={"image_size": SIDE},
    )
    taken = []

    def take(pictures):
        taken.append(pictures)
        return f"predictions/{pictures.epoch}.png"

    trainer, events = build_trainer(run, folder, kind=kind, val=SAMPLES, task=task, on_pictures=take)
    trainer.context.micro_batches.limits["validating"] = at_once

    def stop(event):
        if isinstance(event, EpochFinished) and event.epoch == stop_in:
            trainer.context.mailbox.stop(None)

    events.then = stop
    with pytest.raises(Stopped) if stop_in else nullcontext():
        trainer.train()
    end(trainer)
    return trainer, events, taken


@pytest.fixture
def always(monkeypatch):
    """Make the pictures of each validation, however short it is."""
    monkeypatch.setattr(reporting_pictures, "_SHARE", 0)


def by_hand(trainer, kind):
    """Return the logits of all validation samples at once, and the decoded samples."""
    samples = [kind(10_000 + index).read() for index in range(SAMPLES)]
    with trainer.context.job.val_loader.window_at(0, 99, 0) as window:
        images = torch.cat([batch.images_BCHW[: batch.size] for batch in window])
    with torch.no_grad():
        return trainer.context.model.eval()(images), samples


@pytest.mark.parametrize("at_once", [pytest.param(None, marks=pytest.mark.slow), 3])
def test_the_worst_and_the_same_images_with_what_is_predicted(tmp_path, always, at_once):
    trainer, events, taken = trained(tmp_path, at_once=at_once)
    logits, samples = by_hand(trainer, Blot)
    labels = torch.tensor([sample.label for sample in samples])
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    assert [pictures.epoch for pictures in taken] == [1, 2, 3]
    worst = taken[-1].groups["worst"]
    assert [each.index for each in worst] == expected.argsort(descending=True)[:16].tolist()
    for each in worst:
        assert each.error == pytest.approx(float(expected[each.index]), rel=1e-4)
        assert (each.truth, each.predicted) == (int(labels[each.index]), int(logits[each.index].argmax()))
        assert each.probability == pytest.approx(float(logits[each.index].softmax(0).max()), rel=1e-4)
        assert each.file == f"blot {10_000 + each.index}"
        assert np.abs(each.pixels_HWC.astype(int) - samples[each.index].image_HWC).max() <= 1
    random = [[each.index for each in pictures.groups["random"]] for pictures in taken]
    assert len({*random[0]}) == 16
    assert random[0] == random[1] == random[2]
    shares, order = logits.softmax(dim=1).topk(3)
    for each in worst:
        assert [share.number for share in each.top] == order[each.index].tolist()
        assert [share.probability for share in each.top] == pytest.approx(
            shares[each.index].tolist(), rel=1e-4
        )
    in_order = expected.argsort(descending=True).tolist()
    of_class = [[index for index in in_order if labels[index] == number][:4] for number in range(3)]
    worst_first = sorted(of_class, key=lambda indices: -expected[indices[0]])
    by_class = [each.index for each in taken[-1].groups["by class"]]
    assert by_class == [index for indices in worst_first for index in indices]
    assert taken[-1].confusion.sum(axis=1).tolist() == [15, 15, 15]
    assert taken[-1].classes == CLASSES
    found = of(events, ImagesGenerated)
    assert [(each.path, each.what, each.images) for each in found[-1:]] == [
        ("predictions/3.png", "predictions", 44)
    ]


def test_masks_stand_beside_their_image_in_the_colours_of_their_classes(tmp_path, always):
    trainer, _, taken = trained(tmp_path, kind=Scene, lr=0.01)
    logits, samples = by_hand(trainer, Scene)
    colours, predicted = bright(("background", "bright")), logits.argmax(dim=1).numpy()
    errors = []
    for sample, mask in zip(samples, predicted, strict=True):
        valid = sample.mask_HW != IGNORE
        errors.append((mask != sample.mask_HW)[valid].mean() if valid.any() else 0.0)
    worst = taken[-1].groups["worst"]
    assert [each.error for each in worst] == pytest.approx(sorted(errors, reverse=True)[:16])
    for each in [*worst, *taken[-1].groups["random"]]:
        assert each.error == pytest.approx(errors[each.index])
        assert each.truth is None
        starts = [(SIDE + SEAM) * number for number in range(4)]
        image, mask, prediction, wrong = (each.pixels_HWC[:, start : start + SIDE] for start in starts)
        assert np.abs(image.astype(int) - samples[each.index].image_HWC).max() <= 1
        true = samples[each.index].mask_HW
        assert np.array_equal(mask[true != IGNORE], colours[true[true != IGNORE]])
        assert {tuple(pixel) for pixel in mask[true == IGNORE].tolist()} <= {(224, 224, 192)}
        assert np.array_equal(prediction, colours[predicted[each.index]])
        is_wrong, is_thing = true != predicted[each.index], true != 0
        assert (wrong[~is_wrong & is_thing & (true != IGNORE)] == HIT).all()
        assert (wrong[is_wrong & is_thing & (true != IGNORE)] == MISSED).all()
        assert (wrong[is_wrong & ~is_thing] == EXTRA).all()
        assert not wrong[~is_wrong & ~is_thing].any()
    valid = sum((sample.mask_HW != IGNORE).sum() for sample in samples)
    assert taken[-1].confusion.sum() == valid


def test_they_change_nothing_of_the_run_and_can_be_turned_off(tmp_path, always):
    on, events, _ = trained(tmp_path / "on", epochs=1)
    off, plain, none = trained(tmp_path / "off", keep=0, epochs=1)
    assert none == of(plain, ImagesGenerated) == []
    assert losses(events) == losses(plain)
    assert [each.loss for each in of(events, Validated)] == [each.loss for each in of(plain, Validated)]
    for one, other in zip(on.context.model.parameters(), off.context.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("stop_in", [None, 3])
def test_short_validations_have_the_first_the_best_and_the_last(tmp_path, monkeypatch, stop_in):
    monkeypatch.setattr(reporting_pictures, "_SHARE", 1e9)
    trainer, events, taken = trained(tmp_path, epochs=4, stop_in=stop_in)
    assert taken[0].epoch == 1
    assert [each.epoch for each in taken[1:]] == sorted({trainer.state.best.epoch, stop_in or 4} - {1})
    assert all(each.best_epoch == trainer.state.best.epoch for each in taken[1:])
    assert len(of(events, ImagesGenerated)) == len(taken)


def test_a_diverged_network_and_masks_without_a_pixel_have_pictures_too(tmp_path, always):
    trainer, _, _ = trained(tmp_path / "any", epochs=1)
    picked = PickedSamples(of_classes, 16, np.array([0]), torch.arange(3.0))
    logits = torch.zeros(SAMPLES, 3)
    logits[7] = float("nan")
    with trainer.context.job.val_loader.window_at(0, 99, 0) as window:
        for batch in window:
            first = int(batch.sample_indices[0])
            picked.add(logits[first : first + batch.size], batch)
    worst, by_class, _ = picked.take()
    assert worst is not None
    assert by_class is not None
    assert 7 in by_class.indices_N
    assert worst.ranked[0] == (float("inf"), 7)
    _, _, unseen = trained(tmp_path / "unseen", kind=SeenInTraining, epochs=1)
    assert {each.error for each in unseen[-1].groups["worst"]} == {0.0}


@dataclass(frozen=True)
class SeenInTraining(Scene):
    """A scene whose mask ignores every pixel if it is of the validation half."""

    def read(self, side_hint=None):
        return Unseen(self.index).read() if self.index >= 10_000 else super().read()


def test_a_class_of_few_samples_takes_no_place_of_another():
    picked = PickedSamples(of_classes, 2, np.array([0]), torch.arange(3.0))
    labels = torch.tensor([0] * 12 + [1])  # none of the last class
    for first in range(0, 130, 13):  # as many as it takes to choose among chosen ones
        errors = first + torch.arange(13.0)
        logits = torch.zeros(13, 3).scatter(1, labels[:, None], -errors[:, None])
        picked.add(logits, Batch(torch.zeros(13, 3, 4, 4), labels, 13, 13, np.arange(13) + first))
    _, by_class, _ = picked.take()
    assert by_class is not None
    assert {*by_class.classes} == {0, 1}
    for number, worst in enumerate(([128, 127, 126, 125], [129, 116, 103, 90])):
        ranked = zip(by_class.classes, by_class.ranked, strict=True)
        found = sorted((sample for of, sample in ranked if of == number), reverse=True)
        assert [index for _, index in found[:4]] == worst


def test_of_many_classes_the_worst_ones_are_shown_by_class(tmp_path, always, monkeypatch):
    monkeypatch.setattr(reporting_pictures, "CLASSES_SHOWN", 1)
    _, events, taken = trained(tmp_path, lr=1e-6)
    for before, pictures in zip(of(events, Validated), taken[1:], strict=False):
        f1 = before.per_class["f1"]
        worst = min(f1, key=lambda name: f1[name] or 0.0)
        assert {CLASSES[each.truth] for each in pictures.groups["by class"]} == {worst}


@pytest.mark.parametrize("bands", [1, 2, 3, 5])
def test_bands_and_bits_of_any_kind_are_visible(bands):
    values = np.linspace(-3, 40, bands * 64, dtype=np.float32).reshape(1, bands, 8, 8)
    values[0, 0, 0, 0] = np.nan
    data = DataConfig(bands="all", mean=[900.0] * bands, std=[5.0] * bands)
    shown = visible(values, data)
    assert shown.shape == (1, 8, 8, 3)
    assert shown.dtype == np.uint8
    assert shown.min() == 0
    assert shown.max() == 255


def test_a_photograph_is_shown_as_it_was():
    pixels = np.arange(192, dtype=np.uint8).reshape(1, 8, 8, 3)
    data = DataConfig(mean=[0.1, 0.2, 0.3], std=[0.5, 0.25, 1.0])
    scaled = (pixels / 255 - np.array(data.mean)) / np.array(data.std)
    assert np.array_equal(visible(scaled.transpose(0, 3, 1, 2).astype(np.float32), data), pixels)
