"""Predictions are those of the network on the views of validation, one for each file that can be read."""

import io
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from mptui.data.masks import CLASS_FILE
from mptui.data.pictures import palette
from mptui.errors import DataError
from mptui.io.written_files import OutputFiles
from mptui.lab.use.evaluate import evaluate_run
from mptui.lab.use.predict import (
    CsvTable,
    JsonLines,
    PredictionRun,
    Predictor,
    RowList,
    find_inputs,
    loader_of,
    mask_of,
    probabilities,
)
from mptui.lab.use.trained import open_trained
from tests.data.images import photo, save_oriented

FEW = {"training.batch_size": ("--batch-size", 4), "data.bad_sample_budget": ("--bad-sample-budget", 0.2)}


def opened(run, flags=None):
    return open_trained(run, None, flags or FEW, note=lambda message: None)


def work_on(run, *inputs, mirror=False, flags=None, notes=None):
    files = find_inputs([str(path) for path in inputs])
    told = notes if notes is not None else []
    ignore = lambda done, total: None  # noqa: E731
    return PredictionRun(opened(run, flags), files, mirror, ignore, lambda problem: None, told.append)


def rows_of(work):
    rows = RowList(work.trained.classes)
    work.classes(rows)
    return rows.rows


def test_each_file_gets_the_class_that_validation_gives_it(classifier, pictures):
    rows = rows_of(work_on(classifier, pictures))
    assert [row["file"] for row in rows] == [str(path) for path in sorted(pictures.rglob("*.png"))]
    ignore = lambda done, total: None  # noqa: E731
    found = evaluate_run(opened(classifier), {}, listed=99, on_progress=ignore, note=lambda message: None)
    by_file = {row["file"]: row for row in rows}
    for sample in found.worst:
        row = by_file[sample.name]
        assert row["class"] == sample.predicted
        assert row["probability"] == pytest.approx(sample.confidence, rel=1e-3)
    for row in rows:
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-4)
        assert row["probabilities"][row["class"]] == max(row["probabilities"].values())


def test_broken_files_are_left_out_and_the_others_keep_their_rows(tmp_path, classifier, pictures):
    folder = tmp_path / "in"
    folder.mkdir()
    files = sorted(pictures.rglob("*.png"))[:10]
    for index, file in enumerate(files):
        shutil.copy(file, folder / f"{index}.png")
    (folder / "2.png").write_bytes(b"")
    (folder / "9.png").write_bytes(files[9].read_bytes()[:200])
    work = work_on(classifier, folder)
    rows = rows_of(work)
    assert [row["file"] for row in rows] == [str(folder / f"{index}.png") for index in range(10)]
    assert [index for index, row in enumerate(rows) if row["error"]] == [2, 9]
    assert rows[2]["class"] is None
    assert {problem.path for problem in work.problems} == {str(folder / "2.png"), str(folder / "9.png")}
    alone = rows_of(work_on(classifier, *(folder / f"{index}.png" for index in (3, 8))))
    assert [row["class"] for row in alone] == [rows[3]["class"], rows[8]["class"]]
    assert alone[0]["probability"] == pytest.approx(rows[3]["probability"], rel=1e-3)
    strict = {**FEW, "data.bad_sample_budget": ("--bad-sample-budget", 0.0)}
    with pytest.raises(DataError, match="can't be used"):
        rows_of(work_on(classifier, folder, flags=strict))


def test_a_mirror_image_has_the_same_averaged_probabilities(tmp_path, classifier):
    picture = photo(40, 40, seed=5)
    picture.save(tmp_path / "a.png")
    picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(tmp_path / "b.png")
    plain = rows_of(work_on(classifier, tmp_path))
    averaged = rows_of(work_on(classifier, tmp_path, mirror=True))
    for name in ("blue", "green", "red"):
        both = [row["probabilities"][name] for row in plain]
        assert averaged[0]["probabilities"][name] == pytest.approx(sum(both) / 2, rel=1e-3)
        assert averaged[1]["probabilities"][name] == pytest.approx(sum(both) / 2, rel=1e-3)


