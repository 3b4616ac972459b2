"""A setting that needs another one is refused where that has another value, and not shown."""

from functools import reduce

import pytest
import tomllib

from mptui.config.keys import SETTINGS, acts, training_of, value_of
from mptui.config.profiles import ORDER
from mptui.config.resolve import CHECKPOINT, EDITED, check_profile, dry_run_text, resolve
from mptui.errors import ConfigError
from mptui.tui.selection import values

FOLDER = "data.path=photos"
BESIDE = [
    # what needs it, its value, what it needs, what does without
    ("model.weights_key", "ema", "model.weights=w.pth", "model.weights=none"),
    ("training.step_epochs", "5", "training.schedule=step", "training.schedule=cosine"),
    ("training.step_gamma", "0.5", "training.schedule=step", "training.schedule=constant"),
    ("training.warmup_max_fraction", "0.5", "training.warmup_epochs=1", "training.warmup_epochs=0"),
    ("training.epochs", "5", "training.time=none", "training.time=2h"),
    ("training.momentum", "0.8", "training.optimizer=sgd", "training.optimizer=adamw"),
    ("training.nesterov", "true", "training.optimizer=muon", "training.optimizer=adamw"),
    ("training.betas", "[0.8, 0.9]", "training.optimizer=lion", "training.optimizer=sgd"),
    ("training.eps", "1e-6", "training.optimizer=adam", "training.optimizer=lion"),
    ("training.label_dropout", "0.2", "model.class_conditional=true", "model.class_conditional=false"),
    ("sampling.guidance", "3", "model.class_conditional=true", "model.class_conditional=false"),
    ("sampling.steps", "9", "sampling.count=4", "sampling.count=0"),
    ("sampling.sampler", "ddim", "sampling.count=4", "sampling.count=0"),
    ("sampling.every_epochs", "2", "sampling.count=4", "sampling.count=0"),
    ("sampling.keep", "2", "sampling.count=4", "sampling.count=0"),
    ("data.samples", "64", "data.name=shapes", FOLDER),
    ("data.samples", "64", "data.name=none", "data.name=cifar10"),
    ("data.val_fraction", "0.3", FOLDER, "data.name=shapes"),
    ("data.ignore_index", "255", FOLDER, "data.name=shapes"),
    ("data.mask_orientation", "stored", FOLDER, "data.name=shapes"),
    ("data.class_folders", "outer", FOLDER, "data.name=oxford-pets"),
    ("data.crop_scale", "[0.5, 1.0]", "data.augment=default", "data.augment=none"),
    ("data.crop_ratio", "[0.5, 2.0]", "data.augment=default", "data.augment=none"),
]
SAID = [
    ("data.prefetch", "9", "data.workers=2", "data.workers=0"),
    ("guards.snapshot_every", "9", "guards.on_nan=rollback", "guards.on_nan=stop"),
    ("guards.max_recoveries", "9", "guards.on_nan=rollback", "guards.on_nan=ignore"),
    ("guards.max_skipped_streak", "9", "guards.on_nan=stop", "guards.on_nan=ignore"),
    ("precision.grad_scaler.init_scale", "9.0", "precision.mode=fp16", "precision.mode=fp32"),
    ("precision.grad_scaler.growth_factor", "9.0", "precision.mode=auto", "precision.mode=fp32"),
    ("precision.grad_scaler.backoff_factor", "0.9", "precision.mode=fp16", "precision.mode=fp32"),
    ("precision.grad_scaler.growth_interval", "9", "precision.mode=bf16", "precision.mode=fp32"),
    ("precision.grad_scaler.min_scale", "9.0", "precision.mode=fp16", "precision.mode=fp32"),
]
TASKS_OF = {"data.ignore_index": "segmentation", "data.mask_orientation": "segmentation"}


def resolved(key, *sets, flags=None, profile=None, now=None):
    task = TASKS_OF.get(key, "classification")
    flags = flags or {}
    if key.startswith("sampling.") or key == "training.label_dropout":
        flags = {"model.name": ("--model", "diffusion_unet"), **flags}
    return resolve(profile, task=task, flags=flags, sets=sets, environ={}, now=now)


@pytest.mark.parametrize(("key", "text", "needed", "without"), BESIDE)
def test_a_setting_is_refused_where_another_keeps_it_from_acting(key, text, needed, without):
    with_it = resolved(key, f"{key}={text}", needed)
    assert value_of(with_it.config, key) != value_of(resolved(key, needed).config, key)
    assert key in {each.key for each in values(with_it)}
    with pytest.raises(ConfigError, match=rf"^{key} = .* \(--set\): acts with .*; this run has "):
        resolved(key, f"{key}={text}", without)
    hidden = resolved(key, without)
    assert key not in {each.key for each in values(hidden)}
    *tables, name = key.split(".")
    assert name not in reduce(dict.__getitem__, tables, tomllib.loads(dry_run_text(hidden)))


