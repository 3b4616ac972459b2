"""A new optimizer is one entry of `OPTIMIZERS`; no other code changes."""

import numpy as np
import pytest
import torch
from textual.widgets import Input

from mptui.config.base_tables import GradScalerConfig
from mptui.config.keys import SETTINGS
from mptui.config.schema import RunConfig, TrainingConfig
from mptui.engine.memory.footprint import footprint
from mptui.engine.optim.guarded_step import Updater
from mptui.engine.optim.optimizer import build_optimizer, supports_fused
from mptui.engine.precision.amp import build_precision
from mptui.errors import ConfigError
from mptui.registry.optimizers import OPTIMIZERS, OptimizerSpec
from tests.toys.training import dry_run, picker, trained_whole_and_in_parts
from tests.tui.cockpits import until

CPU = torch.device("cpu")


class Signum(torch.optim.Optimizer):
    """Moves each weight by the sign of its momentum (Bernstein et al. 2018)."""

    def __init__(self, groups, lr):
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 0.1)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * average.sign())


@pytest.fixture(autouse=True)
def signum(monkeypatch):
    spec = OptimizerSpec(build=lambda groups, lr, fused: Signum(groups, float(lr)), state_bytes=4)
    monkeypatch.setitem(OPTIMIZERS, "signum", spec)


def test_the_command_line_knows_it(capsys):
    assert 'optimizer = "signum"' in dry_run(capsys, "--set", "training.optimizer=signum", "--device", "cpu")
    with pytest.raises(ConfigError, match=r"must be 'sgd' or .* or 'signum'; nearest: signum"):
        dry_run(capsys, "--set", "training.optimizer=signun")


async def test_the_picker_offers_it_and_takes_it(tmp_path, monkeypatch):
    monkeypatch.setattr("mptui.tui.screens.setup.selection_page.fits", lambda *_: {})  # takes seconds
    async with picker(tmp_path) as (app, pilot, screen):
        values = screen.query_one("#values")
        values.focus()
        values.highlighted = [option.id for option in values.options].index("training.optimizer")
        await pilot.press("e")
        await until(app, pilot, "| signum")
        app.screen.query_one(Input).value = ""
        await pilot.press("s", "i", "right", "enter")
        await until(app, pilot, "signum, 5 epochs of warm-up")
    assert SETTINGS["training.optimizer"].choices[-1] == "signum"


def test_its_memory_is_estimated():
    tables = {"model": {"name": "unet", "width": 4, "depth": 1}, "data": {"image_size": 32}}
    config = RunConfig.model_validate({**tables, "training": {"optimizer": "signum"}})
    counted = footprint(config, "segmentation", device="cpu", precision="fp32", classes=10)
    assert counted.optimizer == counted.gradients


def test_a_step_that_is_refused_moves_nothing():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    training = TrainingConfig(optimizer="signum", weight_decay=0.1)
    lr = torch.zeros(())
    assert not supports_fused("signum", CPU)
    optimizer = build_optimizer(model, training, lr, fused=False)
    updater = Updater(
        model,
        optimizer,
        build_precision("fp32", CPU, GradScalerConfig()),
        lr=lr,
        rates=lambda applied: np.full(9, 0.01, np.float32),
        clip_grad_norm=None,
        average=None,
    )

    def step(factor):
        loss = (model(torch.ones(3, 4)) * factor).sum()
        loss.backward()
        updater.step(loss.detach())
        state = [tensor for each in optimizer.state.values() for tensor in each.values()]
        return [tensor.detach().clone() for tensor in (*model.parameters(), *state)]

    first = step(1.0)
    refused = step(float("nan"))
    assert updater.found_inf == 1
    assert all(map(torch.equal, refused, first))
    assert not any(map(torch.equal, step(1.0), first))


def test_a_checkpoint_has_its_state_and_a_resumed_run_has_the_bits_of_one_that_was_not(tmp_path):
    network = {"model.name": "unet", "model.width": 2, "model.depth": 1}
    saved = trained_whole_and_in_parts(tmp_path, {**network, "training.optimizer": "signum"})
    assert {name.partition("/")[2] for name in saved["optimizer"]} <= saved["model"].keys()
    assert all(name.startswith("average/") for name in saved["optimizer"])
    assert any(tensor.any() for tensor in saved["optimizer"].values())
