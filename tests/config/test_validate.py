from typing import Any

import pytest
import tomli
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from mptui.config.keys import RETIRED, SETTINGS, VARIABLES, read_profile
from mptui.config.resolve import check_profile, resolve
from mptui.config.schema import RunConfig
from mptui.errors import ConfigError

FAULTY = """\
description = 3
lr = 1
[training]
batchsize = 3
lr = "x"
label_smoothing = 1
epochs = 5.0
momentum = true
[speed]
lr = 3
[traning]
epochs = 1
[precision]
grad_scaler = {growth_factor = 1}
mode = "fp8"
data = 1
[segmentation.training]
worker = 3
[classification.data]
workers = "many"
"""


def faults_of(path, text):
    path.write_text(text)
    return [line.removeprefix(f"{path}:") for line in read_profile(path)[1]]


@pytest.mark.parametrize("version", ["2", "'1'", "true", "1.0"])
def test_a_profile_of_a_later_version_is_refused(tmp_path, version):
    assert faults_of(tmp_path / "p.toml", "version = 1\n[training]\nlr = 0.1\n") == []
    (told,) = faults_of(tmp_path / "p.toml", f"# mine\nversion = {version}\n[training]\nlr = 0.1\n")
    assert told.startswith("2: version = ")
    assert told.endswith("this mptui reads profiles of version 1")


def test_all_faults_are_told_with_line_table_key_and_nearest_name(tmp_path):
    assert faults_of(tmp_path / "p.toml", FAULTY) == [
        "1: description = 3: must be text in quotes",
        "2: lr: unknown key; nearest: training.lr",
        "4: [training] batchsize: unknown key; nearest: training.batch_size",
        '5: [training] lr = "x": must be a number',
        "6: [training] label_smoothing = 1: must be less than 1",
        "7: [training] epochs = 5.0: must be a whole number",
        "8: [training] momentum = true: must be a number",
        "10: [speed] lr: unknown key; nearest: training.lr",
        "11: [traning]: unknown table; nearest: training",
        "14: [precision.grad_scaler] growth_factor = 1: must be greater than 1",
        "15: [precision] mode = \"fp8\": must be 'auto', 'bf16', 'fp16' or 'fp32'",
        "16: [precision] data: unknown key",
        "18: [segmentation.training] worker: unknown key; nearest: data.workers",
        "20: [classification.data] workers = \"many\": must be a whole number or 'auto'",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("training = 3", "1: training = 3: must be a table"),
        ("[[training]]\nlr = 1", " training = a list: must be a table"),
        ("segmentation = 1", "1: segmentation = 1: must be a table"),
        ("[segmentation]\ntraining = 1", "2: [segmentation] training = 1: must be a table"),
        ("[training]\nlr = nan", "2: [training] lr = nan: must be a finite number"),
        ("[training]\nlr = 0x1" + "0" * 5000, "2: [training] lr = a number beyond 64 bits: must be a number"),
        ("[training.lr]\nx.y = 1", "1: [training] lr = a table: must be a number"),
        ('a = """\nlr = 1\n"""\n[data]\nlr = 1', "1: a: unknown key"),
    ],
)
def test_odd_values_are_faults_at_their_line(tmp_path, text, fault):
    assert fault in faults_of(tmp_path / "p.toml", text)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"[training\n", "line 1"),
        (b"[training]\nlr = 1\nlr = 2\n", "line 3"),
        (b"\xff\xfe", "not UTF-8"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"#" * (1 << 21), "larger than 1,048,576 bytes"),
        (b"[training]\nepochs = " + b"9" * 5000, "not TOML"),
    ],
)
def test_a_file_that_is_not_toml_says_why(tmp_path, raw, told):
    path = tmp_path / "p.toml"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=told):
        read_profile(path)


def test_windows_line_ends_and_a_byte_order_mark_are_fine(tmp_path):
    path = tmp_path / "p.toml"
    path.write_bytes("\ufeff[training]\r\nepochs = 3\r\n".encode())
    assert read_profile(path)[0].values == {"training.epochs": 3}


_names = st.sampled_from([*SETTINGS, "training", "segmentation", "segmentation.training.lr", "x", "a.b", ""])
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.datetimes(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=30)
@given(st.dictionaries(_names, _values.filter(lambda value: value is not None), max_size=4), st.data())
def test_any_file_gives_a_run_or_a_config_error(tmp_path_factory, values, data):
    document: dict[str, Any] = {}
    for name, value in values.items():
        *tables, key = name.split(".")
        place = document
        for table in tables:
            place = place.setdefault(table, {}) if isinstance(place.get(table, {}), dict) else {}
        place[key] = value
    text = _toml(document)
    cut = data.draw(st.integers(0, len(text)))
    path = tmp_path_factory.mktemp("fuzz") / "p.toml"
    path.write_text(text[:cut] if data.draw(st.booleans()) else text, encoding="utf-8")
    faults = ["none"]
    try:
        check_profile(str(path), {})
    except ConfigError as error:
        faults = error.message.splitlines()
    assert faults
    assert all(faults)


def _toml(document):
    try:
        text = tomli_w.dumps(document)
        tomli.loads(text)
    except (TypeError, ValueError):
        return "[training"
    return text


def test_each_setting_has_a_variable_of_its_own():
    assert len(VARIABLES) == len(SETTINGS)


def test_each_setting_tells_what_it_is():
    assert [key for key, setting in SETTINGS.items() if not setting.field.description] == []


def test_the_settings_are_those_of_the_schema():
    config = resolve(None, task=None, flags={}, sets=(), environ={}).config
    assert config == RunConfig()


def test_a_setting_of_an_earlier_version_is_ignored_with_a_note(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[data]\ndecode = "device"\nworkers = 3\n[segmentation.data]\ndecode = "cpu"\n')
    resolved = resolve(str(path), task=None, flags={}, sets=(), environ={})
    assert resolved.config.data.workers == 3
    assert resolved.notes == (f"data.decode of profile run is ignored: {RETIRED['data.decode']}",)
