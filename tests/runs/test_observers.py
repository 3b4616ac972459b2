"""What looks on while a run trains: its memory, pictures of its validations, and what it generates."""

import pytest

from mptui.events import ImagesGenerated, MemorySample
from mptui.runs.store.journal import read_journal
from tests.made.runs import UNET, trained

ONE_EPOCH = UNET | {"training.epochs": 1}


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"logging.pictures": 2}, "predictions"),
        ({"model.name": "diffusion_unet", "sampling.count": 2, "sampling.steps": 2}, "samples"),
    ],
)
def test_a_run_tells_its_memory_and_keeps_its_pictures(tmp_path, settings, what):
    session = trained(tmp_path / "one", ONE_EPOCH | settings)
    events = list(read_journal(session.run))
    assert any(isinstance(event, MemorySample) and event.process for event in events)
    images = [event for event in events if isinstance(event, ImagesGenerated)]
    [pictures] = [event for event in images if event.what != "data"]  # which a run begins with
    assert (session.run / pictures.path).exists()
    assert pictures.path.startswith(what)
