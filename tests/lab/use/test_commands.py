"""`mptui predict` and `mptui evaluate` from the command line."""

import csv
import json
import os
import shutil

import pytest

from mptui.processes.start import MAIN
from mptui.runs.store.directory import read_summary
from tests.made.json_documents import checked
from tests.program import DEADLINE_S, run_to_end, server

pytestmark = pytest.mark.slow


def mptui(*arguments):
    return run_to_end(*arguments)


def test_a_thousand_files_of_which_ten_are_broken_give_990_rows_and_ten_errors(
    tmp_path, classifier, pictures
):
    folder = tmp_path / "in"
    folder.mkdir()
    files = sorted(pictures.rglob("*.png"))
    for index in range(1000):
        shutil.copy(files[index % len(files)], folder / f"{index:04}.png")
    broken = [folder / f"{index:04}.png" for index in range(7, 1000, 100)]
    for path in broken:
        path.write_bytes(path.read_bytes()[:100])
    ended = mptui("predict", classifier, folder, "--batch-size", 64)
    assert ended.returncode == 0, ended.stderr
    rows = list(csv.DictReader(ended.stdout.splitlines()))
    assert [row["file"] for row in rows] == sorted(map(str, folder.iterdir()))
    assert [row["file"] for row in rows if row["error"]] == list(map(str, broken))
    assert all((row["class"] == "") == bool(row["error"]) for row in rows)
    assert {row["precision"] for row in rows if not row["error"]} == {"fp32"}
    named = [line for line in ended.stderr.splitlines() if line.startswith("left out ")]
    assert len(named) == 10
    assert all(any(str(path) in line for line in named) for path in broken)
    assert "990 of 1,000 files, 10 left out" in ended.stderr

    out = tmp_path / "out" / "classes.jsonl"
    strict = mptui("predict", classifier, folder, "--out", out, "--bad-sample-budget", 0.005)
    assert strict.returncode == 3
    assert "data.bad_sample_budget allows 5" in strict.stderr
    assert list(out.parent.iterdir()) == []


def test_every_readable_file_is_answered_and_strict_says_that_others_are_not(tmp_path, classifier, pictures):
    folder = tmp_path / "in"
    folder.mkdir()
    for index, file in enumerate(sorted(pictures.rglob("*.png"))[:6]):
        shutil.copy(file, folder / f"{index}.png")
    for index in (1, 4):
        (folder / f"{index}.png").write_bytes(b"")
    (code, document), (strict, same) = (
        (ended.returncode, json.loads(ended.stdout))
        for ended in (mptui("predict", classifier, folder, "--json", *more) for more in ([], ["--strict"]))
    )
    assert (code, strict) == (0, 3)
    assert [bool(row["error"]) for row in document["predictions"]] == [n in (1, 4) for n in range(6)]
    assert same["predictions"] == document["predictions"]


def test_the_precision_is_chosen_and_named(classifier, pictures):
    told = json.loads(mptui("predict", classifier, pictures, "--precision", "bf16", "--json").stdout)
    plain = json.loads(mptui("predict", classifier, pictures, "--json").stdout)
    assert (told["precision"], plain["precision"]) == ("bf16", "fp32")
    assert told["predictions"] != plain["predictions"]
    measured = json.loads(mptui("evaluate", classifier, "--precision", "bf16", "--json").stdout)
    assert measured["precision"] == "bf16"


