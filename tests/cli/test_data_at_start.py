"""What a run says of its data before the first epoch, and keeps in data.json."""

import json

import pytest

from mptui.cli.main import _exit_code
from tests.data.images import class_folders

RUN = ["--model", "small_cnn", "--workers", "0", "--device", "cpu", "--batch-size", "8", "--no-compile"]
RUN += ["--max-steps", "1", "--set", "data.image_size=32", "--set", "data.bad_sample_budget=0.5"]


@pytest.fixture
def ships(tmp_path):
    class_folders(tmp_path / "seas", {"train/ship": 22, "train/frog": 2, "val/ship": 1, "val/frog": 1})
    (tmp_path / "seas" / "train" / "frog" / "broken.png").write_bytes(b"no image")
    return tmp_path / "seas"


def test_a_run_says_in_four_lines_what_its_data_are_and_what_doctor_knows_of_them(ships, tmp_path, capsys):
    arguments = ["run", "--data", str(ships), "--runs-dir", str(tmp_path / "runs"), "--name", "r", *RUN]
    assert _exit_code(arguments, debug=False) == 0
    lines = capsys.readouterr().err.splitlines()
    start = next(
        number
        for number, line in enumerate(lines)
        if line.startswith("Data: seas: class folders, 24 training")
    )
    assert lines[start + 1] == "Classes: 2: frog 2, ship 22 training images"
    assert lines[start + 2].startswith("Images: 16 px")
    assert lines[start + 3].startswith("Left out: 1 (not an image")
    warned = [line for line in lines if "unbalanced classes: ship has 22 images, frog 2" in line]
    assert "--set data.sampler=balanced" in warned[0]
    assert any("validation images that were compared are training images, too" in line for line in lines)
    assert lines.index(warned[0]) < next(n for n, line in enumerate(lines) if "top-1" in line)
    kept = json.loads((tmp_path / "runs" / "r" / "data.json").read_text())["reading"]
    assert (kept["layout"], kept["train_samples"]) == ("class folders", 24)
    assert kept["left_out"][0]["count"] == 1


@pytest.mark.slow
def test_doctor_says_the_same(ships, capsys):
    _exit_code(["doctor", "--data", str(ships), "--json", *RUN[:8], *RUN[-2:]], debug=False)
    findings = [each["what"] for each in json.loads(capsys.readouterr().out)["findings"]]
    assert "Classes: 2: frog 2, ship 22 training images" in findings
    assert "unbalanced classes: ship has 22 images, frog 2" in findings
