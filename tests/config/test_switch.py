import re
from itertools import permutations
from pathlib import Path

import pytest

import mptui
from mptui.config.change import fixed_because, switched, switched_setting
from mptui.config.keys import SETTINGS
from mptui.config.profiles import list_profiles
from mptui.config.resolve import resolve
from mptui.config.schema import RunConfig
from mptui.errors import ConfigError
from mptui.registry.tasks import TASKS

PACKAGE = Path(mptui.__file__).parent


@pytest.mark.parametrize(
    "task",
    ["classification", *(pytest.param(t, marks=pytest.mark.slow) for t in TASKS if t != "classification")],
)
def test_every_built_in_profile_switches_to_every_other(task):
    configs = {
        info.name: resolve(info.name, task=task, flags={}, sets=(), environ={}).config
        for info in list_profiles({})
    }
    assert len(configs) >= 9
    for one, other in permutations(configs, 2):
        switch = switched(configs[one], configs[other])
        assert switch.changes, f"{one} to {other}"
        # a switch back is possible from these values
        switched(switch.config, configs[one])


def test_the_owner_of_each_setting_that_changes_in_a_run_reads_it():
    for key, setting in SETTINGS.items():
        if setting.live is not None:
            owner = PACKAGE / setting.live.owner
            name = key.rpartition(".")[2]
            assert re.search(rf"\b{name}\b", owner.read_text(encoding="utf-8")), f"{key}: not in {owner}"
            assert not setting.fixed


def test_what_the_run_rules_out_of_a_preset_is_kept_with_the_reason():
    current = RunConfig.model_validate({"training": {"deterministic": True}})
    preset = RunConfig.model_validate({"speed": {"compile": "max-autotune"}, "training": {"batch_size": 8}})
    switch = switched(current, preset)
    assert switch.config.speed.compile == "off"
    assert switch.config.training.deterministic
    assert switch.changes == {"training.batch_size": ["64", "8"]}
    assert switch.kept["training.deterministic"] == ""
    assert switch.kept["speed.compile"] == (
        'training.deterministic with speed.compile = "max-autotune": autotuning is not repeatable; '
        'use "default" or "off"'
    )


def test_what_can_not_be_had_in_any_way_says_why_in_plain_words():
    current = RunConfig()
    broken = current.model_copy(
        update={"logging": current.logging.model_copy(update={"wandb_name": "without a project"})}
    )
    with pytest.raises(ConfigError) as caught:
        switched(broken, RunConfig.model_validate({"training": {"batch_size": 8}}))
    assert caught.value.message == (
        "this run can't switch to the profile: logging.wandb_name needs logging.wandb_project"
    )


def test_sharded_weights_stay_so_and_rule_out_what_they_can_not_do():
    current = RunConfig.model_validate({"memory": {"shard": True}})
    preset = RunConfig.model_validate(
        {"speed": {"compile": "default"}, "memory": {"micro_batch": "auto"}, "training": {"batch_size": 8}}
    )
    switch = switched(current, preset)
    assert switch.changes == {"training.batch_size": ["64", "8"]}
    assert switch.kept["memory.shard"] == ""
    assert "sharded weights are not compiled" in switch.kept["speed.compile"]
    assert "no rank can try alone what fits" in switch.kept["memory.micro_batch"]
    with pytest.raises(ValueError, match="it needs whole matrices"):
        RunConfig.model_validate({"memory": {"shard": True}, "training": {"optimizer": "muon"}})


def test_a_single_setting_changes_or_says_why_it_can_not():
    current = RunConfig.model_validate({"training": {"deterministic": True}})
    assert switched_setting(current, "training.lr", 0.05).changes == {"training.lr": ["0.1", "0.05"]}
    assert fixed_because("data.workers") == ""
    assert fixed_because("model.width") == "its weights fit no other network"
    for key, value, why in (
        ("model.width", 8, "its weights fit no other network"),
        ("training.epochs", 3, "mptui resume RUN --set training.epochs="),
        ("memory.shard", True, "a resume can change it"),
        ("speed.compile", "max-autotune", "autotuning is not repeatable"),
    ):
        with pytest.raises(ConfigError, match=why):
            switched_setting(current, key, value)
