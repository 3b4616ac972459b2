"""Changes of settings during a run."""

import contextlib
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path

import pytest
import tomllib
import torch
from PIL import Image

from mptui.config.keys import with_values
from mptui.config.profiles import list_profiles
from mptui.config.resolve import to_toml
from mptui.data.open import MASK_CLASSES
from mptui.engine.checkpoint.files import read_checkpoint
from mptui.engine.hooks import Hook
from mptui.engine.mailbox import Command, Mailbox
from mptui.engine.memory.ledger import footprint
from mptui.engine.trainer import HOOKS
from mptui.errors import ConfigError
from mptui.events import (
    CheckpointSaved,
    CommandAnswered,
    EpochFinished,
    Paused,
    PresetSwitched,
    Recovered,
    Step,
    Warned,
)
from mptui.hardware.devices import USABLE
from mptui.runs.listing.forks import fork_run, kept_checkpoints
from mptui.runs.planning.build import prepare
from mptui.runs.planning.change import build_switch
from mptui.runs.planning.profile_diff import RunPosition, predict_switch
from mptui.runs.session.session import Session
from mptui.runs.store.directory import create_run
from mptui.runs.store.index import read_run
from mptui.runs.store.journal import read_journal
from tests.made import one_layer
from tests.made.runs import UNET, ended, plan_of, request_of
from tests.small_cnn import NAME

