"""The primary metric of trained runs, image by image: what each validation image adds to it.

The last checkpoint of a run is validated once more. A metric that is no mean over images, such as the IoU, is
taken apart by the jackknife: an image's value is that of which the metric without the image lacks 1/N (B.
Efron, "The jackknife, the bootstrap and other resampling plans", SIAM 1982). Of the accuracy, these are 1 for
an image that is right and 0 for others.

Shapes: S seeds, N validation images.
"""

from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.core.batch import Batch
from mptui.engine.evaluate import evaluate
from mptui.engine.guards.microbatch import part
from mptui.lab.use.evaluation.evaluation_data import open_samples
from mptui.lab.use.halving import HalvingBatches
from mptui.lab.use.trained import open_trained
from mptui.runs.planning.build import LoaderMaker
from mptui.runs.store.directory import LAST
from mptui.tasks.base import Task

UNITS = 1000
"""Largest number of units of a metric with many sums, such as a confusion matrix: images share them."""
_FEW_SUMS = 64

Note = Callable[[str], None]


def differences_by_image(
    pairs: Sequence[tuple[Path, Path]],
    metric: str,
    *,
    trust_code: bool,
    note: Note,
    check_stop: Callable[[], None],
) -> npt.NDArray[np.float64] | None:
    """Return by seed and image how much a precision's metric is above FP32's, differences_SN.

    Args:
        pairs: Run directories of the precision and of FP32, by seed; all were validated on the same images.
        metric: The primary metric.
        trust_code: Whether the person's own code may run.
        note: Called with what a person should know.
        check_stop: Called before each batch.

    Returns:
        The differences; None if the metric can't be computed image by image, or not of equally many images.
    """
    values = [
        [_values(run, metric, trust_code=trust_code, note=note, check_stop=check_stop) for run in pair]
        for pair in pairs
    ]
    if len({len(each) for pair in values for each in pair}) != 1 or not len(values[0][0]):
        return None
    return np.stack([ours - theirs for ours, theirs in values])


def _values(
    run: Path, metric: str, *, trust_code: bool, note: Note, check_stop: Callable[[], None]
) -> npt.NDArray[np.float64]:
    """Return the values of a run's validation images; empty if its metrics have no sums that add up."""
    trained = open_trained(run, LAST, note=note, trust_code=trust_code)
    data = open_samples(trained, {}, on_progress=lambda *_: None, note=note)
    sums = SumsByImage(trained.task, trained.device)
    maker = LoaderMaker(trained.plan, data.dataset, lambda _: None, lambda _: None, lambda: None)
    with maker.make(data.split, train=False) as loader:
        evaluate(
            trained.model,
            trained.task,
            loader,
            trained.precision,
            trained.device,
            on_progress=lambda _: None,
            check_stop=check_stop,
            in_pieces=HalvingBatches(trained.device, note),
            outputs_stay=True,
            watch=(sums.add,),
        )
    return sums.values(metric)


class SumsByImage:
    """The sums of a task's metrics, image by image.

    Args:
        task: The task.
        device: Where outputs are.
    """

    def __init__(self, task: Task, device: torch.device) -> None:
        self._metrics = task.metrics(device, training=True)
        self._on_host = task.metrics(torch.device("cpu"), training=True)
        self._sums: list[dict[str, torch.Tensor]] = []
        self._images = 0

    def add(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Add the images of a batch. Never syncs."""
        for row in range(batch.size):
            self._metrics.reset()
            self._metrics.update(outputs[row : row + 1], part(batch, row, row + 1))
            self._add(self._metrics.state_dict())
        self._metrics.reset()

    def _add(self, sums: dict[str, torch.Tensor]) -> None:
        place = self._images % UNITS
        self._images += 1
        is_small = sum(tensor.numel() for tensor in sums.values()) <= _FEW_SUMS
        if is_small or self._images <= UNITS:
            self._sums.append(sums)
        else:
            for name, tensor in self._sums[place].items():
                tensor += sums[name]

    def values(self, metric: str) -> npt.NDArray[np.float64]:
        """Return the value of each image, fractions of 1; empty if they are unknown. Waits for the device."""
        count = len(self._sums)
        if count < 2:
            return np.empty(0)
        stacked = {name: torch.stack([each[name] for each in self._sums]).cpu() for name in self._sums[0]}
        totals = {name: tensor.sum(0) for name, tensor in stacked.items()}
        whole = self._computed(totals, metric)
        without = [
            self._computed({name: totals[name] - stacked[name][n] for name in totals}, metric)
            for n in range(count)
        ]
        values = count * whole - (count - 1) * np.array(without)
        return values if np.isfinite(values).all() else np.empty(0)

    def _computed(self, sums: dict[str, torch.Tensor], metric: str) -> float:
        self._on_host.load_state_dict(sums)
        return self._on_host.compute().get(metric, nan)
