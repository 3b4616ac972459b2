"""The validation loss doesn't depend on the batch size."""

import pytest
import torch

from mptui.engine.epochs import validate
from tests.engine.blots import Blot, Scene, Unseen
from tests.engine.small import build_trainer, config, end

SAMPLES = 21


def measured(folder, kind, batch_size, *, at_once=None, workers=0):
    """Validate an untrained network."""
    trainer, _ = build_trainer(
        config(training={"batch_size": batch_size}), folder, kind=kind, val=SAMPLES, workers=workers
    )
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


def test_a_set_whose_every_pixel_is_ignored_has_no_loss(tmp_path):
    assert measured(tmp_path, Unseen, 4).loss == 0.0
