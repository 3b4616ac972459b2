"""A set of two hundred thousand files: the cost of opening it, and that it is scanned once."""

import os
import subprocess
import sys

import numpy as np
import psutil
import pytest
from PIL import Image

from mptui.config.schema import DataConfig
from mptui.data import scan as scanning
from mptui.data.open import open_dataset
from mptui.data.scan import Sample, check_all
from mptui.registry.names import SampleKind

FILES = 200_000
A_FOLDER = 1000

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Hard links to a few JPEGs, and a truncated one."""
    root = tmp_path_factory.mktemp("many")
    chance = np.random.default_rng(0)
    originals = [root / f"{number}.jpg" for number in range(50)]
    for number, path in enumerate(originals):
        Image.fromarray(chance.integers(0, 255, (40 + number, 60, 3), np.uint8)).save(path)
    for first in range(0, FILES, A_FOLDER):
        folder = root / "set" / f"class-{first:06}"
        folder.mkdir(parents=True)
        for number in range(first, first + A_FOLDER):
            os.link(originals[number % 50], folder / f"{number:06}.jpg")
    cut = root / "set" / "class-001000" / "001007.jpg"
    content = cut.read_bytes()
    cut.unlink()
    cut.write_bytes(content[:-50])
    return root / "set"


def opened(path):
    return open_dataset(
        DataConfig(path=str(path)),
        kind=SampleKind.CLASS,
        side=32,
        seed=0,
        on_progress=lambda done, total: None,
        should_stop=lambda: False,
        on_warning=lambda message: None,
    )


def test_it_is_looked_at_once_and_takes_little_memory(many, monkeypatch):
    process = psutil.Process()
    before = process.memory_info().rss
    first = opened(many)
    assert (len(first.train), len(first.val), len(first.problems)) == (159_999, 40_000, 1)
    assert (process.memory_info().rss - before) / FILES < 300
    looked_at: list[Sample] = []
    monkeypatch.setattr(
        scanning, "check_all", lambda chunks, *more: check_all(map(noted(looked_at), chunks), *more)
    )
    again = opened(many)
    assert [path for path, _ in looked_at] == [first.problems[0].path]
    assert np.array_equal(again.train.rows, first.train.rows)
    changed = many / "class-005000" / "005003.jpg"
    changed.unlink()
    changed.write_bytes(b"no image")
    assert {problem.path for problem in opened(many).problems} == {first.problems[0].path, str(changed)}
    assert str(changed) in [path for path, _ in looked_at]


def noted(looked_at):
    def note(chunk):
        looked_at.extend(chunk)
        return chunk

    return note


def test_an_interrupted_scan_goes_on_where_it_was(many, tmp_path):
    """After kill -9 in the middle of a scan, files recorded in the scan cache aren't checked again."""
    code = """
import os, sys
from mptui.data.scan import scan
from mptui.data.scan import scan as look
scan._REMEMBER_EVERY = 20_000
paths = sorted(os.path.join(folder, name) for folder, _, names in os.walk(sys.argv[1]) for name in names)
first = []
def at(done, total):
    first.append(done)
    if len(sys.argv) > 2 and done >= 50_000:
        os.kill(os.getpid(), 9)
look(paths, None, at, lambda: False)
print(first[0])
"""
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", code, str(many)]
    killed = subprocess.run([*command, "kill"], env=environ, check=False)
    assert killed.returncode == -9
    ended = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    assert int(ended.stdout) >= 40_000 - 2
