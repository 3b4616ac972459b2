"""Third-party trackers: their errors are reported, and don't affect the run."""

import sys
from dataclasses import replace

import pytest

from mptui.config.base_tables import LoggingConfig
from mptui.config.schema import RunConfig
from mptui.events import EpochFinished, Step, Validated, Warned
from mptui.registry.trackers import TRACKERS, TrackerSpec
from mptui.runs.trackers.follow import follow, scalars_of
from mptui.runs.trackers.weights_and_biases import NAME
from mptui.runs.view.event_buffer import EventBuffer

STEP = Step(
    step=3, epoch=1, epoch_step=3, steps=1, samples_seen=24, loss=0.5, loss_min=0.5, loss_max=0.5, lr=0.1
)


class Broken:
    """Fails in one of its calls."""

    def __init__(self, call):
        self.call = call
        self.logged = []

    def log(self, scalars, step):
        self.logged.append((step, scalars["train/loss"]))
        if self.call == "log":
            raise OSError("no space left")

    def close(self):
        if self.call == "close":
            raise OSError("no space left")


@pytest.mark.parametrize("call", ["log", "close"])
def test_one_that_fails_ends_no_run(tmp_path, monkeypatch, call):
    broken, told, buffer = Broken(call), [], EventBuffer()
    monkeypatch.setitem(TRACKERS, "broken", TrackerSpec(open=lambda *_: broken, package="broken"))
    config = RunConfig(logging=LoggingConfig(trackers=["broken"]))
    with follow(config, tmp_path, lambda: buffer, lambda *warning: told.append(warning)):
        buffer.handle(STEP)
    assert broken.logged == [(3, 0.5)]
    ((code, message),) = told
    assert code == "tracker_failed"
    assert "no space left" in message


FULL_STEP = replace(
    STEP, grad_norm=2.0, loss_scale=1024.0, skipped_steps=4, samples_per_second=100.0, data_wait_fraction=0.25
)
VALIDATED = Validated(step=9, epoch=1, loss=0.7, metrics={"acc1": 0.8, "acc5": 0.95}, seconds=1.0, best=True)
FINISHED = EpochFinished(
    step=9,
    epoch=1,
    epochs=2,
    train_loss=0.6,
    train_metrics={"acc1": 0.75},
    val_loss=0.7,
    val_metrics={"acc1": 0.8},
    lr=0.1,
    seconds=5.0,
)


@pytest.mark.parametrize(
    ("event", "scalars"),
    [
        (
            FULL_STEP,
            {
                "train/loss": 0.5,
                "train/lr": 0.1,
                "train/grad_norm": 2.0,
                "train/loss_scale": 1024.0,
                "train/skipped_steps": 4.0,
                "speed/samples_per_second": 100.0,
                "speed/data_wait_fraction": 0.25,
            },
        ),
        (STEP, {"train/loss": 0.5, "train/lr": 0.1, "train/skipped_steps": 0.0}),
        (VALIDATED, {"val/loss": 0.7, "val/acc1": 0.8, "val/acc5": 0.95}),
        (FINISHED, {"epoch/train_loss": 0.6, "epoch/train_acc1": 0.75}),
        (Warned(code="x", message="y"), {}),
    ],
    ids=["step", "step without figures", "validation", "epoch", "warning"],
)
def test_a_tracker_gets_every_scalar_of_an_event(event, scalars):
    assert scalars_of(event) == scalars


class FakeWandb:
    """Records the arguments of new runs."""

    def __init__(self):
        self.opened = []

    def init(self, **options):
        self.opened.append(options)
        return self

    def log(self, scalars, step):
        pass

    def finish(self):
        pass


@pytest.fixture
def wandb(monkeypatch):
    module = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def opened_by(wandb, run):
    config = RunConfig(logging=LoggingConfig(wandb_project="p"))
    with follow(config, run, EventBuffer, lambda *warning: pytest.fail(str(warning))):
        pass
    options = wandb.opened[-1]
    assert options["resume"] == "allow"
    return options["id"]


def test_a_resumed_run_goes_on_as_the_same_run_at_wandb(tmp_path, wandb):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first = opened_by(wandb, tmp_path / "one")
    assert first.startswith("one-")
    assert opened_by(wandb, tmp_path / "one") == first
    assert opened_by(wandb, tmp_path / "two") != first


@pytest.mark.parametrize("text", ["", "[]", '{"wandb_id": 3}', '{"wandb_id": "a/b"}', "[" * 5000])
def test_an_id_that_cant_be_read_is_made_anew(tmp_path, wandb, text):
    (tmp_path / NAME).write_text(text)
    first = opened_by(wandb, tmp_path)
    assert opened_by(wandb, tmp_path) == first
