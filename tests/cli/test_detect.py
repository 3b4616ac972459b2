import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from mptui.cli.main import app
from tests.hardware.fake_nvml import GIB, FakeNvml, FakeSlice, h200, t4
from tests.made.json_documents import checked


@pytest.fixture
def detect(monkeypatch):
    """Run `mptui detect` on a machine with these GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def run(nvml, *arguments):
        nvml.install(monkeypatch)
        return CliRunner().invoke(app, ["detect", "--no-torch", *arguments])

    return run


def test_json_is_one_document_and_nothing_else(detect):
    result = detect(FakeNvml([h200(), t4()]), "--json")

    document = checked("detect", json.loads(result.stdout))
    assert result.exit_code == 0
    assert [d["device"] for d in document["devices"]] == ["cuda:0", "cuda:1", "cpu"]
    assert document["selected"] == "cuda:0"
    assert [d["recommendation"]["precision"] for d in document["devices"][:2]] == ["bf16", "fp16"]
    assert document["driver"] == "580.95.05"


def test_plain_lines_tell_what_to_use_and_stderr_what_to_do_next(detect):
    result = detect(FakeNvml([h200()]))

    assert result.exit_code == 0
    assert "cuda:0  NVIDIA H200\n" in result.stdout
    assert "use bf16" in result.stdout
    assert "mptui run --profile fast" in result.stderr
    assert "mptui run" not in result.stdout


def test_the_freest_gpu_is_selected_and_the_reason_told(detect):
    cards = h200(utilisation=93, used=100 * GIB), h200(uuid="GPU-b")

    document = json.loads(detect(FakeNvml([*cards]), "--json").stdout)
    told = detect(FakeNvml([*cards])).stdout

    assert document["selected"] == "cuda:1"
    assert document["selected_reason"] in told
    assert "cuda:0 is 93% busy" in told


@pytest.mark.parametrize(
    ("nvml", "words"),
    [
        (FakeNvml([]), "sees no GPU"),
        (FakeNvml([h200(lost=True)]), "is lost"),
        (FakeNvml([h200(mig=True)]), "MIG on and no slice"),
        (FakeNvml([h200(mig=True, slices=[FakeSlice("MIG-a", "a slice", 1 << 34)])]), "its only slice"),
    ],
    ids=["no gpu", "lost", "mig without slices", "mig"],
)
def test_what_is_odd_of_the_machine_is_a_sentence_and_no_failure(detect, nvml, words):
    result = detect(nvml)

    assert result.exit_code == 0
    assert words in result.stdout


@pytest.mark.slow
def test_this_machine_with_torch():
    result = subprocess.run(
        [sys.executable, "-m", "mptui", "detect", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ.copy(),
    )

    document = json.loads(result.stdout)
    assert document["torch"]["version"]
    assert document["devices"][-1]["device"] == "cpu"
    assert document["selected"] in {d["device"] for d in document["devices"] if d["usable"]}


def test_the_command_costs_no_start_up_time():
    code = (
        "import sys, mptui.cli.look.detect; sys.exit(bool({'torch', 'pynvml', 'textual'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_gpu_that_can_not_be_used_leaves_nothing_selected(detect):
    nvml = FakeNvml([h200(lost=True)])

    document = json.loads(detect(nvml, "--json").stdout)

    assert document["selected"] is None
    assert "is lost" in document["selected_reason"]
    assert "--device cpu" in detect(nvml).stderr
