"""Exported networks: a file is loaded by its own runtime, and kept only if it computes what the run does."""

import json
from dataclasses import replace

import onnxruntime
import pytest
import torch
from safetensors import safe_open

from mptui.cli.main import app
from mptui.errors import ConfigError, DiskError, MptuiError
from mptui.io.written_files import LIST
from mptui.lab.use import export as exports
from mptui.lab.use.export_formats import BATCH_SIZES, EXPORT_FORMATS, LOADED, Agreement, compare
from mptui.lab.use.trained import open_trained
from mptui.models.vae import read_layout, read_vae
from mptui.models.vae_layout import CONFIG, WEIGHTS
from mptui.models.weights import load_weights
from mptui.models.zoo import build


def ask(format_, folder, **more):
    return exports.ExportRequest(
        **{"format": format_, "folder": folder, "data": {}, "images": 50, "licence": None, **more}
    )


def exported(run, request):
    trained = open_trained(run, None, dict(exports.SETTINGS), note=lambda message: None)
    done = exports.export_run(
        trained, request, on_progress=lambda done, total: None, note=lambda message: None
    )
    return trained, done


def facts_in(file):
    if file.suffix == ".onnx":
        return onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map["mptui"]
    if file.suffix == ".pt2":
        found = {"mptui.json": ""}
        torch.export.load(file, extra_files=found)
        return found["mptui.json"]
    with safe_open(file, framework="pt") as opened:
        return opened.metadata()["mptui"]


@pytest.mark.slow
@pytest.mark.parametrize("format_", [name for name, spec in EXPORT_FORMATS.items() if not spec.model])
def test_a_file_computes_what_the_run_does_and_says_what_it_is(format_, segmenter, tmp_path):
    trained, done = exported(segmenter, ask(format_, tmp_path / "out", licence="MIT"))
    assert done.agreement.close
    assert done.agreement.images == LOADED  # its 8 images, repeated, so that there is a batch of each size
    assert done.file.parent == tmp_path / "out"
    facts = json.loads(facts_in(done.file))
    assert facts["classes"] == list(trained.classes)
    assert facts["input"]["mean"] == [0.485, 0.456, 0.406]
    assert facts["input"]["side"] == 32
    assert facts["licences"]["this file"] == "MIT"
    assert facts["run"]["precision"] == "fp32"
    assert facts["metrics"]["iou"] >= 0
    card = done.card.read_text()
    assert done.file.name in card
    assert all(name in card for name in trained.classes)
    assert "license: mit" in card
    assert (done.card.parent / "curves.svg").read_text().startswith("<svg")
    assert {path.name for path in done.card.parent.iterdir() if path.name.startswith(".")} == {LIST}


def test_exported_weights_begin_another_run(classifier, tmp_path):
    trained, done = exported(classifier, ask("safetensors", tmp_path))
    model = build(trained.config.model, num_classes=3, task=trained.plan.task, side=32)
    assert load_weights(model, done.file) == []
    exported(classifier, ask("safetensors", tmp_path))  # again: it replaces what mptui has written
    for name, tensor in trained.model.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(model.state_dict()[name], tensor), name


def test_a_vae_is_exported_in_the_layout_of_diffusers(vae, classifier, tmp_path):
    trained, done = exported(vae, ask("diffusers", tmp_path / "vae"))
    folder = done.file.parent
    assert {path.name for path in folder.iterdir()} == {CONFIG, WEIGHTS, "README.md", "curves.svg", LIST}
    layout = read_layout(folder)
    read = read_vae(folder, layout)
    assert all(torch.equal(t, read.state_dict()[name]) for name, t in trained.model.state_dict().items())
    assert layout.sample_size == 8
    assert layout.scaling_factor == json.loads(facts_in(done.file))["latents"]["scaling_factor"] != 1
    with pytest.raises(ConfigError, match="for --model vae"):
        exported(classifier, ask("diffusers", tmp_path / "classifier"))


@pytest.mark.parametrize("text", ["# My project", "---\ntags: [mptui]\n---\nmine"])
def test_the_readme_of_a_project_is_not_replaced(classifier, tmp_path, text):
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(ConfigError, match=r"README\.md: there is such a file"):
        exported(classifier, ask("safetensors", tmp_path))
    assert [path.read_text() for path in tmp_path.iterdir()] == [text]


def test_a_file_that_computes_other_outputs_is_not_left_behind(classifier, tmp_path, monkeypatch):
    spec = EXPORT_FORMATS["safetensors"]

    def write_tampered(model, inputs, facts, path):
        with torch.no_grad():
            model.fc.bias[1] += 0.01
            spec.write(model, inputs, facts, path)
            model.fc.bias[1] -= 0.01

    monkeypatch.setitem(EXPORT_FORMATS, "safetensors", replace(spec, write=write_tampered))
    with pytest.raises(
        MptuiError, match=r"computes other outputs than the run: they differ by up to 0\.01"
    ) as found:
        exported(classifier, ask("safetensors", tmp_path / "out"))
    assert found.value.exit_code != 0
    assert not list((tmp_path / "out").iterdir())


def test_a_network_that_a_format_can_not_hold_is_an_error_and_no_file(classifier, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no such operator: aten::odd\nmore")

    monkeypatch.setitem(EXPORT_FORMATS, "onnx", replace(EXPORT_FORMATS["onnx"], write=fail))
    with pytest.raises(MptuiError, match=r"can't be exported as onnx: no such operator: aten::odd$"):
        exported(classifier, ask("onnx", tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("Error while serializing: I/O error: No space left on device (os error 28)", "no space left"),
        ("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0", "no space left"),
        ("Error while serializing: I/O error: Read-only file system (os error 30)", "read-only"),
    ],
)
def test_a_disk_that_an_exporter_can_not_write_is_told_as_that(
    classifier, tmp_path, monkeypatch, told, words
):
    def fail(*_):
        raise RuntimeError(told)

    format_ = EXPORT_FORMATS["safetensors"]
    monkeypatch.setitem(EXPORT_FORMATS, "safetensors", replace(format_, write=fail))
    with pytest.raises(DiskError, match=words):
        exported(classifier, ask("safetensors", tmp_path))


@pytest.mark.parametrize("wrong", [float("nan"), 0.5])
def test_networks_are_compared_at_every_batch_size(wrong):
    model = torch.nn.Flatten()
    batches = iter([(torch.rand(LOADED, 3),), (torch.rand(LOADED, 3),)])
    sizes = []

    def network(inputs):
        sizes.append(len(inputs[0]))
        return model(*inputs) + (wrong if len(inputs[0]) == BATCH_SIZES[-1] else 0)

    found = compare(
        model, network, batches, images=50, has_classes=True, on_progress=lambda done, total: None
    )
    assert sizes == list(BATCH_SIZES)  # it ends at the first difference
    assert not found.close


def test_a_missing_runtime_and_an_unknown_format_are_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="onnxruntime not installed"):
        exports.check_format("onnx")
    with pytest.raises(ConfigError, match="no such format"):
        exports.check_format("caffe")


def test_the_command_opens_the_run_for_any_machine(monkeypatch, classifier, tmp_path):
    seen = []

    def export_run(trained, *_, **__):
        seen.append(trained)
        return exports.Exported(tmp_path / "x", 1, tmp_path / "README.md", Agreement(40, 0.0, 1.0))

    monkeypatch.setattr(exports, "export_run", export_run)
    assert app(["export", str(classifier), "--out", str(tmp_path)], standalone_mode=False) == 0
    (trained,) = seen
    assert (trained.device.type, trained.precision.name) == ("cpu", "fp32")
    assert trained.config.training.batch_size == LOADED
