"""Settings requested at a resume: each is applied, or refused with a plain message."""

import pytest

from mptui.config.change import check_resume
from mptui.config.keys import SETTINGS, nested
from mptui.config.resolve import resolve, to_toml
from mptui.config.schema import RunConfig
from mptui.errors import ConfigError

REFUSED = {
    "model.name": ("resnet18", "resnet50"),
    "data.bands": ("all", "rgb"),
    "data.interpolation": ("bilinear", "bicubic"),
    "model.weights": (None, "other.safetensors"),
    "model.weights_key": (None, "ema"),
    "model.task": ("mine:Loss", "mine:OtherLoss"),
    "model.encoder": (None, "timm/resnet18"),
    "model.width": (64, 32),
    "model.depth": (4, 3),
    "model.attention": (None, [8]),
    "model.class_conditional": (False, True),
    "model.vae_sha256": ("3a7b", "90cf"),
    "model.up": ("transposed", "bilinear"),
    "model.norm": ("batch", "group"),
    "training.noise_schedule": ("cosine", "linear"),
    "training.prediction": ("epsilon", "v"),
    "training.primary_metric": (None, "macro_f1"),
    "training.optimizer": ("sgd", "adamw"),
    "training.seed": (0, 1),
    "data.name": ("shapes", "cifar10"),
    "data.samples": (64, 128),
    "data.val_fraction": (0.2, 0.3),
    "data.split_seed": (0, 1),
}


def configured(key, value):
    return RunConfig.model_validate(nested({} if value is None else {key: value}))


@pytest.mark.parametrize("key", REFUSED)
def test_a_setting_that_the_state_depends_on_is_refused(key):
    had, asked = REFUSED[key]
    with pytest.raises(ConfigError) as refused:
        check_resume(configured(key, had), configured(key, asked))
    (line,) = refused.value.message.splitlines()
    assert line.startswith(f"{key} = {asked}: this run has {'none' if had is None else had}, and ")
    check_resume(configured(key, had), configured(key, had))


def test_only_settings_that_there_are_can_be_refused():
    assert {key for key, setting in SETTINGS.items() if setting.fixed} == set(REFUSED)


def test_a_run_that_does_not_record_its_interpolation_was_bilinear():
    check_resume(RunConfig(), configured("data.interpolation", "bilinear"))
    with pytest.raises(ConfigError, match="this run has bilinear") as refused:
        check_resume(RunConfig(), configured("data.interpolation", "bicubic"))
    assert refused.value.hint == "resume it with --set data.interpolation=bilinear"


@pytest.mark.parametrize("key", ["training.epochs", "memory.micro_batch", "data.workers"])
def test_others_may_be_asked_for(key):
    check_resume(RunConfig(), configured(key, 7))


def test_all_that_is_refused_is_told_at_once():
    asked = RunConfig.model_validate({"training": {"seed": 3, "optimizer": "adamw", "epochs": 3}})
    with pytest.raises(ConfigError) as refused:
        check_resume(RunConfig(), asked)
    assert len(refused.value.message.splitlines()) == 2


def test_a_run_of_an_earlier_version_keeps_the_split_of_its_seed(tmp_path):
    lines = to_toml(configured("training.seed", 7)).splitlines()
    older = tmp_path / "run.toml"
    older.write_text("\n".join(line for line in lines if not line.startswith("split_seed")))
    sets: tuple[tuple[str, ...], ...] = ((), ("data.split_seed=7",))
    one, other = (resolve(str(older), task=None, flags={}, sets=each, environ={}).config for each in sets)
    assert one.split_seed == other.split_seed == 7
    check_resume(one, other)
    older.write_text(to_toml(one))
    assert resolve(str(older), task=None, flags={}, sets=(), environ={}).config == one


@pytest.mark.parametrize("text", ["[training]\nseed = 7\n", to_toml(configured("training.seed", 7))])
def test_the_seed_of_training_picks_no_split(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    config = resolve(str(path), task=None, flags={}, sets=(), environ={}).config
    assert (config.training.seed, config.split_seed) == (7, 0)
