from pathlib import Path

import pytest

from mptui.config.keys import read_profile
from mptui.config.profiles import find_profile, list_profiles
from mptui.config.resolve import check_profile, copy_profile, profile_path, resolve
from mptui.errors import ConfigError

MINE = """\
description: Mine
version: 1
training: &rates
  lr: 1e-3  # text in YAML 1.1
  epochs: 010
  clip_grad_norm: null
precision:
  mode: bfloat16
  fp32_layers: ["fc"]
  grad_scaler: {growth_factor: 2}
speed:
  compile: off  # false in YAML 1.1
data:
segmentation:
  training:
    <<: *rates
    epochs: 3
"""


@pytest.fixture
def places(tmp_path, monkeypatch):
    """An empty working folder and a separate configuration folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return {"MPTUI_CONFIG_DIR": str(tmp_path / "own")}


def config_of(profile, environ, task=None):
    return resolve(str(profile), task=task, flags={}, sets=(), environ=environ).config


def test_a_yaml_file_has_the_keys_and_words_of_a_toml_file(places):
    Path("mine.yaml").write_text(MINE)
    config = config_of("mine.yaml", places)

    check_profile("mine.yaml", places)
    assert config.description == "Mine"
    assert (config.training.lr, config.training.epochs, config.training.clip_grad_norm) == (1e-3, 10, None)
    assert (config.precision.mode, config.precision.fp32_layers, config.speed.compile) == (
        "bf16",
        ["fc"],
        "off",
    )
    unet = config_of("mine.yaml", places, "segmentation").training
    assert (unet.lr, unet.epochs) == (1e-3, 3)


def test_all_faults_of_a_yaml_file_are_told_with_their_lines(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(
        'training:\n  batchsize: 3\n  lr: "1"\nspeed: {lr: 3, fused: yes}\ntrainin:\n  epochs: 1\n'
    )

    assert [line.removeprefix(f"{path}:") for line in read_profile(path)[1]] == [
        "2: [training] batchsize: unknown key; nearest: training.batch_size",
        '3: [training] lr = "1": must be a number',
        "4: [speed] fused = \"yes\": must be true or false or 'auto'",
        "4: [speed] lr: unknown key; nearest: training.lr",
        "5: [trainin]: unknown table; nearest: training",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("training: !!python/object/apply:os.system [ls]", "p.yml:1: a tag is not allowed"),
        ("training: {lr: 1,\n lr: 2}", "p.yml:2: the key lr is there twice"),
        ("training:\n\tlr: 1", "p.yml:2: not YAML"),
        ("- training", "p.yml:1: not a table"),
        ("a: &a [*a]", "contains itself"),
        ("[a, b]: 1", "p.yml:1: a key that is not a word"),
        ("a: 1\n---\nb: 1", "p.yml:2: not YAML"),
        ("a: \x07", "p.yml: not YAML"),
        ("training: {<<: 3}", "p.yml:1: not YAML"),
        ("a: " + "[" * 1000, "p.yml: nested too deeply"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_in_a_line(tmp_path, text, told):
    (tmp_path / "p.yml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_profile(tmp_path / "p.yml")
    assert told in refused.value.message
    assert len(refused.value.message.splitlines()) == 1


def test_yaml_profiles_are_listed_and_found_by_name(places):
    own = Path(places["MPTUI_CONFIG_DIR"]) / "profiles"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text(MINE)
    (own / "broken.yml").write_text("[")

    assert find_profile("mine", places) == own / "mine.yaml"
    listed = {info.name: info.description for info in list_profiles(places)}
    assert listed["mine"] == "Mine"
    assert "faulty" in listed["broken"]


def test_a_copy_of_a_yaml_profile_is_toml_with_the_same_values(places):
    Path("mine.yaml").write_text(MINE)
    copy = copy_profile("toml-of-mine", "mine.yaml", places)

    assert copy.suffix == ".toml"
    for task in (None, "segmentation"):
        expected = config_of("mine.yaml", places, task)
        assert config_of(copy, places, task) == expected.model_copy(update={"description": "A copy of mine"})


def test_profiles_are_not_saved_under_the_name_of_a_yaml_file(places):
    with pytest.raises(ConfigError, match=r"saved as TOML") as refused:
        profile_path("out/mine.yaml", places)
    assert refused.value.hint == "name it out/mine.toml"
