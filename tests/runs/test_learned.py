"""What a network has learned from is known from its checkpoint, whatever becomes of the data afterwards."""

import shutil
from functools import partial
from typing import Any

import numpy as np
import pytest

from mptui import resume, train
from mptui.data.learned import LearnedData
from mptui.engine.checkpoint.files import read_newest
from mptui.errors import DataError
from mptui.lab.use.trained import open_trained
from mptui.runs.store.directory import read_json
from tests.data.images import class_folders
from tests.made.runs import QUIET, moved
from tests.toys.training import bits

slow = partial(pytest.param, marks=pytest.mark.slow)

SMALL: dict[str, Any] = {
    "model": "small_cnn",
    "data.image_size": 32,
    "data.workers": 0,
    "training.batch_size": 8,
    "hardware.device": "cpu",
    "speed.compile": "off",
    "training.schedule": "constant",
    **QUIET,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with photographs, and a finished run of one epoch on them."""
    folder = tmp_path_factory.mktemp("made")
    class_folders(folder / "photos", {"cat": 12, "dog": 12})
    train(data=folder / "photos", runs_dir=folder, name="run", epochs=1, **SMALL)
    return folder


@pytest.fixture
def photos(tmp_path, made):
    return moved(made, tmp_path) / "photos"


@pytest.fixture
def run(tmp_path, photos):
    """A finished run of one epoch on the photographs."""
    return tmp_path / "run"


def rename(photos):
    (photos / "cat").rename(photos / "zebra")


def remove(photos):
    class_folders(photos, {"eel": 4})
    shutil.rmtree(photos / "dog")


def add(photos):
    class_folders(photos, {"eel": 4})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (rename, "classes: 1 gone (cat), 1 new (zebra)"),
        (remove, "classes: 1 gone (dog), 1 new (eel)"),
        (add, "classes: 1 new (eel)"),
    ],
)
@pytest.mark.parametrize("early", [False, True])
def test_a_run_whose_classes_have_other_names_does_not_go_on(photos, run, change, told, early):
    if early:
        forget_facts(run)
    change(photos)
    before = read_json(run / "data.json")
    with pytest.raises(DataError) as refused:
        resume(run, epochs=2)
    assert told in refused.value.message
    assert "restore the data" in refused.value.hint
    assert read_json(run / "data.json") == before


def forget_facts(run):
    """Make the checkpoints as an early version wrote them, which only data.json tells the classes of."""
    from mptui.engine.checkpoint.files import checkpoints, write_checkpoint

    folder = run / "checkpoints"
    snapshot, _ = read_newest(folder)
    del snapshot.state["data"]
    for path in checkpoints(folder):
        shutil.rmtree(path)
    write_checkpoint(folder, snapshot)


def test_an_older_checkpoint_keeps_its_classes_when_the_run_has_others(run):
    """`data.json` is of the last training: here of a run of an early version that went on with others."""
    record = read_json(run / "data.json")
    (run / "data.json").write_text(str(record | {"classes": ["dog", "zebra"]}).replace("'", '"'))
    trained = open_trained(run, note=print)
    assert trained.classes == ("cat", "dog")
    snapshot, _ = read_newest(run / "checkpoints")
    learned = LearnedData.read(snapshot.state["data"])
    assert (learned.task, learned.sample, learned.class_counts) == ("classification", "CLASS", [10, 10])


class Digits:
    """Bright images of the class `light`, dark ones of `dark`; the order of the classes is the test's."""

    classes = ("dark", "light", "grey")

    def __init__(self, train):
        self.train = train

    def __len__(self):
        return 24 if self.train else 12

    def __getitem__(self, index):
        name = ("dark", "light", "grey")[index % 3]
        noise = np.random.default_rng(index).integers(0, 60, (32, 32, 3))
        label = self.classes.index(name)
        image = (noise + {"dark": 0, "grey": 90, "light": 180}[name]).astype(np.uint8)
        return image, label


class MaskedDigits(Digits):
    """The same, each with its class as a mask."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image, np.full((32, 32), label, np.uint8)


@pytest.mark.parametrize(("data", "model"), [(Digits, "small_cnn"), slow(MaskedDigits, "unet")])
def test_the_same_classes_in_another_order_keep_their_outputs(tmp_path, monkeypatch, data, model):
    settings = {**SMALL, "model": model, **({"model.width": 2, "model.depth": 1} if model == "unet" else {})}
    for name in ("plain", "moved"):
        monkeypatch.setattr(data, "classes", ("dark", "light", "grey"))
        train(data=data, runs_dir=tmp_path, name=name, epochs=1, **settings)
        if name == "moved":
            monkeypatch.setattr(data, "classes", ("grey", "dark", "light"))
        resume(tmp_path / name, data=data, epochs=2)
    plain, moved = (read_newest(tmp_path / name / "checkpoints")[0] for name in ("plain", "moved"))
    assert moved.state["data"]["classes"] == ["dark", "light", "grey"]
    assert bits(moved.tensors) == bits(plain.tensors)


def test_folders_in_another_order_keep_their_labels_and_counts(photos):
    from mptui.config.schema import DataConfig
    from mptui.data.dataset import in_learned_order
    from mptui.data.open import open_dataset
    from mptui.data.types import LabelledSplit
    from mptui.registry.names import SampleKind

    class_folders(photos, {"eel": 20})
    dataset = open_dataset(
        DataConfig(path=str(photos)),
        kind=SampleKind.CLASS,
        side=32,
        seed=0,
        on_progress=lambda done, total: None,
        should_stop=lambda: False,
        on_warning=lambda warning: None,
    )
    again = in_learned_order(dataset, LearnedData(classes=["eel", "cat", "dog"]))
    assert again.classes == ("eel", "cat", "dog")
    assert list(again.class_counts) == [dataset.class_counts[i] for i in (2, 0, 1)]
    assert isinstance(dataset.train, LabelledSplit)
    assert isinstance(again.train, LabelledSplit)
    for index in range(len(dataset.train)):
        name = dataset.classes[dataset.train.request(index).read().label]
        assert again.classes[again.train.request(index).read().label] == name
        assert again.classes[again.train.sample_labels[index]] == name
