"""The commands of a trained run on a GPU: trained there, its figures are those that a CPU computes."""

import csv
import json

import pytest
from PIL import Image

from tests.gpus import SLOW_CPU
from tests.made.json_documents import checked
from tests.program import run_to_end
from tests.small_cnn import NAME

SIZES: dict[str, object] = {
    "data.image_size": 16,
    "training.batch_size": 8,
    "training.epochs": 2,
    "data.workers": 0,
    "speed.compile": "off",
}
NETWORKS: dict[str, tuple[str, dict[str, object]]] = {
    "classifier": (NAME, {"training.lr": 0.02}),
    "generator": ("diffusion_unet", {"model.width": 8, "model.depth": 1, "data.image_size": 8}),
}


@pytest.fixture(scope="module", params=SLOW_CPU)
def device(request):
    return request.param


def done(*words):
    ended = run_to_end(*words)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def run_of(device, pictures, tmp_path_factory):
    """Runs of `mptui run` on the device, by their network; each is trained once."""
    folder, runs = tmp_path_factory.mktemp("runs"), {}

    def run_of(name):
        if name not in runs:
            model, more = NETWORKS[name]
            sets = [f"--set={key}={json.dumps(value)}" for key, value in {**SIZES, **more}.items()]
            words = ("run", "--model", model, "--data", pictures, "--device", device, "--runs-dir", folder)
            runs[name] = json.loads(done(*words, "--name", name, "--json", *sets))
        return folder / name, runs[name]

    return run_of


@pytest.mark.parametrize("name", NETWORKS)
def test_a_run_is_trained_on_the_device(run_of, device, name):
    _, summary = run_of(name)
    assert summary["status"] == "completed"
    assert summary["precision"]["used"] in {"bf16", "fp16", "fp32"}
    assert summary["recoveries"] == []
    assert summary["final"]["train_loss"] > 0
    assert bool(summary["memory"]["peak_allocated_bytes"]) == (device == "cuda")


def test_it_is_evaluated_as_on_a_cpu(run_of, device):
    run, summary = run_of("classifier")
    here, there = (
        json.loads(done("evaluate", run, "--precision", "fp32", "--json", "--device", each))
        for each in (device, "cpu")
    )
    assert here["loss"] == pytest.approx(there["loss"], rel=1e-2)
    assert here["metrics"] == pytest.approx(there["metrics"], abs=0.1)
    assert summary["best"]["value"] is not None


def test_its_predictions_are_those_of_a_cpu(run_of, device, pictures):
    run, _ = run_of("classifier")
    here, there = (
        list(
            csv.DictReader(
                done("predict", run, pictures, "--precision", "fp32", "--device", each).splitlines()
            )
        )
        for each in (device, "cpu")
    )
    assert len(here) == 24
    for row, expected in zip(here, there, strict=True):
        assert row["file"] == expected["file"]
        assert row["error"] == ""
        chances = {
            name: float(value) for name, value in row.items() if name.startswith(("p_", "probability"))
        }
        assert chances == pytest.approx({name: float(expected[name]) for name in chances}, abs=0.02)


@pytest.mark.parametrize("format_", ["safetensors", "pt2"])
def test_it_is_exported_to_a_file_that_computes_the_same(run_of, tmp_path, format_):
    run, _ = run_of("classifier")
    printed = done("export", run, "--format", format_, "--out", tmp_path / "out", "--json")
    told = checked("export", json.loads(printed))
    assert told["other_classes"] == 0
    assert told["largest_difference"] <= told["tolerance"]


def test_images_are_made_with_it(run_of, device, tmp_path):
    run, _ = run_of("generator")
    out = tmp_path / "out"
    done("sample", run, "--out", out, "--count", 3, "--steps", 3, "--device", device)
    sizes = {Image.open(path).size for path in out.glob("*.png") if path.name != "grid.png"}
    assert sizes == {(8, 8)}
    assert len(list(out.glob("*.png"))) == 4