def test_masks_have_the_size_of_their_images_and_hold_numbers_of_classes(tmp_path, segmenter):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    photo(70, 50).save(tmp_path / "in" / "a.jpg")
    photo(31, 90).save(tmp_path / "in" / "a.png")
    save_oriented(tmp_path / "in" / "deep" / "turned.jpg", 6, photo(64, 48))
    work = work_on(segmenter, tmp_path / "in")
    written = list(work.masks(tmp_path / "out", OutputFiles(), single=False))
    names = [str(each.mask.relative_to(tmp_path / "out")) for each in written]
    assert names == ["masks/a.jpg.png", "masks/a.png.png", "masks/deep/turned.png"]
    for each, size in zip(written, [(70, 50), (31, 90), (64, 48)], strict=True):
        with Image.open(each.mask) as mask, Image.open(each.overlay) as drawn:
            assert mask.size == drawn.size == size
            numbers = np.asarray(mask)
        assert numbers.max() < len(work.trained.classes)
        assert sum(each.shares.values()) == pytest.approx(1)
    assert (tmp_path / "out" / "masks" / CLASS_FILE).read_text().startswith("background = 0\n")


def test_a_mask_is_the_argmax_of_logits_interpolated_to_the_size_of_the_image():
    torch.manual_seed(0)
    scores_KHW = torch.nn.functional.interpolate(torch.randn(1, 3, 4, 4), size=(16, 16), mode="bicubic")[0]
    for size in ((50, 37), (16, 16), (9, 5)):
        wide = torch.nn.functional.interpolate(
            scores_KHW[None], size=size, mode="bilinear", align_corners=False
        )
        top = wide[0].topk(2, dim=0).values
        clear = (top[0] - top[1]) > 1e-5
        assert torch.equal(mask_of(scores_KHW, size)[clear], wide[0].argmax(dim=0).byte()[clear])


def test_masks_of_few_pixels_at_a_time_are_the_same(monkeypatch):
    scores_KHW = torch.randn(3, 8, 8)
    whole = mask_of(scores_KHW, (40, 30))
    monkeypatch.setattr("mptui.lab.use.predict._NUMBERS_AT_ONCE", 500)
    assert torch.equal(mask_of(scores_KHW, (40, 30)), whole)


def test_the_background_is_black_and_other_classes_are_not():
    assert palette(("background", "cat"))[0].tolist() == [0, 0, 0]
    assert palette(("cat", "dog"))[0].tolist() != [0, 0, 0]
    assert len({tuple(colour) for colour in palette(("background", "cat")).tolist()}) == 256


def test_a_spreadsheet_takes_no_name_of_a_class_or_a_file_for_a_formula():
    stream = io.StringIO()
    CsvTable(stream, ("=HYPERLINK(A1)", "-1"), "fp32").write("@home.png", (0.75, 0.25))

    assert stream.getvalue().splitlines()[1].startswith("'@home.png,'=HYPERLINK(A1),0.75")


def test_tables_hold_the_same_numbers():
    csv, lines = io.StringIO(), io.StringIO()
    classes = ("a", 'b "c", d')
    for table in (CsvTable(csv, classes, "bf16"), JsonLines(lines, classes, "bf16")):
        table.write("x,\n\x1b.png", [0.25, 0.75])
        table.write_error("y.png", "truncated")
    assert csv.getvalue().splitlines() == [
        'file,class,probability,p_a,"p_b ""c"", d",precision,error',
        '"x,\\x0a\\x1b.png","b ""c"", d",0.75,0.25,0.75,bf16,',
        "y.png,,,,,,truncated",
    ]
    assert [json.loads(line)["error"] for line in lines.getvalue().splitlines()] == [None, "truncated"]
    assert '"probabilities": {"a": 0.25' in lines.getvalue()


def test_files_folders_and_patterns_are_found_once_each(tmp_path):
    for name in ("b/2.png", "b/10.png", "a/1.jpg", "a/note.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        photo(8, 8).save(tmp_path / name) if not name.endswith("txt") else (tmp_path / name).write_text("")
    found = find_inputs([f"{tmp_path}/b", f"{tmp_path}/**/*.png", f"{tmp_path}/a/1.jpg"])
    assert [found.relative(index) for index in range(len(found.paths))] == ["b/10.png", "b/2.png", "a/1.jpg"]
    for missing in ("nothing", "*.webp"):
        with pytest.raises(DataError, match="no such file"):
            find_inputs([f"{tmp_path}/{missing}"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images"):
        find_inputs([str(tmp_path / "empty")])


def test_results_arrive_while_the_next_batch_is_computed(classifier, pictures):
    trained = opened(classifier)
    files = find_inputs([str(pictures)])
    forwards: list[int] = []
    trained.model.register_forward_hook(lambda *_: forwards.append(len(forwards)))
    predictor = Predictor(trained, mirror=False, note=lambda message: None)
    with loader_of(trained, files.split(None), lambda problem: None) as loader:
        seen = [len(forwards) for _ in predictor(loader, probabilities)]
    assert seen == [2, 3, 4, 5, 6, 6]
