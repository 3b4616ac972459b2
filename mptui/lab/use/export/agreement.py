"""Compares a loaded network with the run's on real images, at several batch sizes.

Exporters can return a network that runs and is wrong (pytorch issues 169178 and 166797), so that only the
outputs tell.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import torch

from mptui.lab.use.evaluation.evaluation_data import EvaluationData
from mptui.lab.use.export.file_formats import Inputs, Network
from mptui.lab.use.trained import Trained
from mptui.registry.samples import SampleKind
from mptui.runs.planning.build import LoaderMaker

BATCH_SIZES = (1, 7, 32)
LOADED = sum(BATCH_SIZES)
"""Images that are loaded at once."""
TOLERANCE = 1e-4
"""Largest difference of an output, as a share of the largest output if that is above 1."""


@dataclass(slots=True)
class Agreement:
    """How far two networks agree.

    Attributes:
        images: Number of images compared; those of a small set are counted again.
        difference: Largest absolute difference of an output; NaN if an output is NaN in one of them.
        largest: Largest absolute output of the run's network.
        other_classes: Number of images (with masks: of pixels) to which the two give different classes.
    """

    images: int = 0
    difference: float = 0.0
    largest: float = 0.0
    other_classes: int = 0

    @property
    def tolerance(self) -> float:
        """The largest difference that is accepted."""
        return TOLERANCE * max(1.0, self.largest)

    @property
    def close(self) -> bool:
        """Whether the difference is within the tolerance; not with NaN."""
        return self.difference <= self.tolerance


def compare(
    predict: Callable[..., torch.Tensor],
    network: Network,
    batches: Iterator[Inputs],
    *,
    images: int,
    has_classes: bool,
    on_progress: Callable[[int, int], None],
) -> Agreement:
    """Compare the outputs of the two for `images` images.

    Args:
        predict: Returns the outputs of the run's network, as `mptui predict` computes them in the file's
            precision.
        network: The loaded network.
        batches: Inputs of `LOADED` images each.
        images: Images to compare.
        has_classes: Whether axis 1 of the outputs is that of the classes.
        on_progress: Called with (images done, images).
    """
    found = Agreement()
    with torch.inference_mode():
        for inputs in _pieces(batches, images):
            ours, theirs = predict(*inputs), network(inputs)
            difference = (ours - theirs).abs().max().item()
            found.images += len(ours)
            # max() of Python would drop a NaN
            found.difference = difference if not difference <= found.difference else found.difference
            found.largest = max(found.largest, ours.abs().max().item())
            if has_classes:
                found.other_classes += int((ours.argmax(1) != theirs.argmax(1)).sum())
            on_progress(found.images, images)
            if not found.difference <= found.tolerance:
                break
    return found


def _pieces(batches: Iterator[Inputs], images: int) -> Iterator[Inputs]:
    """Cut batches of `LOADED` images into batches of `BATCH_SIZES`, until there are `images` of them."""
    left = images
    for inputs in batches:
        for pieces in zip(*(torch.split(tensor, list(BATCH_SIZES)) for tensor in inputs), strict=True):
            yield tuple(piece[:left] for piece in pieces)
            left -= min(left, len(pieces[0]))
            if not left:
                return


def real_inputs(
    trained: Trained, data: EvaluationData, on_bad: Callable[[object], None]
) -> Generator[Inputs]:
    """Yield inputs of `LOADED` images, in float32 on the CPU.

    Where fewer are left they are repeated. `trained` is opened with a batch size of `LOADED`.
    """
    maker = LoaderMaker(trained.plan, data.dataset, lambda event: None, on_bad, lambda: None)
    with maker.make(data.split, train=False) as loader:
        for window in loader.windows(epoch=0, accumulate=1):
            for batch in window:
                rows = torch.arange(LOADED) % batch.size
                yield tuple(tensor[rows].contiguous() for tensor in batch.inputs)


def has_classes(kind: SampleKind) -> bool:
    """Whether axis 1 of the outputs is that of the classes."""
    return kind is not SampleKind.IMAGE
