"""best_classes.csv and best_confusion.csv: the best validation, by class."""

import csv
import io
from collections.abc import Iterable, Sequence

from mptui.engine.evaluate import ValidationResult

CLASSES, CONFUSION = "best_classes.csv", "best_confusion.csv"


def validation_texts(result: ValidationResult) -> dict[str, str]:
    """Return the files of a validation, by name: none for a task without classes.

    The metrics have a row for each class; the confusion matrix one for each cell that is not 0, the largest
    first, so that 1,000 classes have at most as many rows as samples.
    """
    texts = {}
    if result.per_class:
        names = list(next(iter(result.per_class.values())))
        columns = [[values[name] for name in names] for values in result.per_class.values()]
        header = ["class", *result.per_class]
        texts[CLASSES] = _text(header, zip(names, *columns, strict=True))
        if result.confusion is not None and len(names) == len(result.confusion):
            cells = result.confusion.nonzero().tolist()
            counted = [
                (names[true], names[other], int(result.confusion[true, other])) for true, other in cells
            ]
            counted.sort(key=lambda cell: -cell[2])
            texts[CONFUSION] = _text(["true", "predicted", "count"], counted)
    return texts


def _text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return lines.getvalue()
