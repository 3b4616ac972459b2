"""Averages what a network predicts over an image and its mirror images.

Shapes: B images, C channels, H and W pixels, K classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import log

import torch

from mptui.errors import ConfigError
from mptui.lab.use.trained import Trained
from mptui.registry.names import SampleKind
from mptui.registry.transforms import transforms_of

Network = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class MirrorView:
    """An image, transposed, mirrored left to right and mirrored top to bottom, in this order.

    Attributes:
        name: Its name in JSON documents.
    """

    name: str
    transposed: bool = False
    mirrored_x: bool = False
    mirrored_y: bool = False

    def of(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the view of square images, in the same memory format: code is compiled for one."""
        is_last = images_BCHW.is_contiguous(memory_format=torch.channels_last)
        view = images_BCHW.transpose(-1, -2) if self.transposed else images_BCHW
        view = view.flip(self._axes) if self._axes else view
        return view.contiguous(memory_format=torch.channels_last if is_last else torch.contiguous_format)

    def undone(self, planes_BKHW: torch.Tensor) -> torch.Tensor:
        """Return planes of the view as those of the image itself."""
        planes = planes_BKHW.flip(self._axes) if self._axes else planes_BKHW
        return planes.transpose(-1, -2) if self.transposed else planes

    @property
    def _axes(self) -> list[int]:
        return [-1] * self.mirrored_x + [-2] * self.mirrored_y


AS_IT_IS, _LEFT_RIGHT = MirrorView("as_it_is"), MirrorView("left_right", mirrored_x=True)
_TOP_BOTTOM = (
    MirrorView("top_bottom", mirrored_y=True),
    MirrorView("turned_180", mirrored_x=True, mirrored_y=True),
)
_TURNS = (
    MirrorView("turned_right", transposed=True, mirrored_x=True),
    MirrorView("turned_left", transposed=True, mirrored_y=True),
    MirrorView("transposed", transposed=True),
    MirrorView("transposed_180", transposed=True, mirrored_x=True, mirrored_y=True),
)


def mirror_views(trained: Trained) -> Sequence[MirrorView]:
    """Return the views to average over, the image itself first.

    They are the image and its mirror image; with those that `data.augment` has shown to the network: upside
    down by `vertical_flip`, all eight by `turn`.

    Raises:
        ConfigError: The outputs of the network are not scores of classes.
    """
    kind = trained.preprocessing.kind
    if kind is SampleKind.IMAGE:
        raise ConfigError(
            f"--mirror: a network for {trained.plan.task} predicts no classes to average",
            hint="leave --mirror out",
        )
    names = transforms_of(trained.config.data.augment, kind)
    views = (AS_IT_IS, _LEFT_RIGHT)
    if "turn" in names:
        return views + _TOP_BOTTOM + _TURNS
    return views + _TOP_BOTTOM if "vertical_flip" in names else views


@dataclass(frozen=True, slots=True)
class AveragedNetwork:
    """A network whose probabilities are the means over views of each image.

    Attributes:
        network: Returns logits, BK or BKHW.
        views: The views; of planes, those of each are turned back first.
    """

    network: Network
    views: Sequence[MirrorView]

    def __call__(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the logarithms of the mean probabilities, float32, in the shape of the logits."""
        # each view becomes a new tensor before the next pass, which may overwrite the outputs
        sums = reduce(torch.logaddexp, (self._log_p(view, images_BCHW) for view in self.views))
        return sums - log(len(self.views))

    def _log_p(self, view: MirrorView, images_BCHW: torch.Tensor) -> torch.Tensor:
        log_p = self.network(view.of(images_BCHW)).float().log_softmax(dim=1)
        return view.undone(log_p) if log_p.ndim > 2 else log_p
