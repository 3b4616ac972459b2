"""`runs compare --where` on runs whose difference is known: the operation at which their steps part."""

import json
from functools import partial

import pytest
import torch

from mptui.cli.main import _exit_code
from mptui.config.resolve import to_toml
from mptui.engine.checkpoint.files import Snapshot, write_checkpoint
from mptui.engine.mailbox import Mailbox
from mptui.errors import ConfigError, RunDirectoryError
from mptui.lab.measure.first_difference import RecordedOperation
from mptui.lab.measure.two_runs import parting_place
from mptui.registry.own_code import load
from mptui.runs.listing.rows import compare
from tests.made.runs import plan_of

slow = partial(pytest.param, marks=pytest.mark.slow)

NET = """
from torch import nn

class Half(nn.Module):
    def forward(self, x):
        return x * {factor}

class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            Half(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, num_classes),
        )
"""
BASE = {
    "model.name": "parting_net:Net",
    "data.name": "shapes",
    "data.samples": 16,
    "data.image_size": 16,
    "training.batch_size": 8,
    "precision.mode": "fp32",
    "hardware.device": "cpu",
}


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    for name, factor in (("parting_net", 0.5), ("parted_net", 0.51)):
        (folder / f"{name}.py").write_text(NET.format(factor=factor))
    (folder / "wider_net.py").write_text(NET.format(factor=0.5).replace("16", "24"))
    return folder


@pytest.fixture
def runs(tmp_path, code, monkeypatch):
    """Return the directories of two runs whose settings differ in those given for the second."""
    monkeypatch.chdir(code)

    def made(second, **both):
        found = []
        for name, changes in (("one", {}), ("two", second)):
            config = plan_of(BASE | both | changes, None, trust_code=True).config
            (tmp_path / name).mkdir()
            (tmp_path / name / "run.toml").write_text(to_toml(config))
            found.append(tmp_path / name)
        return found

    return made


def place_of(runs):
    return parting_place(runs, Mailbox(), trust_code=True)


def told(runs, place):
    found = compare(runs)
    return place.sentences(found["settings"], found["environment"])


@pytest.mark.parametrize(
    ("second", "why"),
    [
        slow({}, "neither settings nor versions differ"),
        (
            {"training.lr": 0.0005, "logging.tensorboard": True},
            "training.lr 0.001 and 0.0005, training.lr_batch_size 64 and unset",
        ),
        slow({"training.batch_size": 4}, "training.batch_size 8 and 4"),
    ],
)
def test_what_acts_outside_of_a_step_changes_no_bit_of_it_and_is_named(runs, second, why):
    made = runs(second)
    place = place_of(made)
    assert (place.bits, place.rounding, place.passed_over, place.step) == (None, None, 0, 0)
    assert place.compared > 20
    assert len(place.samples) == 8
    assert (
        told(made, place)[-1] == f"no operation differs in any bit: the curves part for another reason: {why}"
    )


@pytest.mark.parametrize(
    ("both", "second"),
    [
        slow({}, {"precision.mode": "bf16"}),
        ({"precision.mode": "bf16"}, {"precision.mode": "fp16"}),
        slow({"speed.channels_last": False}, {"speed.channels_last": True}),
    ],
)
def test_another_format_or_layout_is_rounding(runs, both, second):
    made = runs(second, **both)
    place = place_of(made)
    assert place.bits is not None
    assert 0 < place.bits.differs < place.bits.allowed
    assert place.rounding is None
    assert told(made, place)[-1] == "no operation differs by more than rounding"


LAYOUT = {"speed.channels_last": False}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "changed"),
    [
        ("unet", {"model.width": 8}, {"precision.mode": "fp16"}),
        ("unet", {"model.width": 8}, LAYOUT),
        ("diffusion_unet", {"model.width": 8, "model.depth": 1}, {"precision.mode": "fp16"}),
        ("resnet18", {}, LAYOUT),
    ],
)
def test_in_networks_of_all_tasks_rounding_is_called_rounding(runs, name, size, changed):
    place = place_of(runs(changed, **{"model.name": name, **size}))
    assert place.bits is not None
    assert place.rounding is None


@pytest.mark.slow
def test_a_setting_that_another_task_has_is_not_asked_for(runs):
    place = place_of(runs({"training.lr": 0.2}, **{"model.name": "unet", "model.width": 2, "model.depth": 1}))
    assert (place.bits, place.rounding, place.passed_over) == (None, None, 0)


