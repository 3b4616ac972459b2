"""Computes the outputs of a trained network for files, in their order.

The files pass the loader of the validation set, so that workers, views and normalisation are the run's. The
results of a batch are copied to the host while the next one is computed.

Shapes: B images, K classes, H and W pixels.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.core.batch import Batch
from mptui.data.core.types import RGB, Dataset, Problem, Split
from mptui.data.loading.loader import Loader
from mptui.engine.reporting.late_reads import HostCopy
from mptui.events import Event
from mptui.lab.use.halving import HalvingBatches
from mptui.lab.use.trained import Trained
from mptui.runs.planning.build import LoaderMaker

_FEW = 8
"""Number of files up to which no worker is started: they are decoded before it would be ready."""
_LATE = 1
"""Batches whose results are on their way to the host while the next is computed."""

Result = Callable[[torch.Tensor, npt.NDArray[np.int64]], torch.Tensor]
"""Called with the scores of images and the indices of their files; returns a tensor on the device."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Results of some files.

    Attributes:
        indices: Indices of the files.
        kept: For each of them, whether the result is its own: a file that can't be read has none.
        result: The result on the host.
    """

    indices: npt.NDArray[np.int64]
    kept: npt.NDArray[np.bool_]
    result: torch.Tensor


def loader_of(trained: Trained, files: Split, on_bad: Callable[[Problem], None]) -> Loader:
    """Return a loader of files without labels, with the views of the run's validation.

    Args:
        trained: The run.
        files: The files.
        on_bad: Called once for each file that can't be read.
    """
    config, count = trained.config, len(files)
    training = config.training.model_copy(update={"batch_size": min(config.training.batch_size, count)})
    resolved = replace(trained.plan.resolved, config=config.model_copy(update={"training": training}))
    workers = 0 if count <= _FEW else trained.plan.workers
    plan = replace(trained.plan, resolved=resolved, workers=workers)
    kind, stored = trained.preprocessing.kind, trained.preprocessing.stored
    dataset = Dataset("", kind, trained.classes, train=files, val=files, pixels=stored or RGB)
    return LoaderMaker(plan, dataset, _unheard, on_bad, lambda: None).make(files, train=False, labelled=False)


def _unheard(_event: Event) -> None:
    pass


class Predictor:
    """Computes scores of images: logits, or with `mirror` the logarithm of the sum of both probabilities.

    Softmax turns either into probabilities.

    Args:
        trained: The run.
        mirror: Average the probabilities of each image and its mirror image.
        note: Called once if a batch does not fit into memory.
    """

    def __init__(self, trained: Trained, *, mirror: bool, note: Callable[[str], None]) -> None:
        self._trained, self._mirror = trained, mirror
        self.in_pieces = HalvingBatches(trained.device, note)

    def __call__(self, loader: Loader, result: Result) -> Iterator[Predicted]:
        """Yield the results of all files in order, each batch once the next one is on the device.

        Raises:
            DataError: Too many files can't be read.
            MemoryExhaustedError: Not even one image fits into memory.
        """
        waiting: deque[tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], HostCopy]] = deque()
        done = 0

        def compute(batch: Batch) -> None:
            nonlocal done
            indices = np.arange(done, done + batch.size)
            with torch.inference_mode():
                copy = HostCopy([result(self._scores(batch)[: batch.size], indices)])
            waiting.append((indices, batch.sample_indices == indices, copy))
            done += batch.size

        for window in loader.windows(epoch=0, accumulate=1):
            for batch in window:
                self.in_pieces(batch, compute)
            while len(waiting) > _LATE:
                yield _arrived(*waiting.popleft())
        while waiting:
            yield _arrived(*waiting.popleft())

    def _scores(self, batch: Batch) -> torch.Tensor:
        scores = self._outputs(batch.images_BCHW)
        if not self._mirror:
            return scores
        mirrored = self._outputs(batch.images_BCHW.flip(-1))
        if mirrored.ndim > 2:
            mirrored = mirrored.flip(-1)
        return torch.logaddexp(scores.log_softmax(dim=1), mirrored.log_softmax(dim=1))

    def _outputs(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        return outputs_of(self._trained, images_BCHW)


def outputs_of(trained: Trained, *inputs: torch.Tensor) -> torch.Tensor:
    """Return what a trained network makes of its inputs in the precision that it was opened with, as fp32."""
    with trained.precision.forward_context():
        outputs: torch.Tensor = trained.model(*inputs)
    return outputs.float()


def _arrived(indices: npt.NDArray[np.int64], kept: npt.NDArray[np.bool_], copy: HostCopy) -> Predicted:
    copy.wait()
    (result,) = copy
    return Predicted(indices, kept, result)


def probabilities(scores_BK: torch.Tensor, _indices: npt.NDArray[np.int64]) -> torch.Tensor:
    """Return the probability of each class; the result of a classifier."""
    return scores_BK.softmax(dim=1)
