from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptui.cli.options import overrides
from mptui.config.keys import RETIRED
from mptui.config.resolve import Resolved, check_profile, resolve
from mptui.errors import ConfigError

PROFILE = """
[training]
epochs = 2
lr = 0.2
lr_batch_size = 64
[segmentation.training]
epochs = 3
[classification.data]
mixup_alpha = 0.5
"""


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    path = tmp_path_factory.mktemp("profiles") / "mine.toml"
    path.write_text(PROFILE)
    return str(path)


def resolved(profile=None, *, task=None, flags=None, sets=(), environ=None) -> Resolved:
    return resolve(profile, task=task, flags=flags or {}, sets=sets, environ=environ or {})


def fault_of(*args, **kwargs) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        resolved(*args, **kwargs)
    return caught.value


LAYERS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "task": ("profile mine [segmentation.training]", 3, {"task": "segmentation"}),
    "environ": ("MPTUI_TRAINING_EPOCHS", 4, {"environ": {"MPTUI_TRAINING_EPOCHS": "4"}}),
    "flags": ("--epochs", 5, {"flags": {"training.epochs": ("--epochs", 5)}}),
    "sets": ("--set", 6, {"sets": ["training.epochs=6"]}),
}


@pytest.mark.parametrize("names", [n for k in range(5) for n in combinations(LAYERS, k)], ids="+".join)
def test_the_last_layer_given_wins_and_is_named_as_the_source(profile, names):
    arguments = {key: value for name in names for key, value in LAYERS[name][2].items()}
    outcome = resolved(profile, **arguments)
    source, epochs = LAYERS[names[-1]][:2] if names else ("profile mine", 2)
    assert (outcome.config.training.epochs, outcome.sources["training.epochs"]) == (epochs, source)


def test_what_nobody_sets_is_the_default():
    outcome = resolved()
    assert (outcome.profile, outcome.task, set(outcome.sources.values())) == ("default", None, {"default"})


@pytest.mark.parametrize(
    ("model", "from_data", "task"),
    [
        ("unet", "classification", "segmentation"),
        ("resnet18", "segmentation", "classification"),
        (None, "segmentation", "segmentation"),
        (None, None, None),
    ],
)
def test_a_named_model_decides_the_task_and_else_the_data(profile, model, from_data, task):
    flags = {"model.name": ("--model", model)} if model else {}
    outcome = resolved(profile, task=from_data, flags=flags)
    assert outcome.task == task
    assert outcome.config.training.epochs == (3 if task == "segmentation" else 2)
    assert outcome.config.data.mixup_alpha == (0.5 if task == "classification" else 0.0)


def test_a_table_of_one_task_cannot_name_a_network_of_another(tmp_path):
    path = tmp_path / "odd.toml"
    path.write_text('[segmentation.model]\nname = "resnet18"\n')
    assert "not a network for segmentation" in fault_of(str(path), task="segmentation").message


@pytest.mark.parametrize(
    ("arguments", "source"),
    [
        ({"flags": {"training.lr": ("--lr", 0.3)}}, "--lr"),
        ({"sets": ["training.lr=0.3"]}, "--set"),
        ({"environ": {"MPTUI_TRAINING_LR": "0.3"}}, "MPTUI_TRAINING_LR"),
    ],
)
def test_a_rate_that_is_given_is_not_scaled_for_the_batch_of_the_profile(profile, arguments, source):
    outcome = resolved(profile, **arguments)
    assert (outcome.config.training.lr, outcome.config.training.lr_batch_size) == (0.3, None)
    assert outcome.sources["training.lr_batch_size"] == source


def test_a_rate_given_with_its_batch_keeps_it(profile):
    outcome = resolved(profile, sets=["training.lr=0.3", "training.lr_batch_size=32"])
    assert outcome.config.training.lr_batch_size == 32


def test_a_batch_alone_keeps_the_scaling_of_the_profile(profile):
    outcome = resolved(profile, flags={"training.batch_size": ("--batch-size", 8)})
    assert outcome.config.training.lr_batch_size == 64


@pytest.mark.parametrize(("mode", "outcome"), [("off", "default"), ("max-autotune", "max-autotune")])
def test_the_compile_flag_keeps_the_mode_that_is_set(mode, outcome):
    flags = overrides({"compile": True})
    found = resolved(flags=flags, environ={"MPTUI_SPEED_COMPILE": mode})
    assert (found.config.speed.compile, found.compile_forced) == (outcome, True)