@pytest.mark.parametrize(("key", "text", "needed", "without"), SAID)
def test_what_the_machine_may_decide_is_said_and_kept(key, text, needed, without):
    assert resolved(key, f"{key}={text}", needed).notes == ()
    idle = resolved(key, f"{key}={text}", without)
    (note,) = idle.notes
    assert note.startswith(f"{key} = ")
    assert "(--set) is ignored: it acts with " in note
    assert value_of(idle.config, key) == value_of(resolved(key, f"{key}={text}", needed).config, key)
    assert key not in {each.key for each in values(idle)}


def test_each_setting_that_needs_another_is_tested():
    needing = {key for key, each in SETTINGS.items() if any(scope.beside for scope in each.scopes)}
    assert needing - {"data.augment"} == {key for key, *_ in (*BESIDE, *SAID)}


@pytest.mark.parametrize(
    "given", [{"model.name": "vae"}, {"model.name": "latent_diffusion", "model.vae": "v"}]
)
def test_images_of_a_vae_and_latents_are_not_augmented(given):
    flags = {key: ("--flag", value) for key, value in given.items()}
    with pytest.raises(ConfigError, match=r"data\.augment = \"default\" \(--set\): acts with "):
        resolve(None, task=None, flags=flags, sets=("data.augment=default",), environ={})
    plain = resolve(None, task=None, flags=flags, sets=("data.augment=none",), environ={})
    assert not acts("data.augment", training_of(plain.config, plain.task))


@pytest.mark.parametrize("source", [EDITED, CHECKPOINT])
def test_what_was_set_before_another_choice_is_left_out_with_a_note(source):
    other = resolved("", "training.optimizer=adamw", flags={"training.momentum": (source, 0.8)})
    assert other.config.training.momentum is None
    assert other.notes[0].startswith(f"training.momentum = 0.8 ({source}) is ignored: it acts with ")


def test_a_file_that_contradicts_itself_is_refused_and_one_that_serves_several_runs_is_not(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[training]\noptimizer = "adamw"\nmomentum = 0.8\n')
    with pytest.raises(ConfigError, match=r"training\.momentum = 0\.8 \(profile mine\): acts with "):
        check_profile(str(path), {})
    path.write_text("[training]\nmomentum = 0.8\n[data]\nsamples = 64\nval_fraction = 0.3\n")
    check_profile(str(path), {})
    other = resolved("", "training.optimizer=adamw", FOLDER, profile=str(path))
    assert [note.partition(" = ")[0] for note in other.notes] == ["training.momentum", "data.samples"]
    assert other.config.data.val_fraction == 0.3


@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize("other", ["training.optimizer=adamw", "precision.mode=fp32", "guards.on_nan=ignore"])
def test_a_built_in_profile_says_nothing_of_its_own_settings_beside_others(
    name, other, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # ./profiles are a person's own
    for task in ("classification", "segmentation", "diffusion"):
        assert resolve(name, task=task, flags={}, sets=(other,), environ={}).notes == ()


def test_a_variable_serves_all_runs_of_a_shell():
    environ = {"MPTUI_DATA_SAMPLES": "64"}
    other = resolve(None, task="classification", flags={}, sets=(FOLDER,), environ=environ)
    assert other.notes[0].startswith("data.samples = 64 (MPTUI_DATA_SAMPLES) is ignored: it acts with ")
    assert other.config.data.samples is None


def test_what_a_run_records_of_it_is_not_said_again(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[data]\nworkers = 0\nprefetch = 9\n")
    again = resolved("", profile=str(path))
    assert (again.notes, again.config.data.prefetch) == ((), 9)


def test_of_a_run_that_has_begun_only_what_is_set_now_is_refused():
    sets = ("training.schedule=step", "training.step_epochs=5", "training.schedule=cosine")
    late = resolved("", *sets, now=frozenset({"training.schedule"}))
    assert late.notes[0].startswith("training.step_epochs = 5 (--set) is ignored")
    with pytest.raises(ConfigError, match=r"training\.step_epochs = 5"):
        resolved("", *sets, now=frozenset({"training.step_epochs"}))


def test_a_profile_whose_name_begins_as_that_of_a_recorded_run_is_no_such_file(tmp_path):
    path = tmp_path / "runner.toml"
    path.write_text('[training]\noptimizer = "adamw"\nmomentum = 0.8\n')
    with pytest.raises(ConfigError, match=r"training\.momentum = 0\.8 \(profile runner\)"):
        resolved("", profile=str(path))
