"""Files that guards write into a run directory, from a real session."""

import json

import pytest
import torch

from mptui.data.loader import Loader
from mptui.models.zoo import build
from mptui.runs.session.session import Session
from mptui.runs.store.directory import create_run
from tests.data.images import class_folders
from tests.engine.guards.sick import Gain
from tests.made.runs import QUIET, plan_of
from tests.made.runs import ended as trained

SETTINGS = {
    "model.name": "small_cnn",
    "data.image_size": 32,
    "data.cache": "off",
    "data.workers": 0,
    "training.batch_size": 4,
    "training.epochs": 2,
    "training.lr": 0.001,
    "training.warmup_epochs": 0.0,
    "training.ema_decay": None,
    "logging.step_interval_s": 0.0,
    "hardware.device": "cpu",
    **QUIET,
}


@pytest.fixture
def ended(tmp_path, monkeypatch):
    """Train on a folder of 2 x 10 images; return the session's result, its run directory, and the journal."""
    monkeypatch.setenv("MPTUI_CONFIG_DIR", str(tmp_path / "config"))
    pictures = class_folders(tmp_path / "pictures", {"cats": 10, "dogs": 10})

    def go(**settings):
        asked = {**SETTINGS, "data.path": str(pictures), **settings}
        run = create_run(tmp_path, "test", "small_cnn", None)
        session = trained(Session(plan_of(asked), run))
        journal = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
        return session.result, run, journal

    return go


def of(journal, kind):
    return [record for record in journal if record["event"] == kind]


def test_a_file_whose_image_is_not_finite_is_named_and_the_run_survives(ended, monkeypatch):
    make = Loader._batch

    def with_a_sick_file(loader, images, targets, indices, valid, *, place):
        batch = make(loader, images, targets, indices, valid, place=place)
        for row, name in enumerate(loader.names(indices)):
            if name.endswith("dogs/3.png") and loader.order.train:
                batch.images_BCHW[row, 0, 5, 5] = torch.nan
        return batch

    monkeypatch.setattr(Loader, "_batch", with_a_sick_file)
    for seed in range(9):  # until it is in the training split
        result, run, journal = ended(**{"training.seed": seed})
        if found := of(journal, "diagnosed"):
            break
    assert result.exit_code == 0
    assert [len(record["files"]) for record in found] == [1, 1]  # once per epoch
    assert all(record["files"][0].endswith("dogs/3.png") for record in found)
    summary = json.loads((run / "summary.json").read_text())
    assert [r["kind"] for r in summary["recoveries"]] == ["bad batch"] * 2
    assert "3.png" in summary["recoveries"][0]["action"]
    assert summary["final"]["train_loss"] > 0  # a finite number


def test_a_run_that_can_not_be_mended_leaves_a_report(ended, monkeypatch):
    def with_a_sick_layer(*args, **kwargs):
        model = build(*args, **kwargs)
        model.layer2 = torch.nn.Sequential(*model.get_submodule("layer2").children(), Gain(float("inf")))
        return model

    monkeypatch.setattr("mptui.runs.planning.build.build", with_a_sick_layer)
    result, run, journal = ended(**{"guards.max_recoveries": 1, "training.epochs": 9})
    assert result.exit_code == 4
    assert "divergence.json" in result.error.hint
    assert "layer2.3" in result.error.message
    report = json.loads((run / "divergence.json").read_text())
    assert (report["where"], report["layer"]) == ("forward", "layer2.3")
    assert len(report["files"]) == 4
    assert report["moves"] == ["learning rate 0.001 → 0.0005"]
    assert report["advice"]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "diverged"
    assert [r["action"].partition(",")[0] for r in summary["recoveries"]] == report["moves"]
    assert [r["problem"] for r in of(journal, "recovered")] == ["divergence"]


@pytest.mark.slow
def test_out_of_memory_that_can_not_be_mended_has_its_code(ended, monkeypatch):
    def without_memory(*args, **kwargs):
        model = build(*args, **kwargs)
        model.get_submodule("layer2").register_forward_pre_hook(fail)
        return model

    def fail(module, inputs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("mptui.runs.planning.build.build", without_memory)
    result, run, _ = ended()
    assert (result.status, result.exit_code) == ("out_of_memory", 5)
    assert "micro-batch of one sample" in result.error.message
    kinds = {r["kind"] for r in json.loads((run / "summary.json").read_text())["recoveries"]}
    assert kinds == {"out of memory"}
