"""Third-party configuration files: plain values with their positions; hostile files are refused in a line."""

import json
import os
from pathlib import Path

import pytest

from mptui.errors import ConfigError
from mptui.lab.doctor.foreign_files import LARGEST_BYTES, read_config_file

SAME = {
    "train.yaml": "trainer:\n  amp: False  # off\n  lr: 0.001\n  name: 'x'\n",
    "train.toml": '[trainer]\namp = false  # off\nlr = 0.001\nname = "x"\n',
    "train.json": '{"trainer": {\n  "amp": false,\n  "lr": 0.001, "name": "x"}}\n',
    "train.py": "trainer = {\n  'amp': False,  # off\n  'lr': 0.001, 'name': 'x'}\n",
}


def values(path):
    return {".".join(s.keys): s.value for s in read_config_file(path).values}


@pytest.fixture
def file(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.mark.parametrize("name", SAME)
def test_each_kind_of_file_says_the_same(file, name):
    assert values(file(name, SAME[name])) == {"trainer.amp": False, "trainer.lr": 0.001, "trainer.name": "x"}


@pytest.mark.parametrize(
    ("name", "written", "mended"),
    [
        ("train.yaml", "amp: False", "amp: True"),
        ("train.toml", "amp = false", "amp = True"),
        ("train.json", '"amp": false', '"amp": True'),
        ("train.py", "'amp': False", "'amp': True"),
    ],
)
def test_a_value_is_told_with_its_line_as_it_is_written_and_as_it_would_be(file, name, written, mended):
    settings = read_config_file(file(name, SAME[name]))
    setting = next(s for s in settings.values if s.keys[-1] == "amp")
    assert setting.location == f"{settings.path}:2"
    assert setting.written == written
    assert setting.corrected("True") == mended


def test_python_is_parsed_and_never_run(file, tmp_path):
    path = file(
        "train.py",
        "import os\n"
        f"open({str(tmp_path / 'ran')!r}, 'w')\n"
        "raise SystemExit\n"
        "class Config(Base):\n    amp: bool = False\n    lr = 1e-4\n    scale = compute()\n"
        "config = dict(fp16=True, seed=os.getpid())\n"
        "config['amp_dtype'] = 'bfloat16'\nargs.clip = -1.0\nlr = 1\nlr = 2\n",
    )
    assert values(path) == {
        "Config.amp": False,
        "Config.lr": 1e-4,
        "config.fp16": True,
        "config.amp_dtype": "bfloat16",
        "args.clip": -1.0,
        "lr": 2,
    }
    assert not (tmp_path / "ran").exists()


def test_odd_escapes_in_a_python_file_are_no_news(file, recwarn):
    assert values(file("train.py", "pattern = '\\d'\nlr = 1\n")) == {"pattern": "\\d", "lr": 1}
    assert not list(recwarn)


def test_what_yaml_merges_is_overridden_by_a_table_of_its_own(file):
    path = file(
        "a.yaml", "base: &b {amp: false, lr: 0.1}\nother: &o {lr: 7}\ntrain:\n  <<: [*b, *o]\n  amp: true\n"
    )
    read = [(".".join(s.keys), s.value) for s in read_config_file(path).values if s.keys[0] == "train"]
    assert read == [("train.lr", 0.1), ("train.amp", True)]


def test_a_key_given_twice_is_there_twice(file):
    for path in (file("a.yaml", "amp: true\namp: false\n"), file("a.json", '{"amp": true, "amp": false}')):
        assert [s.value for s in read_config_file(path).values] == [True, False]


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGE_BOMB = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE = {
    "object.yaml": ("x: !!python/object/apply:os.system ['touch ran']\n", "a tag is not allowed"),
    "name.yaml": ("x: !!python/name:os.system\n", "a tag is not allowed"),
    "own.yaml": ("x: !Thing {a: 1}\n", "a tag is not allowed"),
    "bomb.yaml": (BOMB, "with expanded aliases"),
    "merge.yaml": (MERGE_BOMB, "with expanded aliases"),
    "cycle.yaml": ("a: &a [*a]\n", "contains itself"),
    "large.yaml": (b"a: 1\n" * (2 << 20), "too large for a configuration"),
    "binary.yaml": (os.urandom(64) + b"\xff\xfe", "not UTF-8 text"),
    "nul.yaml": ("a: 1\0\n", "binary"),
    "bell.yaml": ("a: \x07\n", "not YAML"),
    "broken.yaml": ("a: [1, 2\nb: 3\n", "not YAML"),
    "two.yaml": ("a: 1\n---\nb: 2\n", "not YAML"),
    "list.yaml": ("- 1\n- 2\n", "not a table"),
    "deep.yaml": ("[" * 1_000, "nested too deeply"),
    "deep.json": ("[" * 100_000, "nested too deeply"),
    "deep.toml": ("a = " + "[" * 100_000, "nested too deeply"),
    "deep.py": ("a = " + "-" * 200_000 + "1", "nested too deeply"),
    "many.json": (json.dumps({"a": [1] * 30_000}), "more than"),
    "digits.json": ('{"a": ' + "1" * 5_000 + "}", "not JSON"),
    "list.json": ("[]", "not a table"),
    "broken.json": ('{"a": 1,}', "not JSON"),
    "broken.toml": ("a = \n", "not TOML"),
    "broken.py": ("a = (\n", "not Python"),
    "train.pickle": (b"\x80\x04.", "unknown kind of file"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(file, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    content, why = HOSTILE[name]
    with pytest.raises(ConfigError) as refused:
        read_config_file(file(name, content))
    assert why in refused.value.message
    assert len(refused.value.message.splitlines()) == 1
    assert refused.value.hint
    assert not Path("ran").exists()


def test_a_file_just_below_the_limit_is_read(file):
    path = file("a.toml", "a = 1\n# " + "x" * (LARGEST_BYTES - 9) + "\n")
    assert path.stat().st_size == LARGEST_BYTES
    assert values(path) == {"a": 1}


def test_what_never_ends_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (tmp_path / "pipe.yaml", tmp_path / "gone.yaml", tmp_path):
        with pytest.raises(ConfigError):
            read_config_file(path)
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="not a file"):
        read_config_file(tmp_path / "zero.yaml")


def test_what_looks_like_an_escape_reaches_no_terminal(file):
    with pytest.raises(ConfigError) as refused:
        read_config_file(file("a.yaml", "x: !<\x1b]52;c;AAAA> 1\n".replace("\x1b", "%1b")))
    assert "\x1b" not in refused.value.message
