import errno
from pathlib import Path

import pytest

from mptui.config.profiles import ORDER, find_profile, list_profiles
from mptui.config.resolve import (
    check_profile,
    copy_profile,
    profile_path,
    profile_text,
    resolve,
    save_profile,
    to_toml,
    write_profile,
)
from mptui.config.schema import CheckpointConfig, RunConfig, TrainingConfig
from mptui.errors import ConfigError, DiskError
from mptui.registry.tasks import TASKS


@pytest.fixture
def places(tmp_path, monkeypatch):
    """An empty working folder and a separate configuration folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return {"MPTUI_CONFIG_DIR": str(tmp_path / "own")}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def config_of(profile, environ, task=None) -> RunConfig:
    return resolve(str(profile), task=task, flags={}, sets=(), environ=environ).config


def test_the_built_in_profiles_come_in_the_order_of_their_digits(places):
    found = list_profiles(places)
    assert tuple(info.name for info in found) == ORDER
    assert all(info.origin == "built in" and info.description for info in found)


def test_others_follow_by_name(places):
    write(Path(places["MPTUI_CONFIG_DIR"]) / "profiles" / "b.toml", 'description = "b"')
    write(Path("profiles/a.toml"), "")
    assert [info.name for info in list_profiles(places)][len(ORDER) :] == ["a", "b"]


def test_the_nearest_place_wins(places):
    built_in = find_profile("fast", places)
    own = write(Path(places["MPTUI_CONFIG_DIR"]) / "profiles" / "fast.toml", "")
    assert find_profile("fast", places) == own != built_in
    here = write(Path("profiles/fast.toml"), "")
    assert find_profile("fast", places) == here
    file = write(Path("elsewhere/fast.toml"), "")
    assert find_profile("elsewhere/fast.toml", places) == file
    assert [info.origin for info in list_profiles(places) if info.name == "fast"] == ["./profiles"]


def test_a_folder_of_the_profile_name_is_not_in_the_way(places):
    Path("debug").mkdir()
    assert find_profile("debug", places).name == "debug.toml"


def test_own_profiles_are_found_by_the_xdg_rule(places, tmp_path):
    path = write(tmp_path / "xdg/mptui/profiles/mine.toml", "")
    assert find_profile("mine", {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}) == path


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("fsat", "nearest: fast"),
        ("zzzzzz", "available: fast, stable"),
        ("missing.toml", "no such file"),
        ("../..", "a folder"),
        ("a\0b", "NUL"),
        ("", "no profile"),
    ],
)
def test_a_profile_that_is_not_there_is_told_with_what_is(places, name, told):
    with pytest.raises(ConfigError, match=told):
        find_profile(name, places)


def test_a_faulty_file_is_listed_as_one(places):
    write(Path("profiles/broken.toml"), "[")
    assert "faulty" in next(i for i in list_profiles(places) if i.name == "broken").description


@pytest.mark.parametrize("task", [None, *TASKS])
@pytest.mark.parametrize("name", ORDER)
def test_each_built_in_profile_resolves_for_each_task(places, name, task):
    outcome = resolve(name, task=task, flags={}, sets=(), environ=places)
    assert (outcome.profile, outcome.task) == (name, task)
    check_profile(name, places)


@pytest.mark.parametrize(
    ("name", "task", "epochs", "effective", "mode", "lr"),
    [
        ("fast", "classification", 50, 64, "auto", 1e-3),
        ("fast", "segmentation", 50, 8, "auto", 1e-3),
        ("stable", "classification", 100, 64, "fp32", 5e-4),
        ("stable", "segmentation", 100, 8, "fp32", 1e-3),
        ("memory-limited", "classification", 100, 64, "auto", 1e-3),
        ("memory-limited", "segmentation", 100, 8, "auto", 1e-3),
        ("debug", "segmentation", 5, 2, "fp32", 1e-3),
        ("production", "segmentation", 100, 8, "auto", 1e-3),
        ("max-batch", "classification", 100, 128, "auto", 0.15),
        ("max-batch", "segmentation", 100, 32, "auto", 1.5e-3),
        ("older-gpu", "classification", 100, 32, "fp16", 1e-3),
        ("older-gpu", "segmentation", 100, 8, "fp16", 1e-3),
        ("aggressive", "classification", 100, 384, "auto", 0.75),
        ("ultra-stable", "classification", 100, 64, "bf16", 5e-4),
        ("finetune", "classification", 30, 64, "auto", 1e-3),
        ("finetune", "segmentation", 30, 8, "auto", 5e-4),
        ("speedrun", "classification", 10, 64, "auto", 1e-3),
        ("speedrun", "diffusion", 50, 64, "auto", 2e-4),
        ("radiodiff", "diffusion", 100, 16, "bf16", 1e-5),
        ("fast", "diffusion", 50, 64, "auto", 2e-4),
        ("stable", "diffusion", 100, 32, "fp32", 1e-4),
        ("memory-limited", "diffusion", 100, 32, "auto", 1e-4),
        ("debug", "diffusion", 5, 2, "fp32", 1e-4),
        ("production", "diffusion", 100, 64, "auto", 2e-4),
        ("fast", "reconstruction", 50, 64, "auto", 2e-4),
    ],
)
def test_the_built_in_profiles_hold_the_values_they_promise(places, name, task, epochs, effective, mode, lr):
    config = config_of(name, places, task)
    training = config.training
    assert (training.epochs, training.lr, config.precision.mode) == (epochs, lr, mode)
    assert training.batch_size * training.accumulate == effective


def test_fine_tuning_begins_with_trained_weights_which_may_be_of_any_file(places):
    own = {"model.weights": ("--weights", "own.safetensors")}
    for flags, weights in (({}, "pretrained"), (own, "own.safetensors")):
        resolved = resolve("finetune", task="classification", flags=flags, sets=(), environ=places)
        assert resolved.config.model.weights == weights


def test_a_saved_profile_holds_what_differs_and_resolves_to_the_same(places):
    config = RunConfig(
        training=TrainingConfig(epochs=7, lr=0.3), checkpoint=CheckpointConfig(every_minutes=None)
    )
    path = save_profile("mine", config, "Mine", task=None, environ=places)
    assert "epochs = 7" in path.read_text()
    assert "batch_size" not in path.read_text()
    assert config_of("mine", places) == config.model_copy(update={"description": "Mine"})


@pytest.mark.parametrize(
    ("task", "values"),
    [
        ("diffusion", {"ema_decay": None, "clip_grad_norm": None}),
        ("segmentation", {"optimizer": "sgd", "batch_size": 64, "lr": 1e-3}),
        ("classification", {"optimizer": "sgd", "lr": 0.1, "clip_grad_norm": None}),
    ],
)
def test_a_profile_and_a_record_keep_what_differs_from_the_defaults_of_a_task(places, tmp_path, task, values):
    sets = [f"training.{key}={'none' if value is None else value}" for key, value in values.items()]
    network = {"model.name": ("--model", "vit_b_16")} if task == "classification" else {}
    config = resolve(None, task=task, flags=network, sets=sets, environ=places).config
    (tmp_path / "run.toml").write_text(to_toml(config))
    save_profile("mine", config, "", task=task, environ=places)
    for profile in ("mine", str(tmp_path / "run.toml")):
        training = resolve(profile, task=task, flags={}, sets=(), environ=places).config.training
        assert {key: getattr(training, key) for key in values} == values


def test_a_persons_file_with_seed_and_split_is_no_record_of_a_run(places, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[training]\nseed = 1\n[data]\nval_fraction = 0.1\n")
    resolved = resolve(str(path), task="segmentation", flags={}, sets=(), environ=places)
    assert (resolved.config.training.optimizer, resolved.config.data.split_seed) == ("adamw", 0)


@pytest.mark.parametrize("name", ["vit_b_16", "swin_t", "convnext_tiny", "timm/deit3_small_patch16_224"])
def test_a_transformer_learns_by_adamw_unless_another_optimizer_is_named(places, name):
    pytest.importorskip("timm") if name.startswith("timm/") else None
    network = {"model.name": ("--model", name)}

    def training(profile, *sets):
        return resolve(profile, task="classification", flags=network, sets=sets, environ=places)

    chosen = training(None)
    assert (chosen.config.training.optimizer, chosen.config.training.lr) == ("adamw", 1e-3)
    assert chosen.sources["training.lr"] == f"default of {name}"
    assert training("fast").sources["training.optimizer"] == f"default of {name}"
    assert training("production").config.training.optimizer == "sgd"
    assert training(None, "training.optimizer=sgd").config.training.lr == TrainingConfig().lr
    other = training(None, "model.name=resnet18")
    assert other.sources["training.lr"] == "default [classification.training]"


RECIPE = ("adamw", 1e-3, 0.05, 1.0, 1.0)
PLAIN = ("sgd", 0.1, 1e-4, 0.0, None)


@pytest.mark.parametrize(
    ("profile", "sets", "expected"),
    [
        (None, (), RECIPE),
        (None, ("training.optimizer=adamw",), RECIPE),
        (None, ("training.lr=3e-4",), ("adamw", 3e-4, *RECIPE[2:])),
        (None, ("training.weight_decay=0.01",), ("adamw", 1e-3, 0.01, *RECIPE[3:])),
        (None, ("training.clip_grad_norm=none",), (*RECIPE[:4], None)),
        (None, ("training.optimizer=sgd",), PLAIN),
        (None, ("training.lr=0.05",), ("sgd", 0.05, *PLAIN[2:])),  # AdamW's are some hundred times lower
        (None, ("training.lr=1",), ("sgd", 1.0, *PLAIN[2:])),
        ("fast", (), RECIPE),
        ("memory-limited", (), RECIPE),
        ("stable", (), ("adamw", 5e-4, 0.05, 5.0, 1.0)),
        ("aggressive", (), ("sgd", 0.75, 1e-4, 5.0, None)),
    ],
)
def test_a_network_of_classes_is_learnt_by_a_recipe_unless_another_one_is_meant(
    places, profile, sets, expected
):
    training = resolve(profile, task="classification", flags={}, sets=sets, environ=places).config.training
    found = training.optimizer, training.lr, training.weight_decay
    assert (*found, training.warmup_epochs, training.clip_grad_norm) == expected


@pytest.mark.parametrize(
    "sets",
    [
        (),
        ("training.lr=3e-4",),
        ("training.optimizer=sgd",),
        ("training.lr=0.1",),
        ("training.optimizer=lion",),
        ("training.clip_grad_norm=none",),
        ("training.warmup_epochs=0",),
    ],
)
def test_a_saved_profile_is_read_as_what_was_saved(places, tmp_path, sets):
    config = resolve(None, task="classification", flags={}, sets=sets, environ=places).config
    path = tmp_path / "saved.toml"
    path.write_text(profile_text(config, "saved", task="classification"))
    again = resolve(str(path), task="classification", flags={}, sets=(), environ=places).config
    assert again.training == config.training


@pytest.mark.parametrize("profile", [None, "fast"])
def test_trained_weights_are_trained_on_gently_unless_a_rate_or_another_optimizer_is_named(places, profile):
    weights = {"model.weights": ("--weights", "own.safetensors")}

    def training(*sets, **flags):
        given = {f"training.{key}": (f"--{key}", value) for key, value in flags.items()}
        return resolve(profile, task="classification", flags={**weights, **given}, sets=sets, environ=places)

    gentle = resolve(
        "finetune", task="classification", flags=weights, sets=(), environ=places
    ).config.training
    chosen = training()
    same = ("optimizer", "lr", "lr_batch_size", "lr_scaling", "layer_decay", "head_lr_scale", "weight_decay")
    assert all(getattr(chosen.config.training, key) == getattr(gentle, key) for key in same)
    assert chosen.sources["training.lr"] == "default of weights that were trained before"
    assert training(lr=0.02).config.training.head_lr_scale == 1.0  # a rate is that of the head, too
    assert training("training.optimizer=sgd").config.training.optimizer == "sgd"
    assert training("training.optimizer=sgd").config.training.lr > gentle.lr


def test_the_rates_of_an_own_profile_are_those_of_trained_weights_too(places, tmp_path):
    path = tmp_path / "own.toml"
    path.write_text("[training]\nepochs = 3\nlr = 0.02\n")
    weights = {"model.weights": ("--weights", "own.safetensors")}
    resolved = resolve(str(path), task="classification", flags=weights, sets=(), environ=places)
    assert (resolved.config.training.optimizer, resolved.config.training.lr) == ("sgd", 0.02)


@pytest.mark.parametrize("task", ["classification", "segmentation", "diffusion"])
def test_the_rate_of_a_default_optimizer_is_no_other_optimizers(places, task):
    def training(*sets):
        return resolve(None, task=task, flags={}, sets=sets, environ=places).config.training

    assert training().optimizer == training("training.optimizer=adamw").optimizer == "adamw"
    assert training("training.optimizer=adamw").lr == training().lr < 0.01
    assert training("training.optimizer=sgd").lr == TrainingConfig().lr
    assert training("training.optimizer=lion").lr == 1e-4
    assert training("training.optimizer=sgd", "training.lr=0.02").lr == 0.02


def test_a_copy_keeps_comments_and_task_tables(places):
    original = find_profile("fast", places).read_text()
    copy = copy_profile("mine", "fast", places).read_text()
    assert copy.splitlines()[0] == 'description = "A copy of fast"'
    assert copy.splitlines()[1:] == original.splitlines()[1:]


@pytest.mark.parametrize(
    "text", ["[training]\nepochs = 3\n", 'description = """\na\nb"""\n[data]\nworkers = 0\n']
)
def test_a_copy_says_what_the_original_says(places, text):
    write(Path("profiles/odd.toml"), text)
    copy_profile("mine", "odd", places)
    assert config_of("mine", places).model_copy(update={"description": ""}) == config_of(
        "odd", places
    ).model_copy(update={"description": ""})
    assert config_of("mine", places).description == "A copy of odd"


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "..", ".hidden", "-rf", "a\0b", "", "x.toml", "a\nb", "x" * 99]
)
def test_a_name_that_is_no_file_name_is_refused(places, name):
    with pytest.raises(ConfigError, match="is not a valid profile name"):
        copy_profile(name, "fast", places)
    assert not Path(places["MPTUI_CONFIG_DIR"]).exists()


def test_a_profile_is_never_overwritten(places):
    path = copy_profile("mine", "fast", places)
    before = path.read_text()
    with pytest.raises(ConfigError, match="already"):
        copy_profile("mine", "stable", places)
    assert path.read_text() == before


def test_a_folder_that_cannot_be_made_is_a_disk_error(places):
    Path(places["MPTUI_CONFIG_DIR"]).write_text("in the way")
    with pytest.raises(DiskError, match="own/profiles"):
        copy_profile("mine", "fast", places)


def test_a_profile_is_replaced_whole_or_not_at_all(places, monkeypatch):
    path = write_profile(profile_path("mine", places), 'description = "old"\n')
    assert write_profile(path, 'description = "new"\n', replace=True).read_text() == 'description = "new"\n'

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mptui.config.resolve.os.fsync", full)
    with pytest.raises(DiskError, match="No space left"):
        write_profile(path, 'description = "newer"\n', replace=True)
    assert path.read_text() == 'description = "new"\n'
    assert list(path.parent.iterdir()) == [path]


def test_comments_stand_above_a_profile_and_hide_nothing(places):
    text = profile_text(RunConfig(), "Mine", ["measured\nepochs = 7", "twice"], task=None)
    write_profile(profile_path("mine", places), text)

    assert [line[0] for line in text.splitlines()[:2]] == ["#", "#"]
    assert config_of("mine", places) == RunConfig(description="Mine")
