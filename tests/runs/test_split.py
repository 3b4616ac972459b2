"""Which images a run validates on, whatever its training seed."""

import pytest
import torch

from mptui.engine.mailbox import Mailbox
from mptui.runs.planning.build import prepare
from tests.data.images import photo
from tests.made.runs import plan_of

SETTINGS = {
    "model.name": "small_cnn",
    "data.image_size": 32,
    "data.workers": 0,
    "training.batch_size": 4,
    "hardware.device": "cpu",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("set")
    for index in range(40):
        path = root / "ab"[index % 2] / f"{index:02}.png"
        path.parent.mkdir(exist_ok=True)
        photo(32 + index, 40).save(path)
    return str(root)


def validated(data, **settings):
    """Return names and pixels of the validation images of a run."""
    given = SETTINGS | data | {key.replace("__", "."): value for key, value in settings.items()}
    plan = plan_of(given, None)
    made = prepare(plan, emit=lambda _: None, mailbox=Mailbox(), on_bad=lambda _: None, force_compile=False)
    names = [made.dataset.val.request(index).name for index in range(len(made.dataset.val))]
    with made.job.val_loader as loader, made.job.train_loader:
        images = [batch.images_BCHW[: batch.size] for window in loader.windows(0, 1) for batch in window]
    return names, torch.cat(images)


@pytest.mark.parametrize("built_in", [False, True], ids=["folder", "built in"])
def test_runs_of_other_seeds_validate_on_the_same_images(folder, built_in):
    data = {"data.name": "shapes", "data.samples": 16} if built_in else {"data.path": folder}
    one = validated(data, training__seed=1)
    two = validated(data, training__seed=2)
    assert one[0] == two[0]
    assert torch.equal(one[1], two[1])
    other = validated(data, training__seed=1, data__split_seed=5)
    assert not torch.equal(one[1], other[1])