SETTINGS = {**UNET, "model.width": 4, "training.epochs": 3}
del SETTINGS["training.warmup_epochs"], SETTINGS["speed.compile"]


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Run to the end, with commands after the first step, where the run waits for them; return events."""
    monkeypatch.setenv("MPTUI_CONFIG_DIR", str(tmp_path / "config"))

    def go(*commands, profile="stable", base=SETTINGS, **settings):
        run = create_run(tmp_path, "test", "unet", None)
        session = Session(plan_of(base | settings, profile), run)
        session.mailbox.post(Command("pause"))
        heard = session.listen()
        session.start()
        events = []
        while not session.finished:
            heard.wait(0.1)
            for event in heard.drain():
                events.append(event)
                if isinstance(event, Paused):
                    for command in commands:
                        session.send(*command)
                    session.send("resume")
        events += heard.drain()
        assert session.result.exit_code == 0
        return events, run

    return go


def answer(events, command):
    return [e for e in events if isinstance(e, CommandAnswered) and e.command == command][-1]


def refusals(events):
    return [e for e in events if isinstance(e, CommandAnswered) and e.state == "refused"]


def test_one_setting_can_be_changed_as_it_was_told_and_the_run_goes_on_from_there(asked, tmp_path):
    events, run = asked(("set", "training.batch_size=2"), **{"training.epochs": 2})

    switch = next(e for e in events if isinstance(e, PresetSwitched))
    assert switch.changes["training.batch_size"] == ["8", "2"]
    assert switch.profile == switch.previous == "stable"
    assert answer(events, "set").state == "done"
    seen = [e for e in events if isinstance(e, Step)][-1].samples_seen
    assert seen == 2 * 32  # each exactly once
    assert [e.epoch for e in events if isinstance(e, EpochFinished)] == [1, 2]
    assert "batch_size = 2" in (run / "run.toml").read_text()

    first, after, *_ = (e for e in events if isinstance(e, Step))
    settings = SETTINGS | {"training.epochs": 2}
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "run.toml").write_text(to_toml(plan_of(settings).config))
    request = request_of(settings, sets=["training.batch_size=2"])
    position = RunPosition(first.step, first.epoch - 1, first.epoch_step, 32, switch.lr[0])
    prediction = predict_switch(tmp_path / "before", "stable", request, position)
    assert prediction.rate is not None
    assert list(prediction.rate.lr) == switch.lr
    assert list(prediction.rate.batch) == switch.batch == [8, 2]
    assert prediction.rate.ramp_steps == switch.ramp_steps > 0
    assert after.lr < switch.lr[1]  # at the start of the ramp


@pytest.fixture
def few_images(tmp_path):
    """Settings of a run on 24 images, which leaves its batch to their number."""
    for number in range(24):
        file = tmp_path / "photos" / ("frog", "ship")[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (number * 10, 0, 0)).save(file)
    open_keys = ("data.name", "data.samples", "training.batch_size", "model.width", "model.depth")
    settings = {key: value for key, value in SETTINGS.items() if key not in open_keys}
    return settings | {"model.name": NAME, "data.path": str(tmp_path / "photos")}


def test_a_switch_keeps_the_batch_that_was_chosen_for_few_images_as_it_tells_before(
    asked, few_images, tmp_path
):
    profiles = tmp_path / "config" / "profiles"
    profiles.mkdir(parents=True)
    (profiles / "mine.toml").write_text('description = "d"\n[training]\nbatch_size = 4\n')
    commands = [("preset", "fast"), ("preset", "mine"), ("preset", "speedrun")]
    events, run = asked(*commands, profile=None, base=few_images, **{"training.epochs": 2})

    recipe = {f"training.{key}" for key in ("batch_size", "lr", "lr_batch_size", "lr_scaling")}
    first, mine, last = (e.changes for e in events if isinstance(e, PresetSwitched))
    assert not recipe & first.keys()
    assert mine["training.batch_size"] == ["8", "4"]
    assert last["training.batch_size"] == ["4", "8"]
    settings = tomllib.loads((run / "run.toml").read_text())["training"]
    assert (settings["batch_size"], settings["lr_batch_size"]) == (8, 64)

    asks = request_of(few_images | {"training.epochs": 2}, None)
    assert not recipe & predict_switch(run, "fast", asks).changes.keys()
    assert predict_switch(run, "mine", asks).changes["training.batch_size"] == ["8", "4"]
    assert predict_switch(run, "mine").changes["training.batch_size"] == ["8", "4"]
    person = replace(asks, sets=("training.batch_size=16",))
    assert predict_switch(run, "fast", person).changes["training.batch_size"] == ["8", "16"]
    fork = fork_run(run, kept_checkpoints(run)[0], profile="fast")
    assert tomllib.loads((fork / "run.toml").read_text())["training"]["batch_size"] == 8


def test_what_can_not_be_changed_is_refused_with_the_reason_and_changes_nothing_of_torch(asked, tmp_path):
    torch.backends.cudnn.allow_tf32 = False
    profiles = tmp_path / "config" / "profiles"
    profiles.mkdir(parents=True)
    (profiles / "bad.toml").write_text(
        'description = "d"\n[precision]\nmatmul = "high"\nfp32_layers = ["nosuch"]\n'
        "[guards]\ndetect_anomaly = true\n"
    )
    commands = {
        ("set", "model.width=8"): "can't change during a run",
        ("set", "data.wrokers=2"): "data.workers",
        ("set", "training.batch_size=many"): "training.batch_size",
        ("preset", "bad"): "nosuch",
    }
    events, run = asked(*commands, **{"training.epochs": 1})

    refused = refusals(events)
    assert [each.command for each in refused] == ["set", "set", "set", "preset"]
    for each, why in zip(refused, commands.values(), strict=True):
        assert why in each.detail
    assert not any(isinstance(e, PresetSwitched) for e in events)
    assert not torch.backends.cudnn.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.is_anomaly_enabled()
    assert not (run / "checkpoints" / "undo").exists()


def test_debug_switches_to_fast_and_says_what_is_kept(asked):
    events, _ = asked(("preset", "fast"), profile="debug", **{"training.epochs": 1})

    switch = next(e for e in events if isinstance(e, PresetSwitched))
    assert (switch.previous, switch.profile) == ("debug", "fast")
    kept = next(e.message for e in events if isinstance(e, Warned) and e.code == "preset_kept")
    assert 'speed.compile (training.deterministic with speed.compile = "max-autotune"' in kept


# -- undo


def one_run(folder, monkeypatch, *commands):
    """Run to the end; `commands` are (step, name, argument), each requested once after that many steps, or
    (step, function), called with the run's directory.
    """
    run = create_run(folder, "test", "unet", None)
    session = Session(plan_of(SETTINGS | {"checkpoint.keep": 1}), run)
    waiting = list(commands)
    told = []
    tell = session._emit

    def emit(event):
        tell(event)
        told.append(event)
        while isinstance(event, Step) and waiting and event.step == waiting[0][0]:
            _, what, *argument = waiting.pop(0)
            if callable(what):
                what(run)
            else:
                session.mailbox.post(Command(what, *argument))

    monkeypatch.setattr(session, "_emit", emit)
    session.start()
    session.wait()
    assert session.result.exit_code == 0
    return run, told


@pytest.mark.slow
def test_each_built_in_profile_is_switched_to_each_other_one(tmp_path, monkeypatch):
    """One run takes them all, with a step under each."""
    names = [info.name for info in list_profiles({})]
    pairs = [pair for place, one in enumerate(names) for other in names[place + 1 :] for pair in (one, other)]
    tour = [*pairs, names[0]]
    assert set(pairwise(tour)) == set(permutations(names, 2))
    ahead = iter(tour[1:])

    class Guide(Hook):
        def __init__(self, context):
            self._mailbox = context.mailbox

        def step_ends(self):
            if (name := next(ahead, None)) is not None:
                self._mailbox.post(Command("preset", name))

    monkeypatch.setitem(HOOKS, "guide", Guide)
    lasting = {
        "training.max_steps": len(tour),
        "training.epochs": 100,
        "training.early_stopping_patience": 100,
        "speed.compile": "off",
    }
    run = create_run(tmp_path, "test", "unet", None)
    session = ended(Session(plan_of(SETTINGS | lasting, tour[0]), run))
    assert session.result.exit_code == 0
    events = list(read_journal(run))
    taken = [event.profile for event in events if isinstance(event, PresetSwitched)]
    assert [tour[0], *taken] == tour
    assert {event.state for event in events if isinstance(event, CommandAnswered)} == {"taken", "done"}
    assert [event.step for event in events if isinstance(event, Step)] == list(range(1, len(tour) + 1))


def tensors_of(snapshot):
    return {
        (group, name): tensor.numpy().tobytes()
        for group, tensors in snapshot.tensors.items()
        for name, tensor in tensors.items()
    }


def test_a_switch_is_taken_back_as_if_it_had_never_been(tmp_path, monkeypatch):
    kept = []
    stayed, told = one_run(tmp_path / "one", monkeypatch)
    run, events = one_run(
        tmp_path / "other",
        monkeypatch,
        (6, "set", "training.batch_size=2"),
        (8, "checkpoint", None),
        (13, "checkpoint", None),
        (15, lambda run: kept.append(read_checkpoint(run / "checkpoints" / "undo"))),
        (15, "undo", None),
        (8, lambda run: kept.append(read_checkpoint(run / "checkpoints" / "undo"))),
        (8, "undo", None),  # the undo, to where it has left
        (16, lambda run: kept.append(read_checkpoint(run / "checkpoints" / "last"))),
        (16, "undo", None),
    )
    assert [each.step for each in kept] == [6, 15, 15]
    assert kept[0].state["switch"]["config"]["training"]["batch_size"] == 8
    assert tensors_of(kept[1]) == tensors_of(kept[2])
    switches = [e for e in events if isinstance(e, PresetSwitched)]
    assert [(e.undone, e.step) for e in switches] == [(False, 6), (True, 6), (True, 15), (True, 8)]
    batch = ["training.batch_size"]
    assert [(e.profile, e.changed) for e in switches] == [
        ("stable", changed) for changed in (batch, [], batch, [])
    ]
    assert switches[1].changes["training.batch_size"] == ["2", "8"]
    assert switches[2].changes["training.batch_size"] == ["8", "2"]
    assert (run / "run.toml").read_text() == (stayed / "run.toml").read_text()
    view = read_run(run)
    assert (view.step, view.total_steps) == (read_run(stayed).step, read_run(stayed).total_steps)
    assert view.fraction_done == 1
    assert view.histories["loss"]["train"].abandoned is not None
    one, other = (read_checkpoint(each / "checkpoints" / "last") for each in (stayed, run))
    assert other.step == one.step
    for group, tensors in one.tensors.items():
        for name, tensor in tensors.items():
            assert torch.equal(other.tensors[group][name], tensor), (group, name)
    assert one.state["standing"] == other.state["standing"]
    figures = [
        [(e.epoch, e.train_loss, e.val_loss) for e in each if isinstance(e, EpochFinished)]
        for each in (told, events)
    ]
    assert figures[1][-2:] == figures[0][-2:]  # from the epoch of the switch on


# -- unchanged settings


@contextlib.contextmanager
def preparing(**settings):
    made = prepare(
        plan_of(SETTINGS | settings),
        emit=lambda event: None,
        mailbox=Mailbox(),
        on_bad=lambda problem: None,
        force_compile=True,
    )
    yield made
    made.job.train_loader.close()
    made.job.val_loader.close()


@pytest.fixture(scope="module")
def prepared():
    with preparing(**{"data.cache": "ram"}) as made:
        yield made


def changes(setting, **settings):
    """Return what a change of a setting changes in a run with these settings."""
    with preparing(**settings) as made:
        command = Command("set", setting)
        _, switch = build_switch(
            made.loaders.plan, made, made.job, command, folder=Path("nowhere"), emit=lambda event: None
        )
        for loader in (switch.job.train_loader, switch.job.val_loader):
            loader.close()
        return switch.changes


@pytest.mark.parametrize(
    ("setting", "given", "why"),
    [
        ("training.momentum=0.5", {"training.optimizer": "adamw"}, 'has training.optimizer = "adamw"'),
        ("guards.max_recoveries=3", {"guards.on_nan": "stop"}, 'has guards.on_nan = "stop"'),
        ("data.prefetch=2", {"data.workers": 0}, "has data.workers = 0"),
        ("precision.grad_scaler.init_scale=4.0", {"precision.mode": "bf16"}, "this run computes in bf16"),
    ],
)
def test_a_change_that_would_do_nothing_is_refused(setting, given, why):
    with pytest.raises(ConfigError, match=why):
        changes(setting, **given)


def test_what_was_set_for_a_run_and_does_nothing_after_a_change_does_not_keep_it_from_it():
    scaled = {"precision.mode": "fp16", "precision.grad_scaler.init_scale": 16.0}
    assert changes("precision.mode=fp32", **scaled) == {"precision.mode": ["fp16", "fp32"]}
    cropped = {"data.crop_scale": [0.5, 1.0]}
    assert changes("data.augment=none", **cropped) == {"data.augment": ["default", "none"]}


@pytest.mark.parametrize(
    ("setting", "train_stays", "val_stays"),
    [
        ("training.lr=0.01", True, True),
        ("training.clip_grad_norm=0.5", True, True),
        ("guards.snapshot_every=7", True, True),
        ("data.augment=none", False, True),
        ("training.batch_size=4", False, False),
    ],
)
def test_a_setting_changes_only_the_loaders_that_it_is_about(prepared, setting, train_stays, val_stays):
    old = prepared.job
    _, switch = build_switch(
        prepared.loaders.plan,
        prepared,
        old,
        Command("set", setting),
        folder=Path("nowhere"),
        emit=lambda event: None,
    )
    new = switch.job
    assert (new.train_loader is old.train_loader, new.val_loader is old.val_loader) == (
        train_stays,
        val_stays,
    )
    for loader in {new.train_loader, new.val_loader} - {old.train_loader, old.val_loader}:
        loader.close()


def test_each_setting_that_is_changed_is_told_beside_the_profile_until_another_one_is_taken(prepared):
    """A run that was resumed has its settings from a file, under the name of the profile that it had."""
    plan, told = prepared.loaders.plan, []
    plan = replace(plan, resolved=replace(plan.resolved, profile="mine"))
    for asked in (("set", "training.lr=0.01"), ("set", "training.clip_grad_norm=0.5"), ("preset", "fast")):
        plan, switch = build_switch(
            plan, prepared, prepared.job, Command(*asked), folder=Path("nowhere"), emit=lambda event: None
        )
        told.append((switch.profile, switch.changed))
        for loader in {switch.job.train_loader, switch.job.val_loader} - {
            prepared.job.train_loader,
            prepared.job.val_loader,
        }:
            loader.close()
    first, second, last = told
    assert first == ("mine", ("training.lr",))
    assert second == ("mine", ("training.lr", "training.clip_grad_norm"))
    assert last == ("fast", ())


def test_a_setting_changes_nothing_that_was_chosen_where_the_run_began(prepared):
    """A rate of 0.05 where a run begins is one of SGD, and has no warm-up, decay and clipping of a recipe."""
    chosen = {"training.lr": 1e-3, "training.lr_batch_size": 64, "training.lr_scaling": "sqrt"}
    recipe = {"training.clip_grad_norm": 1.0, "training.weight_decay": 0.05, "training.warmup_epochs": 1.0}
    plan = prepared.loaders.plan
    began = with_values(plan.config, chosen | recipe)
    plan = replace(plan, resolved=replace(plan.resolved, config=began))
    fresh, switch = build_switch(
        plan,
        prepared,
        prepared.job,
        Command("set", "training.lr=0.05"),
        folder=Path("nowhere"),
        emit=lambda event: None,
    )
    assert switch.changes == {"training.lr": ["0.001", "0.05"]}
    assert fresh.config == with_values(began, {"training.lr": 0.05})


def test_who_forced_the_compiler_has_forced_it_after_a_switch_too(prepared):
    _, switch = build_switch(
        prepared.loaders.plan,
        prepared,
        prepared.job,
        Command("set", "training.lr=0.01"),
        folder=Path("nowhere"),
        emit=lambda event: None,
    )
    assert switch.job.force_compile


def test_a_limit_on_memory_that_is_set_during_a_run_splits_its_batches_and_is_saved(asked, monkeypatch):
    one_layer.register(monkeypatch)
    short = {"model.name": one_layer.NAME, "training.loss": "cross_entropy", "training.epochs": 1}
    config = plan_of(SETTINGS | short | {"memory.micro_batch": 3}).config
    masks = len(MASK_CLASSES)
    third = footprint(config, "segmentation", device="cpu", precision="fp32", classes=masks).total
    events, run = asked(("set", f"memory.budget_gib={third / USABLE / (1 << 30) + 1e-7}"), **short)
    switched = next(event for event in events if isinstance(event, PresetSwitched))
    assert switched.changes["memory.micro_batch"] == ["unset", "3"]
    assert answer(events, "set").state == "done"
    saved = tomllib.loads((run / "run.toml").read_text())["memory"]
    assert saved["micro_batch"] == 3


def test_a_batch_of_more_samples_than_there_are_is_one_of_all(asked):
    """A validation batch was padded to it, which no memory holds."""
    events, _run = asked(("set", "training.batch_size=1000000000"), **{"training.epochs": 2})
    assert answer(events, "set").state == "done"
    epochs = [event for event in events if isinstance(event, EpochFinished)]
    assert len(epochs) == 2
    assert all(event.val_loss is not None for event in epochs)


def test_a_validation_batch_that_can_not_be_read_is_found_at_the_switch(asked, monkeypatch):
    from mptui.data.loader import Loader

    window_at = Loader.window_at

    def full(loader, *place):
        if loader.order.batch_size == 4:
            raise RuntimeError("can't allocate memory: you tried to allocate 1228800000000 bytes")
        return window_at(loader, *place)

    monkeypatch.setattr(Loader, "window_at", full)
    events, run = asked(("set", "training.batch_size=4"), **{"training.epochs": 1})
    answered = answer(events, "set")
    assert answered.state == "refused"
    assert "can't allocate memory" in answered.detail
    undone = next(event for event in events if isinstance(event, Recovered))
    assert undone.problem == "switch"
    assert undone.action.startswith("set training.batch_size=4 is undone: RuntimeError: can't allocate")
    assert tomllib.loads((run / "run.toml").read_text())["training"]["batch_size"] == 8
    steps = [event.step for event in events if isinstance(event, Step)]
    assert steps == [1, 2, 3, 4]


def test_a_setting_whose_first_step_fails_is_undone_and_the_run_goes_on(asked, monkeypatch):
    """As a batch that fits in host memory and not on the device, or a bug of a fast path."""
    from mptui.engine.optim.guarded_step import Updater

    clip = Updater.clip

    def fails(updater):
        if updater._clip == 0.125:
            raise RuntimeError("no such kernel")
        clip(updater)

    monkeypatch.setattr(Updater, "clip", fails)
    events, run = asked(("set", "training.clip_grad_norm=0.125"), **{"training.epochs": 1})
    undone = next(event for event in events if isinstance(event, Recovered))
    assert undone.action == "set training.clip_grad_norm=0.125 is undone: RuntimeError: no such kernel"
    assert (
        "clip_grad_norm" not in (run / "run.toml").read_text()
        or "0.125" not in (run / "run.toml").read_text()
    )
    assert [event.step for event in events if isinstance(event, Step)][-1] == 4


def test_how_often_checkpoints_are_saved_changes_from_the_next_step_on(asked):
    events, _ = asked(("set", "checkpoint.every_steps=1"), **{"training.epochs": 1})

    saved = [event.step for event in events if isinstance(event, CheckpointSaved) and event.reason == "steps"]
    assert len(saved) == 3


def test_how_often_steps_are_reported_changes(asked):
    events, _ = asked(("set", "logging.step_interval_s=3600"), **{"training.epochs": 2})

    switched = next(place for place, event in enumerate(events) if isinstance(event, PresetSwitched))
    # the rows of an epoch are reported at its end
    assert sum(isinstance(event, Step) for event in events[switched:]) <= 3
