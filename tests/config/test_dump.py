from typing import get_args

import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from mptui.config.keys import SETTINGS, acts, check_value, nested, training_of
from mptui.config.resolve import dry_run_text, resolve, to_toml
from mptui.config.schema import RunConfig

_CANDIDATES = st.one_of(
    st.integers(-1, 1000),
    st.floats(0, 10),
    st.booleans(),
    st.none(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from(
        [v for s in SETTINGS.values() for v in get_args(s.field.annotation) if isinstance(v, str)]
    ),
)
_OF_ALL_TASKS = [
    key for key, setting in SETTINGS.items() if not setting.scopes and key != "training.primary_metric"
]


@st.composite
def configs(draw) -> RunConfig:
    keys = draw(st.lists(st.sampled_from(_OF_ALL_TASKS), max_size=8, unique=True))
    values = {}
    for key in keys:
        value = draw(_CANDIDATES)
        if check_value(SETTINGS[key], value)[1] is None and value != "none":
            values[key] = value
    try:
        return RunConfig.model_validate({"description": draw(st.text(max_size=5)), **nested(values)})
    except ValueError:
        return RunConfig()


@settings(max_examples=10)
@given(configs())
def test_a_written_configuration_resolves_to_an_equal_one(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("dump") / "run.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    for task in ("classification", "segmentation", None):
        assert resolve(str(path), task=task, flags={}, sets=(), environ={}).config == config


def test_values_come_in_the_order_of_the_schema():
    document = tomli.loads(to_toml(RunConfig()))
    assert [name for name in document if name in RunConfig.model_fields] == [
        name for name in RunConfig.model_fields if name in document
    ]


def test_a_dry_run_shows_each_key_beside_its_source(tmp_path):
    outcome = resolve(
        "fast",
        task="segmentation",
        flags={"training.lr": ("--lr", 0.5)},
        sets=(),
        environ={"MPTUI_DATA_NAME": "x"},
    )
    text = dry_run_text(outcome)
    lines = {line.split(" = ")[0]: line for line in text.splitlines()}
    assert lines["epochs"].endswith("  # profile fast")
    assert lines["weight_decay"].endswith("  # default [segmentation.training]")
    assert lines["lr"].endswith("  # --lr")
    assert lines["lr_batch_size"].startswith('lr_batch_size = "none"')
    assert lines["lr_batch_size"].endswith("  # --lr")
    assert lines["seed"].endswith("  # default")
    assert text.count("  # ") == sum(acts(key, training_of(outcome.config, outcome.task)) for key in SETTINGS)
    path = tmp_path / "again.toml"
    path.write_text(text)
    assert resolve(str(path), task=None, flags={}, sets=(), environ={}).config == outcome.config
