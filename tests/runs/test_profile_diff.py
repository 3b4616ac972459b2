import pytest

from mptui.config.resolve import resolve, to_toml
from mptui.errors import ConfigError
from mptui.runs.planning.plan import Request
from mptui.runs.planning.profile_diff import predict_switch


@pytest.fixture
def run(tmp_path):
    """A run of the profile fast, with a ResNet-18."""
    flags = {"model.name": ("--model", "resnet18")}
    config = resolve("fast", task="classification", flags=flags, sets=(), environ={}).config
    (tmp_path / "run.toml").write_text(to_toml(config), encoding="utf-8")
    return tmp_path


def test_what_can_not_change_is_told_with_both_values(run):
    prediction = predict_switch(run, "debug", Request(environ={}))
    assert prediction.kept["training.epochs"] == ["50", "5"]
    assert prediction.kept["training.deterministic"] == ["False", "True"]
    assert prediction.changes["training.batch_size"] == ["64", "2"]
    assert not prediction.kept.keys() & prediction.changes.keys()


def test_what_the_run_was_asked_with_stays_above_the_preset(run):
    request = Request(flags={"training.epochs": ("--epochs", 50)}, sets=("training.batch_size=64",))
    prediction = predict_switch(run, "debug", request)
    assert "training.epochs" not in prediction.kept
    assert "training.batch_size" not in prediction.changes


def test_what_another_screen_gave_to_the_run_is_no_change(run):
    """A screen that is attached knows no flags of the run, which tells it what they were about."""
    every = predict_switch(run, "debug", Request(environ={}))
    found = predict_switch(run, "debug", Request(environ={}), given=["training.batch_size", "gone.key"])
    assert every.changes.keys() - found.changes.keys() == {"training.batch_size"}
    assert found.kept == every.kept


def test_the_same_preset_changes_nothing(run):
    prediction = predict_switch(run, "fast", Request(environ={}))
    assert (prediction.changes, prediction.kept) == ({}, {})


@pytest.mark.parametrize(
    ("optimizer", "setting", "changes"),
    [
        ("sgd", "training.momentum=0.9", {}),
        ("sgd", "training.momentum=0.8", {"training.momentum": ["unset", "0.8"]}),
        ("sgd", "training.nesterov=false", {}),
        ("muon", "training.betas=[0.9, 0.999]", {}),
        ("muon", "training.momentum=0.9", {"training.momentum": ["unset", "0.9"]}),
        ("sgd", "training.clip_grad_norm=1.0", {"training.clip_grad_norm": ["unset", "1.0"]}),
    ],
)
def test_a_default_under_another_name_is_no_change_and_what_is_not_set_is_called_so(
    run, optimizer, setting, changes
):
    """Momentum of SGD is 0.9 where it is unset: a profile that says so changes nothing."""
    unset = [f"training.{name}=none" for name in ("momentum", "clip_grad_norm")]
    sets = (f"training.optimizer={optimizer}", *unset)
    config = resolve("fast", task="classification", flags={}, sets=sets, environ={}).config
    (run / "run.toml").write_text(to_toml(config), encoding="utf-8")
    assert predict_switch(run, "fast", Request(sets=(*sets, setting), environ={})).changes == changes


def test_a_preset_that_is_not_there_is_an_error(run):
    with pytest.raises(ConfigError, match="nosuch"):
        predict_switch(run, "nosuch", Request(environ={}))