@pytest.mark.parametrize(("mode", "forced"), [("reduce-overhead", True), ("off", False)])
def test_the_compile_flag_forces_the_mode_that_is_set_after_it(mode, forced):
    found = resolved(flags=overrides({"compile": True}), sets=[f"speed.compile={mode}"])
    assert (found.config.speed.compile, found.compile_forced) == (mode, forced)


def test_compile_in_python_forces_it_as_the_flag_does():
    given = resolved(flags={"speed.compile": ("compile", "on")})
    assert (given.config.speed.compile, given.compile_forced) == ("default", True)


def test_no_compile_turns_it_off():
    found = resolved(flags=overrides({"compile": False}), environ={"MPTUI_SPEED_COMPILE": "default"})
    assert (found.config.speed.compile, found.compile_forced) == ("off", False)


@pytest.mark.parametrize(
    ("assignment", "table", "key", "value"),
    [
        ("precision.mode=bf16", "precision", "mode", "bf16"),
        ('precision.mode = "bf16"', "precision", "mode", "bf16"),
        ("training.lr=1e-3", "training", "lr", 1e-3),
        ("training.lr=1", "training", "lr", 1.0),
        ("training.deterministic=true", "training", "deterministic", True),
        ("data.workers=auto", "data", "workers", "auto"),
        ("data.workers=0", "data", "workers", 0),
        ("data.path=/data/a=b", "data", "path", "/data/a=b"),
        ("logging.wandb_project=2026", "logging", "wandb_project", "2026"),
        ("checkpoint.every_minutes=none", "checkpoint", "every_minutes", None),
    ],
)
def test_set_takes_toml_and_bare_words(assignment, table, key, value):
    assert getattr(getattr(resolved(sets=[assignment]).config, table), key) == value


def test_variables_reach_nested_tables():
    found = resolved(environ={"MPTUI_PRECISION_GRAD_SCALER_INIT_SCALE": "1024"})
    assert found.config.precision.grad_scaler.init_scale == 1024.0


