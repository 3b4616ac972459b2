"""A setting acts for some tasks or networks; elsewhere it is refused, and not shown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mptui.config.change import check_resume
from mptui.config.keys import SETTINGS, VARIABLES, acts, training_of
from mptui.config.profiles import ORDER
from mptui.config.resolve import CHECKPOINT, EDITED, Resolved, dry_run_text, read_value, resolve, to_toml
from mptui.errors import ConfigError
from mptui.registry.tasks import TASKS
from mptui.tui.selection import values, values_of_run

ELSEWHERE = [
    ("unet", "segmentation", "data.mixup_alpha", "0.2"),
    ("unet", "segmentation", "data.cutmix_alpha", "1.0"),
    ("unet", "segmentation", "data.crop_pct", "0.9"),
    ("unet", "segmentation", "data.sampler", "balanced"),
    ("unet", "segmentation", "training.label_smoothing", "0.1"),
    ("unet", "segmentation", "training.prediction", "v"),
    ("unet", "segmentation", "model.attention", "[16]"),
    ("unet", "segmentation", "sampling.steps", "50"),
    ("vae", "reconstruction", "data.mixup_alpha", "0.2"),
    ("vae", "reconstruction", "model.up", "bilinear"),
    ("vae", "reconstruction", "logging.pictures", "3"),
    ("diffusion_unet", "diffusion", "data.mixup_alpha", "0.2"),
    ("diffusion_unet", "diffusion", "training.loss", "focal"),
    ("diffusion_unet", "diffusion", "training.class_weights", "balanced"),
    ("diffusion_unet", "diffusion", "model.vae_precision", "bf16"),
    ("resnet18", "classification", "model.width", "8"),
    ("resnet18", "classification", "model.depth", "2"),
    ("resnet18", "classification", "model.norm", "group"),
    ("resnet18", "classification", "model.encoder", "timm/resnet34"),
    ("resnet18", "classification", "data.ignore_index", "255"),
    ("resnet18", "classification", "training.min_snr_gamma", "5.0"),
    ("package.module:net", "segmentation", "model.width", "8"),
]


def resolved(model: str, task: str | None, *, profile=None, flags=None, sets=(), environ=None) -> Resolved:
    flags = {"model.name": ("--model", model), **(flags or {})}
    return resolve(profile, task=task, flags=flags, sets=sets, environ=environ or {})


def file_with(path: Path, key: str, text: str) -> str:
    table, _, name = key.rpartition(".")
    value = text if text[0] in "0123456789[" else f'"{text}"'
    path.write_text(f"[{table}]\n{name} = {value}\n")
    return str(path)


def given(how: str, key: str, text: str, folder: Path) -> dict[str, Any]:
    """Return arguments of `resolved` that set `key` in one of the ways that a person has."""
    variable = next(name for name, of in VARIABLES.items() if of == key)
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "flag": lambda: {"flags": {key: ("--flag", read_value(SETTINGS[key], text)[0])}},
        "set": lambda: {"sets": (f"{key}={text}",)},
        "variable": lambda: {"environ": {variable: text}},
        "profile": lambda: {"profile": file_with(folder / "mine.toml", key, text)},
    }
    return ways[how]()


@pytest.mark.parametrize("how", ["flag", "set", "variable", "profile"])
@pytest.mark.parametrize(("model", "task", "key", "text"), ELSEWHERE)
def test_a_setting_of_other_runs_is_refused_however_it_is_given(how, model, task, key, text, tmp_path):
    with pytest.raises(ConfigError) as caught:
        resolved(model, task, **given(how, key, text, tmp_path))
    assert caught.value.message.startswith(f"{key} = ")
    assert ": acts with " in caught.value.message
    assert caught.value.message.endswith(f"; this run has {model if key.startswith('model.') else task}")


def test_a_default_that_is_typed_is_refused_where_it_does_nothing_and_what_is_off_is_not():
    with pytest.raises(ConfigError, match="this run has resnet18"):
        resolved("resnet18", "classification", sets=("model.width=64",))
    off = ("data.mixup_alpha=0", "training.loss=none", "sampling.count=0", "logging.pictures=0")
    assert resolved("vae", "reconstruction", sets=off).config == resolved("vae", "reconstruction").config


def test_settings_of_the_loss_are_refused_beside_a_loss_of_ones_own():
    own = {"model.task": ("--task", "package.module:loss")}
    with pytest.raises(ConfigError, match=r"this run has package\.module:loss"):
        resolved("resnet18", "classification", flags=own, sets=("training.label_smoothing=0.1",))
    mixed = resolved("resnet18", "classification", flags=own, sets=("data.mixup_alpha=0.2",))
    assert mixed.config.data.mixup_alpha == 0.2


def test_an_encoder_takes_the_place_of_the_depth():
    with pytest.raises(ConfigError, match=r"this run has unet with model\.encoder"):
        resolved("unet", None, sets=("model.encoder=timm/resnet34", "model.depth=2"))


@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize("task", TASKS)
def test_a_built_in_profile_serves_each_task_and_sets_only_what_acts(name, task):
    outcome = resolve(name, task=task, flags={}, sets=(), environ={})
    training = training_of(outcome.config, task)
    defaults = resolve(None, task=task, flags={}, sets=(), environ={})
    for key in SETTINGS:
        if not acts(key, training):
            assert outcome.sources[key] == "default"
    assert outcome.config.data.mixup_alpha == (0.2 if (name, task) == ("production", "classification") else 0)
    assert outcome.config.sampling == defaults.config.sampling


def test_a_copy_of_a_built_in_profile_serves_each_task_too(tmp_path):
    text = (Path(__file__).parents[2] / "profiles" / "aggressive.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text)
    for task in TASKS:
        resolve(str(path), task=task, flags={}, sets=(), environ={})


def test_tables_of_a_like_task_give_what_acts(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[diffusion.model]\nattention = [16]\n[diffusion.training]\nepochs = 3\n")
    outcome = resolved("vae", None, profile=str(path))
    assert (outcome.config.training.epochs, outcome.config.model.attention) == (3, None)


@pytest.mark.parametrize("source", [EDITED, CHECKPOINT])
def test_what_was_set_for_another_run_is_left_out_with_a_note(source):
    outcome = resolved("unet", None, flags={"data.mixup_alpha": (source, 0.2)})
    assert outcome.config.data.mixup_alpha == 0
    (note,) = outcome.notes
    assert note.startswith(f"data.mixup_alpha = 0.2 ({source}) is ignored: it acts with classification")


def test_an_earlier_run_whose_file_has_such_a_setting_goes_on_and_says_so(tmp_path):
    old = file_with(tmp_path / "run.toml", "model.width", "8")
    outcome = resolved("resnet18", None, profile=old)
    assert [note.partition(" is ignored")[0] for note in outcome.notes] == ["model.width = 8 (profile run)"]
    check_resume(outcome.config, resolved("resnet18", None).config)


def test_what_a_run_records_can_be_copied_under_another_name(tmp_path):
    config = resolved("resnet18", None).config
    (tmp_path / "mine.toml").write_text(to_toml(config))
    assert resolve(str(tmp_path / "mine.toml"), task=None, flags={}, sets=(), environ={}).config == config


@pytest.mark.parametrize(
    ("model", "shown", "hidden"),
    [
        ("resnet18", "training.label_smoothing", "model.width"),
        ("unet", "model.width", "data.mixup_alpha"),
        ("diffusion_unet", "sampling.steps", "training.label_smoothing"),
    ],
)
def test_a_setting_is_shown_only_where_it_acts(tmp_path, model, shown, hidden):
    outcome = resolved(model, None)
    lines = dry_run_text(outcome).splitlines()
    names = {line.partition(" = ")[0] for line in lines}
    assert shown.rpartition(".")[2] in names
    assert hidden.rpartition(".")[2] not in names
    for listed in (values(outcome), values_of_run(tmp_path, outcome)):
        keys = {value.key for value in listed}
        assert shown in keys
        assert hidden not in keys
