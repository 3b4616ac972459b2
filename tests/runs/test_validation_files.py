import csv

import torch

from mptui.engine.evaluate import ValidationResult
from mptui.runs.store.directory import create_run, read_summary
from mptui.runs.store.writer import CLASSES, CONFUSION, Records, validation_texts


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