MUL = "mul of 2 in the forward pass"
IMAGES = "images of the batch before the forward pass, operation 1 of"
MIX = {"training.label_smoothing": 0.1}
WEIGHTS = {"training.class_weights": [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0]}


@pytest.mark.parametrize(
    ("both", "second", "words", "unmatched"),
    [
        ({}, {"model.name": "parted_net:Net"}, MUL, ""),
        slow({"precision.mode": "bf16"}, {"model.name": "parted_net:Net"}, MUL, ""),
        slow({}, WEIGHTS, "nll_loss_forward of the loss in the forward pass", ""),
        (
            {"precision.mode": "bf16"},
            MIX,
            "mul of the loss in the",
            "sum of the loss in the forward pass, of two",
        ),
        ({}, {"data.std": [0.2, 0.2, 0.2], "precision.mode": "bf16"}, IMAGES, ""),
    ],
)
def test_what_is_more_than_rounding_is_the_first_operation(runs, both, second, words, unmatched):
    made = runs(second, **both)
    place = place_of(made)
    assert place.bits == place.rounding
    assert place.rounding.differs > place.rounding.allowed
    assert place.unmatched == unmatched
    *_, first, last = told(made, place)
    assert first.startswith(f"the first that differs in its bits: {words}")
    assert last == "rounding doesn't explain that"
    assert place.sentences({"logging.tensorboard": [True, False]}, {})[-1].startswith(
        "the settings are the same"
    )


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        ({"training.seed": 1, "data.samples": 24}, "training.seed = 0 in one, 1 in two"),
        ({"model.name": "wider_net:Net"}, "the networks of these runs have other weights"),
        ({"model.name": "resnet18"}, "model.name = parting_net:Net in one, resnet18 in two"),
    ],
)
def test_runs_of_other_networks_data_or_seeds_are_refused(runs, second, fault):
    with pytest.raises(ConfigError, match=fault):
        place_of(runs(second))


def test_the_command_tells_it_after_the_table_and_in_its_document(runs, capsys):
    made = runs({"training.lr": 0.0005})
    command = ["runs", "compare", *map(str, made), "--where", "--trust-code"]
    assert _exit_code(command, debug=False) == 0
    reason = "training.lr 0.001 and 0.0005, training.lr_batch_size 64 and unset"
    assert f"reason: {reason}\nbatch: shapes/train/1, " in capsys.readouterr().out
    assert _exit_code([*command, "--json"], debug=False) == 0
    where = json.loads(capsys.readouterr().out)["where"]
    assert (where["bits"], where["rounding"], len(where["samples"])) == (None, None, 8)
    for wrong in (["--at", "last"], ["--where"]):  # not without --where; the code is not trusted
        assert _exit_code([*command[:4], *wrong], debug=False) == 2


def test_a_step_begins_with_the_checkpoint_that_is_named(runs):
    made = runs({"model.name": "parted_net:Net"})
    state = load("parting_net:Net")(8).state_dict()
    state["1.weight"] *= 3
    write_checkpoint(made[0] / "checkpoints", Snapshot(30, {"model": state}))
    first = place_of(made).bits
    place = parting_place(made, Mailbox(), at="30", trust_code=True)
    assert place.step == 30
    assert first is not None
    assert place.bits is not None
    assert first.operation == place.bits.operation == "mul"
    assert place.bits.reference_size == pytest.approx(3 * first.reference_size, rel=1e-3)
    with pytest.raises(RunDirectoryError, match="no checkpoint last; it has: 30"):
        parting_place(made, Mailbox(), at="last", trust_code=True)


def test_hashes_tell_places_and_bits_but_not_layouts():
    def hash_of(tensor):
        return RecordedOperation.of("", "", "", [tensor]).hashes

    torch.manual_seed(0)
    values = torch.randn(2, 3, 4, 5)
    assert hash_of(values) == hash_of(values.to(memory_format=torch.channels_last))
    others = [values.flip(0), values.nextafter(values + 1), values.double(), -values, torch.full((120,), 2.0)]
    others += [torch.full((120,), 3.0), values.bfloat16(), torch.zeros(120), torch.zeros(121)[1:].neg()]
    assert len({hash_of(other) for other in (values, *others)}) == 10
