"""Runs whose views change on the host: resumed, forked or switched to it, they train on the same images."""

from pathlib import Path
from typing import Any

import pytest

from mptui.engine.checkpoint.files import read_newest
from mptui.engine.mailbox import Command, Mailbox
from mptui.errors import ConfigError
from mptui.events import Event, Warned
from mptui.runs.listing.forks import find_checkpoint, fork_run
from mptui.runs.planning.build import prepare
from mptui.runs.planning.change import build_switch
from tests.data.loaders import assert_same, batches
from tests.made.runs import QUIET, plan_of, trained
from tests.toys.training import SMALL, bits

CHANGED = ["trivial", "flip"]
SETTINGS: dict[str, Any] = {**QUIET, **SMALL, "model.name": "small_cnn", "data.augment": CHANGED}


def last(run: Path) -> object:
    return bits(read_newest(run / "checkpoints")[0].tensors)


def test_a_resume_and_a_fork_go_on_with_the_same_images(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    session = trained(whole, {**SETTINGS, "training.epochs": 3})
    assert session.result.exit_code == 0
    trained(parts, {**SETTINGS, "training.epochs": 1})
    fork = fork_run(parts, find_checkpoint(parts, "last"))
    for run in (parts, fork):
        trained(run, {**SETTINGS, "training.epochs": 3}, resume=True)
        assert last(run) == last(whole)
    trained(tmp_path / "plain", {**SETTINGS, "training.epochs": 3, "data.augment": ["flip"]})
    assert last(tmp_path / "plain") != last(whole)


def switched(setting: str, told: list[Event], **settings: Any) -> Any:
    """Return prepared run and switch of a run that begins with the default transforms."""
    plan = plan_of({**SETTINGS, "data.augment": "default", **settings})
    made = prepare(plan, emit=told.append, mailbox=Mailbox(), force_compile=True)
    try:
        command, where = Command("set", setting), Path("nowhere")
        return made, build_switch(made.loaders.plan, made, made.job, command, folder=where, emit=told.append)[
            1
        ]
    finally:
        made.job.train_loader.close()
        made.job.val_loader.close()


def test_a_switch_to_it_leaves_the_device_which_is_said(tmp_path: Path) -> None:
    told: list[Event] = []
    made, switch = switched('data.augment=["trivial", "flip"]', told)
    assert made.job.config.data.cache == "device"
    assert switch.job.val_loader is made.job.val_loader
    assert [event.message for event in told if isinstance(event, Warned)] == [
        "data.cache = device: views would be cut without trivial; training images are cached in memory"
    ]
    new = prepare(plan_of(SETTINGS), emit=lambda event: None, mailbox=Mailbox(), force_compile=True)
    with switch.job.train_loader as one, new.job.train_loader as other, new.job.val_loader:
        assert_same(batches(one, epoch=1), batches(other, epoch=1))


@pytest.mark.parametrize("name", ["pad_crop", "trivial"])
def test_what_does_not_suit_masks_is_refused_in_a_run_too(name: str) -> None:
    masks = {"model.name": "unet", "model.width": 2, "model.depth": 1}
    with pytest.raises(ConfigError, match=f"data.augment: {name} does not suit images with masks"):
        switched(f'data.augment=["{name}"]', [], **masks)
