"""The ledger of `mptui memory`: its parts add up, its levers save what they say, and its batch fits."""

import contextlib
import json

import numpy as np
import pytest
from PIL import Image

from mptui.cli.main import app
from mptui.engine.memory.ledger import footprint
from mptui.errors import ConfigError
from mptui.hardware.cards import CARDS, card_device
from mptui.hardware.devices import USABLE
from mptui.lab.measure.memory import PARTS, count_classes
from mptui.runs.planning.plan import Request, plan_run
from tests.made import one_layer
from tests.made.json_documents import checked

SETTINGS = (
    "model.name=unet",
    "model.width=8",
    "model.depth=1",
    "training.batch_size=8",
    "data.image_size=32",
    "training.loss=cross_entropy",
)
SMALL = [word for setting in SETTINGS for word in ("--set", setting)]

UNSHARDED = ("--set", "memory.micro_batch=auto")
"""Excludes sharding, which takes as long to count as all else."""
AVERAGED = ("--set", "training.optimizer=adamw", "--set", "training.ema_decay=0.9")


MEMORY = ["memory", *SMALL, "--card", "1GiB", "--json"]


def document(capsys, *arguments):
    assert app([*MEMORY, *arguments], standalone_mode=False) == 0
    return checked("memory", json.loads(capsys.readouterr().out))


def assert_parts_add_up(told):
    formats = told["formats"]
    for counted in formats.values():
        assert sum(counted[part] for part in PARTS) == counted["total"]
        assert sum(counted["activations_by_module"].values()) == counted["activations"]
        assert counted["optimizer"] == pytest.approx(2 * 4 * told["parameters"], rel=1e-2)
    assert formats["fp16"] == formats["bf16"]
    for part in ("weights", "gradients", "optimizer", "average"):
        assert formats["fp32"][part] == formats["bf16"][part]
    assert 0.4 < formats["bf16"]["activations"] / formats["fp32"]["activations"] < 0.8


LEVERS = ("memory.activation_checkpointing", "memory.micro_batch", "training.ema_decay", "training.optimizer")


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """What the command says of a run that averages its weights."""
    told = tmp_path_factory.mktemp("told") / "memory.json"
    with told.open("w") as file, contextlib.redirect_stdout(file):
        assert app([*MEMORY, *AVERAGED, *UNSHARDED], standalone_mode=False) == 0
    return json.loads(told.read_text())


def test_the_parts_add_up(before):
    assert_parts_add_up(before)
    assert [lever["setting"].partition("=")[0] for lever in before["levers"]] == list(LEVERS)


@pytest.mark.parametrize("number", range(len(LEVERS)), ids=LEVERS)
def test_a_lever_saves_what_a_run_with_it_takes_less(before, number):
    lever = before["levers"][number]
    with_it = plan_run(Request(sets=(*SETTINGS, *AVERAGED[1::2], lever["setting"]))).config
    counted = footprint(with_it, "segmentation", device="cuda", precision="bf16", classes=10)
    assert counted.total == lever["total"] == before["formats"]["bf16"]["total"] - lever["saved"]
    assert lever["saved"] > 0


def folder_of_masks(folder, classes):
    """Write images whose masks have all values below `classes`."""
    values = (np.arange(32 * 32) % classes).astype(np.uint8).reshape(32, 32)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            image = Image.fromarray(values)
            if name == "masks":
                image.putpalette(bytes(range(256)) * 3)
            image.save(folder / name / f"{number}.png")
    return str(folder)


@pytest.fixture
def limited(capsys, monkeypatch):
    """Return what the command says of a network of one layer whose run has a limit on its memory."""
    one_layer.register(monkeypatch)
    settings = (f"model.name={one_layer.NAME}", "memory.budget_gib=0.121", *SETTINGS[1:])
    words = ["memory", "--json", "--device", "cpu", "--precision", "fp32"]
    words += [word for setting in settings for word in ("--set", setting)]

    def document(*more):
        assert app([*words, *more], standalone_mode=False) == 0
        return json.loads(capsys.readouterr().out)

    return document


