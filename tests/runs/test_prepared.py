"""A run on a prepared set equals the run on its source folder."""

import pytest

from mptui.data.prepared import open_prepared
from mptui.events import EpochFinished, Validated
from tests.data.images import pairs, stripes
from tests.data.prepared_sets import prepared
from tests.made.runs import QUIET, ended, session_of

SETTINGS = {
    "model.name": "unet",
    "model.width": 4,
    "model.depth": 1,
    "precision.mode": "fp32",
    "data.image_size": 16,
    "data.workers": 1,
    "training.batch_size": 8,
    "training.epochs": 2,
    "hardware.device": "cpu",
    **QUIET,
}


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["off", "ram"])
def test_images_small_enough_to_be_kept_as_they_are_train_to_the_same_figures(tmp_path, cache):
    masks = [stripes(0, 255) if index % 3 else stripes(255, 255, 0) for index in range(20)]
    pairs(tmp_path / "data", masks)
    assert prepared(tmp_path / "data", tmp_path / "out", size=16).folder == tmp_path / "out"
    assert open_prepared(str(tmp_path / "out")).about.count == 20
    figures = []
    for where in ("data", "out"):
        settings = {**SETTINGS, "data.path": str(tmp_path / where), "data.cache": cache}
        session = session_of(tmp_path / "runs" / where, settings)
        heard = session.listen()
        assert ended(session).result.exit_code == 0
        told = [event for event in heard.drain() if isinstance(event, EpochFinished | Validated)]
        figures.append(
            [
                (event.val_loss, event.train_loss)
                if isinstance(event, EpochFinished)
                else (event.loss, event.metrics)
                for event in told
            ]
        )
    assert figures[0] == figures[1]
    assert len(figures[0]) >= 4
