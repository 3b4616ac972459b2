"""A network of one layer, `one_layer`, for tests that count its memory: an operation takes as long to count
in any network as in a small one."""

import pytest
from torch import nn

from mptui.registry.models import MODELS, ModelSpec
from mptui.registry.tasks import SEGMENTATION

NAME = "one_layer"


def register(patch: pytest.MonkeyPatch) -> None:
    """Make it a network of this process as long as `patch` holds; width and depth are ignored."""
    spec = ModelSpec(
        task=SEGMENTATION,
        build=lambda num_classes, **_: nn.Conv2d(3, num_classes, 1),
        settings=("width", "depth"),
    )
    patch.setitem(MODELS, NAME, spec)
