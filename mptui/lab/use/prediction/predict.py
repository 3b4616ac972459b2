"""Predicts files with a trained run: classes into a table, or masks into a folder."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mptui.data.core.types import Problem
from mptui.data.formats.splits import FileSplit
from mptui.data.loading.loader import Loader
from mptui.io.written_files import OutputFiles
from mptui.lab.use.prediction.inputs import InputFiles
from mptui.lab.use.prediction.mask_files import MaskFiles, WrittenMask
from mptui.lab.use.prediction.masks import MaskMaker
from mptui.lab.use.prediction.predictor import Predictor, loader_of, probabilities
from mptui.lab.use.prediction.tables import PredictionTable
from mptui.lab.use.trained import Trained

OnProgress = Callable[[int, int], None]


@dataclass(slots=True)
class PredictionRun:
    """Predictions for files.

    Args:
        trained: The run.
        files: The files.
        mirror: Average the probabilities of each image and its mirror image.
        on_progress: Called with (files done, all files).
        on_bad: Called once for each file that can't be read.
        note: Called with what a person should know.

    Attributes:
        done: Number of files with a prediction.
        problems: Files that could not be read.
        seconds: Duration from the first batch on.
    """

    trained: Trained
    files: InputFiles
    mirror: bool
    on_progress: OnProgress
    on_bad: Callable[[Problem], None]
    note: Callable[[str], None]
    done: int = 0
    problems: list[Problem] = field(default_factory=list)
    seconds: float = 0.0
    _reasons: dict[str, str] = field(default_factory=dict)

    def classes(self, table: PredictionTable) -> None:
        """Write the class probabilities of all files to a table, in their order; or why one has none.

        Raises:
            DataError: No file can be read, or more can't than a person allows.
            MemoryExhaustedError: Not even one image fits into memory.
        """
        started = time.perf_counter()
        with loader_of(self.trained, self._samples(), self._leave_out) as loader:
            self.classes_from(loader, table)
        self.seconds = time.perf_counter() - started

    def classes_from(self, loader: Loader, table: PredictionTable) -> None:
        """Write the class probabilities of the samples of a loader; raises as `classes`."""
        predictor = Predictor(self.trained, mirror=self.mirror, note=self.note)
        for predicted in predictor(loader, probabilities):
            rows = predicted.result.tolist()
            for index, kept, row in zip(predicted.indices.tolist(), predicted.kept, rows, strict=True):
                if kept:
                    table.write(self.files.paths[index], row)
                else:
                    path = self.files.paths[index]
                    table.write_error(path, self._reasons.get(path, "can't be read"))
            self._count(predicted.kept.sum(), int(predicted.indices[-1]) + 1)

    def masks(self, folder: Path, output: OutputFiles, *, single: bool) -> Iterator[WrittenMask]:
        """Write the masks of all files; yield what is on disk, in the order of the files.

        Raises:
            ConfigError: A mask would replace a file of another origin: nothing is written.
            DataError: No file can be read, or more can't than a person allows.
            DiskError: A mask can't be written.
            MemoryExhaustedError: Not even one image fits into memory.
        """
        started = time.perf_counter()
        predictor = Predictor(self.trained, mirror=self.mirror, note=self.note)
        with (
            MaskMaker(self.files, as_stored=self.trained.preprocessing.stored is not None) as maker,
            MaskFiles(folder, self.files, self.trained.classes, output, single=single) as written,
            loader_of(self.trained, self._samples(), self._leave_out) as loader,
        ):
            for predicted in predictor(loader, maker):
                indices = predicted.indices
                found = zip(
                    indices.tolist(), predicted.kept, maker.taken(predicted.result, indices), strict=True
                )
                for index, kept, mask_HW in found:
                    if kept:
                        yield from written.write(index, mask_HW)
                self._count(predicted.kept.sum(), int(indices[-1]) + 1)
            yield from written.rest()
        self.seconds = time.perf_counter() - started

    def _samples(self) -> FileSplit:
        return self.files.split(self.trained.preprocessing.stored)

    def _count(self, kept: int, place: int) -> None:
        self.done += int(kept)
        self.on_progress(place, len(self.files.paths))

    def _leave_out(self, problem: Problem) -> None:
        self.problems.append(problem)
        self._reasons[problem.path] = problem.reason
        self.on_bad(problem)
