"""A new data format is one entry of `FORMATS`: here a text file with a path and a class per line."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from mptui.cli.main import _exit_code
from mptui.config.schema import DataConfig
from mptui.data import scan
from mptui.data.dataset import PathTable
from mptui.data.folder_format import FolderFormat, Found
from mptui.data.layouts.known import FORMATS
from mptui.data.open import kind_of
from mptui.errors import DataError
from mptui.io.cache import cache_folder
from mptui.registry.names import SampleKind
from mptui.testing import FormatContract
from mptui.text import clean_name
from mptui.tui.selection import about_data
from tests.data.images import photo

RUN = ["--model", "small_cnn", "--workers", "0", "--device", "cpu", "--batch-size", "4", "--no-compile"]


def recognize(path: str) -> SampleKind | None:
    return SampleKind.CLASS if path.endswith(".pairs") and Path(path).is_file() else None


def find(path: str, _kind: SampleKind, *_: object) -> Found:
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            images, names = zip(*csv.reader(file), strict=True)
    except ValueError as error:  # not UTF-8, or lines of another length
        raise DataError(f"{path}: not a path and a class a line", hint="Correct the file.") from error
    shown = [clean_name(name) for name in names]
    classes = tuple(sorted(set(shown)))
    labels = np.array([classes.index(name) for name in shown], np.int64)
    folder = Path(path).parent
    return Found(PathTable(str(folder / image) for image in images), len(images), classes, labels)


SPEC = FolderFormat("DATA.pairs: a path and a class a line", recognize, find)


class TestPairs(FormatContract):
    @pytest.fixture
    def spec(self):
        return SPEC

    def make(self, folder, images):
        folder.mkdir(parents=True)
        with (folder / "pets.pairs").open("w", newline="") as file:
            for name, contents in images.items():
                for number, content in enumerate(contents):
                    (folder / f"{name} {number}.png").write_bytes(content)
                    csv.writer(file).writerow([f"{name} {number}.png", name])
        return folder / "pets.pairs"


@pytest.fixture
def table(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(FORMATS, "file of pairs", SPEC)
    for number in range(12):
        photo(20, 16, number).save(tmp_path / f"{number}.png")
    path = tmp_path / "pets.pairs"
    path.write_text("".join(f"{number}.png,{('cat', 'dog')[number % 2]}\n" for number in range(12)))
    return path


def mptui(capsys, *arguments):
    """Run a command in this process; return its exit code, stdout and stderr."""
    capsys.readouterr()
    return _exit_code([str(argument) for argument in arguments], debug=False), *capsys.readouterr()


def test_a_run_trains_on_it_and_resumes(table, tmp_path, capsys, monkeypatch):
    data = ["--data", table, "--set", "data.image_size=32", "--runs-dir", tmp_path / "runs", "--json", *RUN]
    code, printed, _ = mptui(capsys, "run", *data, "--name", "toy", "--epochs", 1)
    summary = json.loads(printed)
    assert (code, summary["dataset"]) == (
        0, {"name": "pets.pairs", "train_samples": 10, "val_samples": 2, "classes": 2}
    )  # fmt: skip
    assert list((cache_folder() / "scans").iterdir())
    monkeypatch.setattr(scan, "check_all", lambda *_: pytest.fail("looked at again"))
    code, printed, _ = mptui(
        capsys, "resume", tmp_path / "runs" / "toy", "--epochs", 2, "--json", "--device", "cpu"
    )
    resumed = json.loads(printed)
    assert (code, resumed["epochs"], resumed["optimizer_steps"]) == (0, 2, 2 * summary["optimizer_steps"])
    assert not [warning for warning in resumed["warnings"] if warning["code"] == "data_changed"]


def test_it_is_planned_described_and_prepared(table, tmp_path, capsys):
    code, printed, _ = mptui(capsys, "run", "--dry-run", "--data", table, *RUN)
    assert (code, f'path = "{table}"' in printed) == (0, True)
    assert about_data(DataConfig(path=str(table))) == ("classification", f"✓ {table}: images in classes")
    code, printed, _ = mptui(capsys, "prepare", table, "--out", tmp_path / "out", "--image-size", 8, "--json")
    assert (code, json.loads(printed)["samples"]) == (0, 12)


def test_its_layout_is_among_those_that_are_named_and_its_faults_are_a_line(table, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"file of pairs: +DATA\.pairs: a path and a class a line"):
        kind_of(DataConfig(path=str(tmp_path / "empty")))
    table.write_bytes(b"\xff,cat\n")
    code, _, told = mptui(capsys, "run", "--data", table, "--runs-dir", tmp_path / "runs", *RUN)
    assert (code, "not a path and a class a line" in told, "Traceback" in told) == (3, True, False)
