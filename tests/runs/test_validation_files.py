import csv
import shutil

import numpy as np
import torch
from PIL import Image

from mptui.engine.evaluate import ValidationResult
from mptui.runs.store.directory import create_run, read_summary
from mptui.runs.store.files import CLASSES, CONFUSION, Records, validation_texts


def result(per_class, confusion):
    return ValidationResult(0.5, {"acc1": 0.5}, "acc1", per_class, confusion, 1.0)


def test_each_class_and_each_confusion_has_a_row():
    per_class = {"f1": {"cat": 0.75, 'a "dog", big': 0.5, "yak": None}}
    confusion = torch.tensor([[2, 1, 0], [7, 0, 0], [0, 0, 0]])
    texts = validation_texts(result(per_class, confusion))
    assert list(csv.reader(texts[CLASSES].splitlines())) == [
        *(["class", "f1"], ["cat", "0.75"], ['a "dog", big', "0.5"], ["yak", ""])
    ]
    assert list(csv.reader(texts[CONFUSION].splitlines())) == [
        ["true", "predicted", "count"],
        ['a "dog", big', "cat", "7"],
        ["cat", "cat", "2"],
        ["cat", 'a "dog", big', "1"],
    ]


def test_a_task_without_classes_has_no_files():
    assert validation_texts(result({}, None)) == {}


def test_a_run_that_is_killed_after_its_best_validation_has_it_in_the_summary(tmp_path):
    run = create_run(tmp_path, "fast", "resnet18", None)
    records, best = Records(run), result({}, None)
    records.handle(best.event(10, 2, best=True))
    records.write_best(best)
    assert read_summary(run)["best"] == {"epoch": 2, "metric": "acc1", "value": 0.5}
    records.close()


def test_grids_of_images_are_kept_up_to_a_number_and_a_full_disk_is_told(tmp_path):
    records = Records(tmp_path)
    pixels = np.full((3, 4, 4, 3), 200, np.uint8)
    for epoch in (1, 2, 9_999, 10_000):
        assert records.write_images(epoch, pixels, keep=2) == f"samples/epoch-{epoch:04}.png"
    assert sorted(path.name for path in (tmp_path / "samples").iterdir()) == [
        "epoch-10000.png",
        "epoch-9999.png",
    ]
    with Image.open(tmp_path / "samples" / "epoch-10000.png") as grid:
        assert grid.size == (9, 9)
    shutil.rmtree(tmp_path / "samples")
    (tmp_path / "samples").write_text("in the way")
    assert records.write_images(3, pixels, keep=2) == ""
    records.close()
