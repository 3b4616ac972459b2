"""A new task is one entry of `TASKS`, and a network for it; no other code changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from textual.widgets import Input

from mptui.config.schema import RunConfig
from mptui.data.batch import Batch
from mptui.engine.memory.ledger import footprint
from mptui.registry.models import MODELS
from mptui.registry.names import SampleKind
from mptui.registry.tasks import TASKS, ByDevice, MetricSpec, TaskSpec
from mptui.runs.store.directory import read_summary
from mptui.runs.view.run_view import RunView
from mptui.runs.view.words import is_percent
from mptui.tasks.classification import Classification
from mptui.testing import TaskContract
from mptui.tui.widgets.chart import charts_of
from tests.toys.training import dry_run, picker, trained
from tests.tui.cockpits import until
from tests.tui.events import run_started


class BalancedAccuracy(torch.nn.Module):
    """`balanced`: recall of each class, averaged over the classes."""

    samples: torch.Tensor
    hits: torch.Tensor

    def __init__(self, num_classes, device):
        super().__init__()
        self.register_buffer("samples", torch.zeros(num_classes, dtype=torch.int64, device=device))
        self.register_buffer("hits", torch.zeros_like(self.samples))

    def update(self, outputs, batch):
        targets = batch.targets[: batch.size]
        right = outputs[: batch.size].argmax(dim=1) == targets
        self.samples.scatter_add_(0, targets, torch.ones_like(targets))
        self.hits.scatter_add_(0, targets, right.long())

    def compute(self):
        present = self.samples > 0
        return {"balanced": float((self.hits[present] / self.samples[present]).mean())}

    def per_class(self):
        return {}

    def confusion(self):
        return None

    def reset(self):
        self.samples.zero_()
        self.hits.zero_()


class Balanced(Classification):
    """Classification with imbalanced classes."""

    primary = "balanced"

    def metrics(self, device, *, training=False):
        return BalancedAccuracy(len(self.classes), device)


class TestBalanced(TaskContract):
    @pytest.fixture
    def task(self):
        return Balanced(["cat", "dog", "yak"], label_smoothing=0.0)

    def samples(self, count, seed):
        numbers = torch.Generator().manual_seed(seed)
        targets = torch.randint(3, (count,), generator=numbers)
        batch = Batch(torch.zeros(count, 3, 1, 1), targets, count, count, np.arange(count))
        return torch.randn(count, 3, generator=numbers), batch


@pytest.fixture(autouse=True)
def balanced(monkeypatch):
    spec = TaskSpec(
        build=lambda classes: Balanced(classes, label_smoothing=0.0),
        sample=SampleKind.CLASS,
        output="gives each image a class",
        network=ByDevice("balanced_net", cpu="balanced_net"),
        side=ByDevice(96, cpu=40),
        metrics={"balanced": MetricSpec("balanced accuracy", "balanced", fraction=True)},
        defaults={"training.clip_grad_norm": 5.0},
    )
    monkeypatch.setitem(TASKS, "balanced", spec)
    monkeypatch.setitem(MODELS, "balanced_net", replace(MODELS["small_cnn"], task="balanced"))


def test_the_command_line_knows_it_and_its_defaults_and_tables(capsys, tmp_path):
    profile = tmp_path / "mine.toml"
    profile.write_text("[training]\nepochs = 3\n[balanced.training]\nepochs = 7\n")
    printed = dry_run(capsys, "--model", "balanced_net", "--profile", str(profile), "--device", "cpu")
    assert "clip_grad_norm = 5.0" in printed
    assert "epochs = 7" in printed
    assert "image_size = 40" in printed


async def test_the_picker_trains_it(tmp_path):
    async with picker(tmp_path, "balanced_net") as (app, pilot, screen):
        screen.query_one("#model", Input).value = "balanced_net"
        await until(app, pilot, "network    balanced_net  1.58k weights, images of 96 px")


def test_its_memory_is_estimated():
    config = RunConfig.model_validate({"model": {"name": "balanced_net"}, "data": {"image_size": 32}})
    counted = footprint(config, "balanced", device="cpu", precision="fp32", classes=10)
    assert counted.activations > 0


def test_the_live_screen_draws_its_metric():
    view = RunView()
    view.handle(run_started(task="balanced"))
    assert charts_of(view)[:3] == ["loss", "balanced accuracy", "learning rate"]
    assert is_percent("balanced accuracy")
    view.handle(run_started(task="segmentation", primary="miou"))
    assert charts_of(view)[:3] == ["loss", "mean IoU", "learning rate"]


def test_its_metric_is_in_the_summary_and_its_state_in_a_checkpoint(tmp_path):
    saved = trained(tmp_path / "run", {"model.name": "balanced_net"}, epochs=1)
    assert saved["metrics"].keys() == {"samples", "hits"}
    summary = read_summary(tmp_path / "run")
    assert summary["task"] == "balanced"
    assert summary["best"]["metric"] == "balanced"
    assert 0 <= summary["final"]["balanced"] <= 1
