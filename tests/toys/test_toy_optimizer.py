"""A new optimizer is one entry of `OPTIMIZERS`; no other code changes."""

import pytest
import torch
from textual.widgets import Input

from mptui.config.keys import SETTINGS
from mptui.config.schema import RunConfig
from mptui.engine.memory.ledger import footprint
from mptui.errors import ConfigError
from mptui.registry.optimizers import OPTIMIZERS, OptimizerSpec
from mptui.testing import OptimizerContract
from tests.toys.training import dry_run, picker, trained
from tests.tui.cockpits import until
from tests.tui.pickers import go_to


class Signum(torch.optim.Optimizer):
    """Moves each weight by the sign of its momentum (Bernstein et al. 2018)."""

    def __init__(self, groups, lr):
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (each for each in group["params"] if each.grad is not None):
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 0.1)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * average.sign())


SPEC = OptimizerSpec(build=lambda groups, lr, fused: Signum(groups, float(lr)), state_bytes=4)


class TestSignum(OptimizerContract):
    @pytest.fixture
    def spec(self):
        return SPEC


@pytest.fixture(autouse=True)
def signum(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "signum", SPEC)


def test_the_command_line_knows_it(capsys):
    assert 'optimizer = "signum"' in dry_run(capsys, "--set", "training.optimizer=signum", "--device", "cpu")
    with pytest.raises(ConfigError, match=r"must be 'sgd' or .* or 'signum'; nearest: signum"):
        dry_run(capsys, "--set", "training.optimizer=signun")


async def test_the_picker_offers_it_and_takes_it(tmp_path):
    async with picker(tmp_path) as (app, pilot, screen):
        await go_to(pilot, screen, "training.optimizer")
        await pilot.press("e")
        await until(app, pilot, "| signum")
        app.screen.query_one(Input).value = ""
        await pilot.press("s", "i", "right", "enter")
        await until(app, pilot, "lr         0.1  signum")
    assert SETTINGS["training.optimizer"].choices[-1] == "signum"


def test_its_memory_is_estimated():
    tables = {"model": {"name": "unet", "width": 4, "depth": 1}, "data": {"image_size": 32}}
    config = RunConfig.model_validate({**tables, "training": {"optimizer": "signum"}})
    counted = footprint(config, "segmentation", device="cpu", precision="fp32", classes=10)
    assert counted.optimizer == counted.gradients


def test_a_checkpoint_has_its_state(tmp_path):
    network = {"model.name": "unet", "model.width": 2, "model.depth": 1}
    saved = trained(tmp_path / "run", {**network, "training.optimizer": "signum"}, epochs=1)
    assert {name.partition("/")[2] for name in saved["optimizer"]} <= saved["model"].keys()
    assert all(name.startswith("average/") for name in saved["optimizer"])
    assert any(tensor.any() for tensor in saved["optimizer"].values())