def test_faults_of_all_layers_are_told_at_once(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("[training]\nlr = -1\n")
    told = fault_of(
        str(path),
        environ={"MPTUI_TRAINING_EPOCH": "3", "MPTUI_RUNS_DIR": "x", "MPTUI_DATA_PREFETCH": "many"},
        flags={"training.epochs": ("--epochs", 0)},
        sets=["trainig.lr=1", "training.lr", "speed.fused=yes"],
    ).message
    assert told.splitlines() == [
        f"{path}:2: [training] lr = -1: must be greater than 0",
        "MPTUI_TRAINING_EPOCH: no such variable; nearest: MPTUI_TRAINING_EPOCHS",
        'MPTUI_DATA_PREFETCH = "many": must be a whole number',
        "--epochs = 0: must be 1 or more",
        "--set trainig.lr=1: unknown key; nearest: training.lr",
        "--set training.lr: not of the form table.key=value",
        "--set speed.fused=yes: must be true or false or 'auto'",
    ]


@pytest.mark.parametrize(
    ("variable", "nearest"),
    {
        "LEARNING_RATE": "TRAINING_LR",
        "TRAINING_LEARNING_RATE": "TRAINING_LR",
        "LR": "TRAINING_LR",
        "BATCHSIZE": "TRAINING_BATCH_SIZE",
        "TRAINING_batch_size": "TRAINING_BATCH_SIZE",
        "EPOCH": "TRAINING_EPOCHS",
        "PRECISION_TF32": "PRECISION_MATMUL",
        "RUN_DIR": "RUNS_DIR",
    }.items(),
)
def test_a_variable_by_another_name_is_told_with_the_one_that_is_meant(variable, nearest):
    told = fault_of(environ={f"MPTUI_{variable}": "3"}).message
    assert told == f"MPTUI_{variable}: no such variable; nearest: MPTUI_{nearest}"


def test_a_setting_of_an_earlier_version_is_told_with_what_there_is_now():
    assert fault_of(sets=["data.decode=cpu"]).message.endswith(RETIRED["data.decode"])


def test_commands_to_copy_quote_a_path_with_a_space(tmp_path):
    path = tmp_path / "my profile.toml"
    path.write_text("[training]\nlr = 0\n")
    assert f"mptui profiles validate '{path}'" in fault_of(str(path)).hint


def test_a_pair_that_cannot_be_had_names_where_each_half_was_set():
    told = fault_of(
        sets=["speed.compile=max-autotune"], environ={"MPTUI_TRAINING_DETERMINISTIC": "true"}
    ).message
    assert "training.deterministic: MPTUI_TRAINING_DETERMINISTIC, speed.compile: --set" in told


def test_checking_a_profile_finds_the_pair_that_only_one_task_has(tmp_path):
    path = tmp_path / "pair.toml"
    path.write_text('[training]\ndeterministic = true\n[segmentation.speed]\ncompile = "max-autotune"\n')
    with pytest.raises(ConfigError, match="autotuning is not repeatable"):
        check_profile(str(path), {})


def test_a_metric_of_another_task_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[training]\nprimary_metric = "dice"\n')
    assert resolved(str(path), task="segmentation").config.training.primary_metric == "dice"
    fault = fault_of(str(path), task="diffusion")
    assert fault.message == 'training.primary_metric = "dice" (profile mine): diffusion has r2, val_loss'
    assert fault_of(task="classification", sets=("training.loss=focal",)).message == (
        'training.loss = "focal" (--set): classification has cross_entropy'
    )
    path.write_text('[segmentation.training]\nprimary_metric = "dice"\n')
    assert resolved(str(path), task="diffusion").config.training.primary_metric is None


@given(st.sampled_from(["training.lr", "data.path", "speed.fused", "x.y", ""]), st.text())
def test_any_set_argument_gives_a_run_or_a_config_error(key, text):
    told = "--set"
    try:
        resolved(sets=[f"{key}={text}"])
    except ConfigError as error:
        told = error.message
    assert told.startswith("--set")


def test_data_that_is_named_replaces_the_folder_of_a_lower_layer(tmp_path):
    environ = {"MPTUI_DATA_PATH": "/photos"}
    named = resolved(flags=overrides({"data": "shapes"}), environ=environ).config.data
    folder = resolved(
        flags=overrides({"data": str(tmp_path)}), environ={"MPTUI_DATA_NAME": "shapes"}
    ).config.data
    assert (named.name, named.path) == ("shapes", None)
    assert (folder.name, folder.path) == (None, str(tmp_path))


def test_flags_are_named_in_their_faults():
    flags = overrides({"lr": "fast", "batch_size": "2.5", "precision": "fp8", "workers": "auto"})
    assert fault_of(flags=flags).message.splitlines() == [
        "--precision = \"fp8\": must be 'auto', 'bf16', 'fp16' or 'fp32'",
        "--batch-size = 2.5: must be a whole number",
        '--lr = "fast": must be a number',
    ]


@pytest.mark.parametrize(
    ("key", "written", "nearest"),
    [
        ("precision.mode", "torch.bfloat16", "bf16"),
        ("precision.mode", "half", "fp16"),
        ("precision.mode", "torch.float32", "fp32"),
        ("training.optimizer", "adamax", "adam"),
        ("data.cache", "devise", "device"),
    ],
)
def test_a_choice_that_is_none_names_the_nearest(key, written, nearest):
    assert fault_of(sets=[f"{key}={written}"]).message.endswith(f"; nearest: {nearest}")
    assert fault_of(flags={key: ("--flag", written)}).message.endswith(f"; nearest: {nearest}")


def test_a_choice_like_no_other_names_none():
    assert "nearest" not in fault_of(sets=["training.optimizer=zebra"]).message


@pytest.mark.parametrize(
    ("written", "mode"), [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32")]
)
def test_a_precision_has_torchs_name_too(written, mode, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(f'[precision]\nmode = "{written}"\n')
    flags = {"precision.mode": ("--precision", written)}
    for found in (
        resolved(sets=[f"precision.mode={written}"]),
        resolved(flags=flags),
        resolved(environ={"MPTUI_PRECISION_MODE": written}),
        resolved(profile=str(file)),
    ):
        assert found.config.precision.mode == mode


@pytest.mark.parametrize(("before", "now"), [("true", "high"), ("false", "highest")])
def test_a_file_of_an_earlier_version_keeps_its_meaning(before, now, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(f"[precision]\ntf32 = {before}\n")

    assert resolved(profile=str(file)).config.precision.matmul == now
    assert fault_of(sets=[f"precision.tf32={before}"]).message.endswith("nearest: precision.matmul")
