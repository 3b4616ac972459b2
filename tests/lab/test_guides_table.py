import json
import sys

import pytest
from typer.testing import CliRunner

from mptui.cli.main import app
from mptui.errors import ConfigError
from mptui.hardware.devices import Device
from mptui.lab.measure.bench import SUBJECTS, beside_claims, formats, request_of
from mptui.lab.measure.core import MeasureError, Measurer, SampleSpan, ShortRunResult
from mptui.runs.planning.plan import plan_run
from tests.made.json_documents import checked

GAINS = {"fp32": 1.0, "fp16": 1.8, "bf16": 0.4}


def device(kind, **native):
    return Device(kind=kind, index=0, name="one", architecture=None, memory_total=None, native=native)


@pytest.fixture
def made_up(monkeypatch):
    """Runs that are planned but not trained, and measured by formula: ViT-L does not fit in fp16."""
    asked = []

    def measure(self, request, settings, effort):
        asked.append((request, dict(settings)))
        name, mode = request.flags["model.name"][1], settings["precision.mode"]
        if (name, mode) == ("vit_l_16", "fp16"):
            raise MeasureError("out of memory", 5)
        return ShortRunResult(SampleSpan(100 * GAINS[mode], 1.0), int(1000 / GAINS[mode]), 1.0, 2.0, 0.0)

    monkeypatch.setattr(Measurer, "measure", measure)
    monkeypatch.setitem(sys.modules, "transformers", None)  # not installed, wherever this runs
    return asked


def table(*arguments):
    return CliRunner().invoke(app, ["bench", "--table", "guides", "--device", "cpu", *arguments])


def test_each_network_is_measured_in_each_format_with_the_claim_beside_it(made_up):
    document = checked("bench --table guides", json.loads(table("--rounds", "2", "--json").stdout))

    rows = {row["name"]: row for row in document["rows"]}
    assert list(rows) == ["resnet50", "vit_l_16", "diffusion_unet", "unet"]
    assert rows["resnet50"]["claim"] == {"fp16": 1.8, "bf16": 1.7}
    assert rows["diffusion_unet"]["claim"] == {"fp16": 1.9, "bf16": 1.85}
    assert rows["unet"]["claim"] is None  # masks: no guide's diffusion U-Net
    by_format = {found["name"]: found for found in rows["resnet50"]["formats"]}
    assert by_format["fp16"]["ratio"]["value"] == pytest.approx(1.8)
    assert by_format["fp16"]["memory"] == pytest.approx(1 / 1.8, rel=0.01)
    assert by_format["bf16"]["verdict"] == "slower"


def test_a_person_reads_sizes_claims_and_what_did_not_fit(made_up):
    ended = table("--rounds", "2", "--markdown")
    shown = ended.stdout

    assert "the guides: Mixed Precision Training (A100" in ended.stderr
    assert "GPT-2 is left out: " in ended.stderr
    assert "| ResNet-50 | 64 px, batch 16 | 100.0 | FP16 | 1.80 | 1.80 to 1.80 | 56% | 1.80 |" in shown
    assert "| ViT-L/16 | 32 px, batch 4 | 100.0 | FP16 | – | out of memory | – | 2.10 |" in shown
    assert "| U-Net for masks |" in shown
    assert "| diffusion U-Net | 32 px, batch 4 | 100.0 | FP16 | 1.80 | 1.80 to 1.80 | 56% | 1.90 |" in shown


def test_claims_about_cards_stand_beside_what_was_measured(made_up):
    ended = table("--rounds", "1", "--only", "unet", "--markdown")
    assert "| unet | BF16 | RTX 3090 | 1.52 | 0.40 | 59% | 250% | 54 s | – | 0.841 |" in ended.stdout
    assert "| unet | BF16 | RTX 4090 | 1.74 | 0.40 | 57% | 250% | 35 s | – | 0.842 |" in ended.stdout
    assert "resnet50 | FP16" not in ended.stdout
    large = table("--rounds", "1", "--only", "unet", "--markdown", "--set", "data.image_size=512").stdout
    assert "59% | 250% | 54 s | 30 s | 0.841 |" in large  # an epoch only at the guide's size
    assert "U-Net, 512 px, batch 8" in ended.stderr


def test_of_a_card_that_guides_name_only_its_claims_are_shown(made_up):
    rows = json.loads(table("--rounds", "1", "--json").stdout)["rows"]
    assert len(beside_claims(rows, "cpu")) == 6
    (claim,) = beside_claims(rows, "NVIDIA A100-SXM4-80GB")
    assert (claim["network"], claim["format"], claim["speed"]) == ("resnet50", "bf16", 2.0)
    assert claim["measured"]["speed"] == pytest.approx(0.4)
    assert claim["measured"]["epoch_s"] is None


def test_what_was_measured_before_ctrl_c_is_shown(made_up, monkeypatch):
    measure = Measurer.measure

    def stopped(self, request, settings, effort):
        if len(made_up) == 4:
            raise KeyboardInterrupt
        return measure(self, request, settings, effort)

    monkeypatch.setattr(Measurer, "measure", stopped)
    flags = ["--table", "guides", "--device", "cpu", "--rounds", "2", "--json"]
    ended = CliRunner().invoke(app, ["bench", *flags], standalone_mode=False)

    assert ended.return_value == 130
    rows = json.loads(ended.stdout)["rows"]
    assert [row["name"] for row in rows] == ["resnet50"]
    assert [len(found["rounds"]) for found in rows[0]["formats"]] == [1, 1, 2]


def test_all_but_the_format_is_the_same_and_set_by_the_table(made_up):
    table("--rounds", "1", "--only", "unet", "--set", "training.batch_size=2")

    assert {tuple(request.sets) for request, _ in made_up} == {("training.batch_size=2",)}
    assert plan_run(made_up[0][0]).config.training.batch_size == 2
    others = [{k: v for k, v in s.items() if not k.startswith("precision")} for _, s in made_up]
    assert all(other == others[0] for other in others)


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_every_network_of_the_table_can_be_planned_at_its_size(subject, kind):
    sizes = request_of(subject, device(kind), ())
    flags = {**sizes.flags, "hardware.device": ("test", "cpu")}

    config = plan_run(type(sizes)(sizes.profile, flags, (), {})).config
    assert config.data.image_size == subject.settings(device(kind))["data.image_size"]


def test_fp32_is_strict_and_tf32_a_format_of_its_own_where_there_is_one():
    ampere = {
        v.name: v.settings for v in formats(device("cuda", fp16="native", bf16="native", tf32="native"))
    }
    volta = [v.name for v in formats(device("cuda", fp16="native", bf16="no", tf32="no"))]

    assert list(ampere) == ["baseline", "tf32", "fp16", "bf16"]
    assert ampere["baseline"]["precision.matmul"] == "highest"
    assert ampere["tf32"] == {**ampere["baseline"], "precision.matmul": "high"}
    assert volta == ["baseline", "fp16"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--table", "papers"], "papers"),
        (["--table", "guides", "--model", "unet"], "--model"),
        (["--table", "guides", "--only", "gpt"], "gpt"),
    ],
)
def test_what_the_table_can_not_be_is_told(arguments, word):
    ended = CliRunner().invoke(app, ["bench", *arguments])

    assert isinstance(ended.exception, ConfigError)
    assert word in ended.exception.message