def test_predictions_and_measures_as_one_json_document(tmp_path, classifier, segmenter, pictures):
    found = mptui("predict", classifier, f"{pictures}/*/0.png", "--json", "--mirror")
    document = checked("predict", json.loads(found.stdout))
    assert [row["file"] for row in document["predictions"]] == [
        str(pictures / name / "0.png") for name in ("blue", "green", "red")
    ]
    assert (document["predicted"], document["left_out"], document["mirror"]) == (3, [], True)
    assert document["views"] == ["as_it_is", "left_right"]

    drawn = mptui("predict", segmenter, pictures / "red", "--out", tmp_path / "masks", "--json")
    document = json.loads(drawn.stdout)
    assert document["predicted"] == len(document["predictions"]) == 8
    assert (tmp_path / "masks" / "masks" / "0.png").exists()
    assert (tmp_path / "masks" / "overlays" / "0.png").exists()

    ended = mptui("evaluate", classifier, "--checkpoint", "last", "--json")
    measured = checked("evaluate", json.loads(ended.stdout))
    final = read_summary(classifier)["final"]
    assert {"val_loss": measured["val_loss"], **measured["metrics"]} == {
        key: value for key, value in final.items() if key in measured["recorded"]
    }
    assert "as the run measured" in mptui("evaluate", classifier).stdout

    ended = mptui("evaluate", classifier, "--checkpoint", "last", "--mirror", "--json")
    averaged = checked("evaluate", json.loads(ended.stdout))
    assert (measured["views"], averaged["views"]) == (["as_it_is"], ["as_it_is", "left_right"])
    assert averaged["without_mirror"]["metrics"] == measured["metrics"]
    assert averaged["val_loss"] != measured["val_loss"]
    assert min(averaged["images_per_second"], averaged["without_mirror"]["images_per_second"]) > 0

    ended = mptui("export", classifier, "--out", tmp_path / "export", "--json")
    exported = checked("export", json.loads(ended.stdout))
    assert (exported["format"], exported["precision"]) == ("safetensors", "fp32")


def test_precisions_side_by_side_in_a_table_and_in_json(segmenter):
    asked = ("evaluate", segmenter, "--checkpoint", "last", "--precisions")
    table = mptui(*asked, "fp32,bf16")
    assert table.returncode == 0, table.stderr
    heading, exact, rounded = (line.split() for line in table.stdout.splitlines()[1:4])
    place = heading.index("val_loss")
    assert (exact[0], rounded[0]) == ("fp32", "bf16")
    loss = read_summary(segmenter)["final"]["val_loss"]
    assert float(exact[place]) == pytest.approx(loss, abs=1e-5)
    assert rounded[place] != exact[place]

    ended = mptui(*asked, "bf16", "--json")
    document = checked("evaluate --precisions", json.loads(ended.stdout))
    (only,) = document["precisions"]
    assert (document["run"], document["task"], only["precision"]) == ("segmenter", "segmentation", "bf16")
    assert f"{only['val_loss']:.5f}" == rounded[place]


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["predict", "RUN", "gone.png"], 3, "gone.png"),
        (["predict", "nothing", "."], 6, "nothing"),
        (["predict", "RUN", "DATA", "--checkpoint", "first"], 2, "first"),
        (["predict", "RUN", "DATA", "--device", "cuda:9"], 2, "cuda:9"),
        (["predict", "MASKS", "DATA"], 2, "--out DIR"),
        (["predict", "MASKS", "DATA", "--out", "one.png"], 2, "24 images"),
        (["evaluate", "RUN", "--data", "./gone"], 3, "gone"),
        (["evaluate", "RUN", "--data", "shapes"], 3, "only in the data: circle"),
    ],
)
def test_a_mistake_gets_one_line_a_remedy_and_its_code(
    arguments, code, named, classifier, segmenter, pictures
):
    words = {"RUN": classifier, "MASKS": segmenter, "DATA": pictures}
    ended = mptui(*(words.get(word, word) for word in arguments))
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert named in ended.stderr
    assert ended.stdout == ""


def test_a_reader_that_has_read_enough_ends_predictions_as_by_its_signal(tmp_path, classifier, pictures):
    read, write = os.pipe()
    os.close(read)  # as `head` leaves it
    words = map(str, ("predict", classifier, pictures))
    with (tmp_path / "stderr").open("wb") as told:
        process = server().start(
            MAIN, *words, streams=(None, write, told.fileno()), environ=dict(os.environ), folder=str(tmp_path)
        )
    os.close(write)
    assert process.wait(DEADLINE_S) == 141
    assert "Traceback" not in (tmp_path / "stderr").read_text()
