"""Malformed flags, profiles, journals and run directories: no traceback, and the right exit code."""

import io
import json
import os
import random
import signal
from pathlib import Path

import pytest

from mptui.cli.main import _exit_code
from mptui.config.schema import DataConfig
from mptui.data.open import open_dataset
from mptui.errors import ConfigError, DataError
from mptui.events import Warned, to_record
from mptui.registry.names import SampleKind
from mptui.runs.store.directory import list_runs, status_of
from mptui.runs.store.journal import NAME, read_journal
from mptui.runs.view.run_view import RunView
from tests.data.images import photo
from tests.tui.events import demo

PROFILES = sorted((Path(__file__).parents[2] / "profiles").glob("*.toml"))
CODES = {0, 2, 3}
"""Exit codes: success, or an invalid configuration or data."""

FLAGS = [
    *("--profile", "--model", "--data", "--epochs", "--max-steps", "--batch-size", "--lr", "--precision"),
    *("--workers", "--device", "--seed", "--set", "--name"),
]
VALUES = [
    *(
        "",
        " ",
        "-",
        "--",
        "0",
        "-1",
        "1e309",
        "nan",
        "inf",
        "9" * 400,
        "1_000",
        "0x10",
        "1.5",
        "true",
        "None",
    ),
    *("..", "/", "~nobody/x", "/dev/null", "/proc/self/mem", "a\nb", "\x1b[2J", "\u202e", "é" * 300, "💥"),
    *("x=y", "training.lr=", "training.lr=[", "training.=1", ".=", "=", "data.path=/dev/zero", "a.b.c=1"),
    *('model.name="unet"', "training.lr={a=1}", 'training={"lr"=1}', "training.epochs=1.0", "$(id)", "%s%n"),
    *("data.image_size=99999", "data.workers=-3", "hardware.device=cuda:999", "__proto__.x=1", "cuda:-1"),
]
TOKENS = [
    b"\0",
    b"\xff",
    b"[",
    b"]",
    b"=",
    b'"',
    b"'''",
    b"\n",
    b"[training]",
    b"nan",
    b"1e999",
    b"lr = ",
    b"\xc3",
]
FOLDERS = ["train", "val", "images", "masks", "cats", "dogs", ".hidden", "x.png", "é" * 50, "\x1b[2J"]
FILES = ["a.png", "b.jpg", "c.JPEG", "a_mask.png", "notes.txt", "d.tif", ".e.png", "f", "g\n.png", "h.gif"]
FORMATS = ["PNG", "JPEG", "TIFF", "GIF", "BMP"]
SUMMARIES = [
    '{"status": "running", "best": {"metric": null, "value": 1.5}, "epochs": "many"}',
    '{"status": "running", "best": {"value": 0.5}, "optimizer_steps": null}',
    '{"status": "completed", "best": {"metric": [], "value": "nan"}, "precision": {"used": {}}}',
    '{"run": 7, "directory": null, "samples_per_second": "fast", "time": [], "started": {}, "epochs": 1e300}',
    '{"status": "\\u001b[2J", "model": "\\u202e", "precision": {"used": "\\u009b"}, "epochs": true}',
    '{"dataset": {"name": 3}, "memory": {"host_peak_bytes": "x"}, "best": {"metric": "acc1", "value": 0.5}}',
    '{"status": "completed", "version": 2}',
    '{"status": "completed", "started": 1e, "time": {"total_s": 1e}, "energy": {"seconds": 1e}}'.replace(
        "1e",
        f"1{'0' * 400}",  # beyond a float's range
    ),
]
JSONS = [
    "null",
    "[]",
    "{}",
    "0",
    '"x"',
    "nan",
    "1e999",
    "[" * 50,
    '{"version": "1"}',
    '{"status": []}',
    "\x00",
]