def test_the_classes_are_those_of_the_data_and_a_limit_splits_the_batch_by_them(limited, tmp_path):
    assumed = limited()
    assert (assumed["classes"], assumed["classes_assumed"]) == (10, "no data is given (--data)")
    masks = limited("--data", folder_of_masks(tmp_path, 150))
    assert (masks["classes"], masks["classes_assumed"]) == (150, None)
    assert masks["formats"]["fp32"]["per_sample"] > 2 * assumed["formats"]["fp32"]["per_sample"]
    assert masks["micro_batch"] < assumed["micro_batch"]


def test_classes_are_assumed_where_the_data_can_not_be_read():
    flags = {"model.task": ("--task", "segmentation"), "data.name": ("--data", "oxford-pets")}
    gone = count_classes(plan_run(Request(sets=SETTINGS, flags=flags)), lambda *_: None)
    assert gone.number == 10
    assert gone.assumed is not None
    assert gone.assumed.startswith("the data can't be read: ")


@pytest.mark.slow
def test_a_network_that_tells_no_classes_apart_assumes_none(capsys):
    arguments = ["memory", "--model", "diffusion_unet", "--batch-size", "2", "--json", "--device", "cpu"]
    sizes = ["model.width=8", "model.depth=1", "data.image_size=16"]
    assert (
        app([*arguments, *(word for size in sizes for word in ("--set", size))], standalone_mode=False) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert (found["classes"], found["classes_assumed"]) == (0, None)


def test_a_rank_of_eight_has_less(before, capsys):
    told = document(capsys, *AVERAGED)  # whose formats and levers are counted already
    assert told["formats"] == before["formats"]
    assert told["sharded"]["total"] < told["formats"]["bf16"]["total"]


def test_in_fp32_16_bits_are_a_lever(capsys, monkeypatch):
    one_layer.register(monkeypatch)
    network = "--set", f"model.name={one_layer.NAME}"
    told = document(capsys, *network, *AVERAGED, *UNSHARDED, "--precision", "fp32")
    assert told["levers"][0]["total"] == told["formats"]["bf16"]["total"]


def test_the_largest_batch_fits_and_one_more_does_not(capsys, monkeypatch):
    one_layer.register(monkeypatch)
    settings = *UNSHARDED, "--set", f"model.name={one_layer.NAME}"
    largest = document(capsys, *settings)["formats"]["bf16"]["largest_batch"]
    for batch, fits in ((largest, True), (largest + 1, False)):
        told = document(capsys, *settings, "--set", f"training.batch_size={batch}")
        assert (told["formats"]["bf16"]["total"] <= USABLE * (1 << 30)) is fits


def test_the_table_says_what_autocast_leaves_in_fp32(capsys, monkeypatch):
    one_layer.register(monkeypatch)
    network = "--set", f"model.name={one_layer.NAME}"
    app(["memory", *SMALL, *network, "--card", "rtx4090"], standalone_mode=False)
    told = capsys.readouterr().out
    assert "RTX 4090 (23.6 GiB)" in told
    assert "Autocast keeps weights, gradients and optimizer states in FP32" in told
    assert "memory.shard=true on 8 GPUs" in told


@pytest.mark.parametrize("name", CARDS)
def test_a_card_has_less_memory_than_on_its_box(name):
    device = card_device(name.upper())
    assert device.memory_total == device.memory_free
    assert (device.native["bf16"] == "native") is (CARDS[name].capability >= (8, 0))


def test_a_card_is_a_size_too_and_no_other_word():
    assert card_device("24 GiB").memory_total == 24 << 30
    assert card_device("8GB").memory_total == 8_000_000_000
    for text in ("h10O", "0GiB", "24", ""):
        with pytest.raises(ConfigError, match="--card"):
            card_device(text)
