"""What a run began with, it goes on with: also in a version in which a default is another one."""

from dataclasses import replace

import pytest

from mptui.config.meant import FORMER_VIEWS, meanings
from mptui.config.resolve import to_toml
from mptui.events import Warned
from mptui.registry import transforms
from mptui.registry.names import SampleKind
from mptui.registry.optimizers import OPTIMIZERS
from mptui.registry.tasks import TASKS
from mptui.runs.listing.forks import find_checkpoint, fork_run
from mptui.runs.planning.plan import Request, plan_run
from mptui.runs.store.directory import CONFIG
from mptui.runs.store.journal import read_journal
from tests.made.runs import UNET, plan_of, trained
from tests.small_cnn import NAME

MASKS = {**UNET, "training.epochs": 1}


def of_views(monkeypatch):
    monkeypatch.setitem(transforms._DEFAULTS, SampleKind.MASK, ("crop",))


def of_task(monkeypatch, **changes):
    monkeypatch.setitem(TASKS, "segmentation", replace(TASKS["segmentation"], **changes))


def of_optimizer(monkeypatch, **settings):
    spec = OPTIMIZERS["sgd"]
    monkeypatch.setitem(OPTIMIZERS, "sgd", replace(spec, settings={**spec.settings, **settings}))


CHANGES = {
    "data.augment": (["crop", "flip", "colour"], of_views),
    "training.loss": ("cross_entropy_dice", lambda m: of_task(m, unset={"training.loss": "focal"})),
    "training.primary_metric": (
        "iou",
        lambda m: of_task(m, metrics=dict(reversed([*TASKS["segmentation"].metrics.items()]))),
    ),
    "training.momentum": (0.9, lambda m: of_optimizer(m, momentum=0.5)),
    "training.nesterov": (False, lambda m: of_optimizer(m, nesterov=True)),
}


def recorded(folder, settings):
    plan = plan_of(settings)
    path = folder / CONFIG
    path.write_text(to_toml(plan.config, meanings(plan.config, plan.task)))
    return path


def value(plan, key):
    table, _, name = key.partition(".")
    return getattr(getattr(plan.config, table), name)


@pytest.mark.parametrize("key", CHANGES)
def test_a_default_of_today_is_kept_by_a_later_version_and_told(tmp_path, monkeypatch, key):
    path = recorded(tmp_path, {**MASKS, "training.optimizer": "sgd"})
    meant, change = CHANGES[key]
    assert not [note for note in plan_run(Request(str(path))).notes if key in note]
    change(monkeypatch)
    plan = plan_run(Request(str(path)))
    assert value(plan, key) == meant
    assert [note for note in plan.notes if note.startswith(f"{key} = ") and "--set" in note]
    word = "default" if key == "data.augment" else "none"
    asked = plan_run(Request(str(path), sets=[f"{key}={word}"]))
    assert value(asked, key) in (None, "default")


def test_another_optimizer_has_its_own_values(tmp_path, monkeypatch):
    path = recorded(tmp_path, {**MASKS, "training.optimizer": "sgd"})
    of_optimizer(monkeypatch, momentum=0.5)
    muon = plan_run(Request(str(path), sets=["training.optimizer=muon"]))
    assert muon.config.training.momentum is None


def test_a_run_of_masks_that_does_not_record_its_views_is_told_what_keeps_them(tmp_path):
    run = tmp_path / "run"
    trained(run, MASKS)
    text, _, _ = (run / CONFIG).read_text().partition("[defaults")
    (run / CONFIG).write_text(text)  # as earlier versions wrote it
    (told,) = [note for note in plan_run(Request(str(run / CONFIG))).notes if "data.augment" in note]
    command = told.partition("--set ")[2].partition(" keeps")[0].replace("'", "")
    plan = plan_run(Request(str(run / CONFIG), sets=[command, "training.epochs=2"]))
    assert plan.config.data.augment == FORMER_VIEWS
    assert not [note for note in plan.notes if "data.augment" in note]
    fork = fork_run(run, find_checkpoint(run, "last"), profile="fast")
    assert [note for note in plan_run(Request(str(fork / CONFIG))).notes if "data.augment" in note]


def test_images_with_classes_have_always_had_the_same_views(tmp_path):
    plan = plan_of({"model.name": NAME, "data.name": "shapes", "hardware.device": "cpu"})
    path = tmp_path / CONFIG
    path.write_text(to_toml(plan.config))
    notes = plan_run(Request(str(path))).notes
    assert not [note for note in notes if "data.augment" in note]


def test_a_command_that_leaves_open_what_the_run_had_tells_so(tmp_path, monkeypatch):
    run = tmp_path / "run"
    trained(run, {**MASKS, "training.weight_decay": 0.5})
    of_views(monkeypatch)
    trained(run, {**MASKS, "training.epochs": 2}, resume=True)
    (told,) = [e.message for e in read_journal(run) if isinstance(e, Warned) and e.code == "left_open"]
    assert "data.augment = default (default; it had ['crop', 'flip', 'colour'])" in told
    assert told.endswith("mptui resume run keeps what it had")