@pytest.fixture(autouse=True)
def handlers_stay():
    """Commands install signal handlers, as in a process of their own."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def assert_told(arguments, capfd, codes=CODES):
    """Assert that the command ends with one of these codes and, if it failed, names problem and remedy."""
    code = _exit_code(arguments, debug=False)
    said = capfd.readouterr().err
    assert code in codes, (arguments, said)
    assert "Traceback" not in said
    assert "\x1b" not in said
    if code:
        lines = [line for line in said.splitlines() if line.strip()]
        assert any(line.startswith("mptui: ") for line in lines), arguments
        assert lines[-1].startswith("  "), arguments


def mutated(content, chance):
    """Return the content with some bytes changed, cut, duplicated or inserted."""
    content = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(content) + 1)
        kind = chance.randrange(4)
        if kind == 0 and place < len(content):
            content[place] = chance.randrange(256)
        elif kind == 1:
            del content[place : place + chance.randint(1, 40)]
        elif kind == 2:
            content[place:place] = chance.choice(TOKENS)
        else:
            content[place:place] = content[place : place + chance.randint(1, 60)]
    return bytes(content)


def flags(count, seed, folder, capfd):
    chance = random.Random(seed)
    for _ in range(count):
        given = [
            part
            for _ in range(chance.randint(1, 3))
            for part in (chance.choice(FLAGS), chance.choice(VALUES))
        ]
        assert_told(["run", "--dry-run", "--runs-dir", str(folder), *given], capfd)


def profiles(count, seed, folder, capfd):
    chance = random.Random(seed)
    path = folder / "mutated.toml"
    for _ in range(count):
        path.write_bytes(mutated(chance.choice(PROFILES).read_bytes(), chance))
        assert_told(["run", "--dry-run", "--profile", str(path)], capfd)
        assert_told(["profiles", "validate", str(path)], capfd)


def journals(count, seed, folder):
    chance = random.Random(seed)
    lines = [json.dumps(to_record(event)).encode() + b"\n" for event in demo()]
    for _ in range(count):
        picked = [chance.choice(lines) for _ in range(5)]
        victim = chance.randrange(5)
        (folder / NAME).write_bytes(
            b"".join([*picked[:victim], mutated(picked[victim], chance), *picked[victim:]])
        )
        view = RunView()
        for event in read_journal(folder):
            view.handle(event)
        view.handle(Warned(code="a", message="b"))


def put_something(path, chance):
    """Write an image, half of one, a file that is no image, or something that is no file."""
    kind = chance.randrange(8)
    if path.exists() or path.is_symlink():
        return
    if kind == 0:
        path.symlink_to(path.name)
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        os.mkfifo(path)
    elif kind == 3:
        path.write_bytes(chance.choice(TOKENS) * chance.randrange(50))
    else:
        content = io.BytesIO()
        photo(chance.randint(1, 40), chance.randint(1, 40)).save(content, chance.choice(FORMATS))
        picture = content.getvalue()
        path.write_bytes(mutated(picture, chance) if kind < 6 else picture)


def refusal(root, kind, budget):
    """Open a folder as data; return the error message, or None."""
    try:
        open_dataset(
            DataConfig(path=str(root), bad_sample_budget=budget),
            kind=kind,
            side=8,
            seed=0,
            on_progress=lambda done, total: None,
            should_stop=lambda: False,
            on_warning=lambda words: None,
        )
    except (DataError, ConfigError) as error:
        return error
    return None


def data_trees(count, seed, folder):
    chance = random.Random(seed)
    codes = set()
    for number in range(count):
        root = folder / str(number)
        for _ in range(chance.randint(0, 5)):
            inside = "/".join(chance.choices(FOLDERS, k=chance.randint(1, 2)))
            (root / inside).mkdir(parents=True, exist_ok=True)
        for place in [root, *root.rglob("*")] if root.is_dir() else []:
            for name in chance.choices(FILES, k=chance.randint(0, 4)):
                put_something(place / name, chance)
        for kind in (SampleKind.CLASS, SampleKind.MASK):
            error = refusal(root, kind, chance.choice((0.0, 0.5, 1.0)))
            codes.add(error.exit_code if error else 0)
            if error is not None:
                assert error.message.replace("\n", "").isprintable()
                assert error.hint
    assert {0, 3} <= codes


def run_directories(count, seed, folder, capfd):
    chance = random.Random(seed)
    run = folder / "run"
    run.mkdir()
    for _ in range(count):
        for name in ("run.toml", "lock.json", "bad_samples.json", "events.jsonl"):
            (run / name).write_text(chance.choice(JSONS))
        (run / "summary.json").write_text(chance.choice(SUMMARIES + JSONS))
        assert [status_of(path)["run"] for path in list_runs(folder)]
        assert_told(["runs", "--runs-dir", str(folder)], capfd, {0})
        assert_told(["runs", "--runs-dir", str(folder), "--json"], capfd, {0})
        assert_told(["resume", "run", "--runs-dir", str(folder)], capfd, {2, 3, 6})


def test_malformed_flags(tmp_path, capfd):
    flags(15, 0, tmp_path, capfd)


def test_malformed_profiles(tmp_path, capfd):
    profiles(10, 0, tmp_path, capfd)


def test_malformed_journals(tmp_path):
    journals(100, 0, tmp_path)


def test_malformed_data_trees(tmp_path):
    data_trees(12, 0, tmp_path)


def test_malformed_run_directories(tmp_path, capfd):
    run_directories(6, 0, tmp_path, capfd)


@pytest.mark.chaos
def test_two_thousand_malformed_files_and_flags(tmp_path, capfd):
    flags(700, 1, tmp_path, capfd)
    profiles(500, 1, tmp_path, capfd)
    data_trees(300, 1, tmp_path / "data")
    journals(300, 1, tmp_path)
    run_directories(200, 1, tmp_path, capfd)
