"""A new network is one entry of `MODELS`; no other code changes."""

import pytest
from textual.widgets import Input
from torch import nn

from mptui.cli import completion
from mptui.config.schema import RunConfig
from mptui.engine.memory.ledger import footprint
from mptui.errors import ConfigError
from mptui.registry.models import MODELS, ModelSpec
from mptui.registry.tasks import CLASSIFICATION
from tests.toys.training import dry_run, picker, trained_whole_and_in_parts
from tests.tui.cockpits import until


class ToyNet(nn.Sequential):
    """One convolution and one linear layer."""

    def __init__(self, num_classes, width):
        convolution = nn.Conv2d(3, width, kernel_size=3, stride=2)
        pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten()
        super().__init__(
            convolution, nn.BatchNorm2d(width), nn.ReLU(), *pooled, nn.Linear(width, num_classes)
        )


@pytest.fixture(autouse=True)
def toy_net(monkeypatch):
    spec = ModelSpec(
        task=CLASSIFICATION,
        build=lambda num_classes, side, width: ToyNet(num_classes, width),
        settings=("width",),
        smallest_side=16,
    )
    monkeypatch.setitem(MODELS, "toy_net", spec)


def test_the_command_line_knows_it(capsys):
    assert 'name = "toy_net"' in dry_run(capsys, "--model", "toy_net", "--device", "cpu")
    assert completion.models("toy_") == ["toy_net"]
    with pytest.raises(ConfigError) as error:
        dry_run(capsys, "--model", "toynet")
    assert "toy_net" in error.value.hint
    with pytest.raises(ConfigError, match="can't take images of 8 pixels"):
        dry_run(capsys, "--model", "toy_net", "--set", "data.image_size=8")


async def test_the_picker_suggests_it_and_counts_its_memory(tmp_path):
    async with picker(tmp_path, "toy_net") as (app, pilot, screen):
        screen.query_one("#model", Input).focus()
        await pilot.press("t", "o", "y")
        await pilot.press("right")
        await until(app, pilot, "network    toy_net  2.44k weights, images of 224 px")
        assert screen.query_one("#model", Input).value == "toy_net"


def test_its_memory_is_estimated():
    config = RunConfig.model_validate({"model": {"name": "toy_net", "width": 4}, "data": {"image_size": 32}})
    counted = footprint(config, CLASSIFICATION, device="cpu", precision="fp32", classes=10)
    weights = sum(p.nbytes for p in ToyNet(10, 4).parameters())
    assert counted.gradients == counted.optimizer == weights
    assert counted.activations > 0


def test_a_checkpoint_has_it_and_a_resumed_run_has_the_bits_of_one_that_was_not(tmp_path):
    saved = trained_whole_and_in_parts(tmp_path, {"model.name": "toy_net", "model.width": 4})
    assert saved["model"].keys() == ToyNet(8, 4).state_dict().keys()
    assert saved["model"]["0.weight"].shape == (4, 3, 3, 3)
