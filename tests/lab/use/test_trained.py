"""A run is opened for use with the weights it validates with, and left as it was."""

import shutil

import pytest
import torch

from mptui.data.transforms import IMAGENET
from mptui.engine.checkpoint.files import read_checkpoint, read_named
from mptui.errors import RunDirectoryError
from mptui.lab.use.trained import open_trained


def opened(run, *arguments):
    """Return the opened run and the notes for the user."""
    notes: list[str] = []
    return open_trained(run, *arguments, note=notes.append), notes


def test_a_run_is_opened_with_its_classes_and_the_averaged_weights(classifier):
    trained, notes = opened(classifier)
    snapshot = read_checkpoint(classifier / "checkpoints" / "best")
    assert notes == []
    assert (trained.checkpoint, trained.step) == ("best", snapshot.step)
    assert trained.classes == ("blue", "green", "red")
    assert trained.preprocessing.geometry.side == 32
    assert trained.preprocessing.normalization == IMAGENET
    own = trained.model.state_dict()
    assert not trained.model.training
    assert torch.equal(own["layer1.0.weight"], snapshot.tensors["average"]["layer1.0.weight"])
    assert not torch.equal(own["layer1.0.weight"], snapshot.tensors["model"]["layer1.0.weight"])
    average = snapshot.tensors["average"]
    assert torch.equal(own["layer1.1.running_mean"], average["layer1.1.running_mean"])


def test_opening_changes_nothing_even_if_the_checkpoint_is_damaged(tmp_path, classifier):
    run = shutil.copytree(classifier, tmp_path / "run", symlinks=True)
    weights = (run / "checkpoints" / "best").resolve() / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    before = sorted(run.rglob("*"))
    with pytest.raises(RunDirectoryError, match="damaged"):
        opened(run)
    assert sorted(run.rglob("*")) == before


def test_without_a_best_checkpoint_the_last_is_used_and_this_is_said(tmp_path, classifier):
    run = shutil.copytree(classifier, tmp_path / "run", symlinks=True)
    (run / "checkpoints" / "best").unlink()
    trained, notes = opened(run)
    assert trained.checkpoint == "last"
    assert "no best checkpoint" in notes[0]
    with pytest.raises(RunDirectoryError, match="no best") as error:
        opened(run, "best")
    assert "--checkpoint last" in error.value.hint


def test_settings_are_those_of_the_checkpoint_where_the_run_has_switched_since(tmp_path, classifier):
    run = shutil.copytree(classifier, tmp_path / "run", symlinks=True)
    config = run / "run.toml"
    config.write_text(config.read_text().replace("label_smoothing = 0.1", "label_smoothing = 0.3"))
    assert opened(run)[0].config.training.label_smoothing == 0.1
    assert opened(run, None, {"training.batch_size": ("--batch-size", 3)})[0].config.training.batch_size == 3


def test_a_run_of_another_machine_is_opened_on_the_device_here(tmp_path, classifier):
    run = shutil.copytree(classifier, tmp_path / "run", symlinks=True)
    config = run / "run.toml"
    config.write_text(config.read_text().replace('device = "cpu"', 'device = "xpu:7"'))
    assert opened(run)[0].device.type != "xpu"


def test_fallbacks_to_a_safer_precision_apply(tmp_path, classifier, monkeypatch):
    read = read_named

    def fallen_back(*arguments):
        snapshot = read(*arguments)
        assert snapshot is not None
        snapshot.state["settings"]["precision.mode"] = "bf16"
        snapshot.state["guards"]["nan"]["ladder"] |= {"precision": "fp32"}
        return snapshot

    monkeypatch.setattr("mptui.lab.use.trained.read_named", fallen_back)
    assert opened(classifier)[0].precision.name == "fp32"


def test_classes_of_an_early_run_are_those_of_its_journal(tmp_path, classifier):
    run = shutil.copytree(classifier, tmp_path / "run", symlinks=True)
    (run / "data.json").unlink()
    assert opened(run)[0].classes == ("blue", "green", "red")
