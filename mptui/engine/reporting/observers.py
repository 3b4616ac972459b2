"""Hooks that look on: a run is the same without them."""

from functools import partial

from mptui.engine.context import HookFactory
from mptui.engine.reporting.advice import FirstLoss, MemorySamples, SpeedAdvice
from mptui.engine.reporting.first_batch import FirstBatch, OnData
from mptui.engine.reporting.pictures import ImageGrids, OnImages, OnPictures, PredictionPictures


def observers(
    *,
    on_images: OnImages | None = None,
    on_pictures: OnPictures | None = None,
    on_data: OnData | None = None,
) -> dict[str, HookFactory]:
    """Return them by name.

    Args:
        on_images: Called with the epoch and the images, [N, H, W, C], that the network has made; returns the
            file that has them, "" if it can't be written. None: none are made.
        on_pictures: Called with the pictures of validations; as `on_images`.
        on_data: Called with the first training images; as `on_images`.
    """
    return {
        "advice": SpeedAdvice,
        "images": partial(ImageGrids, on_images=on_images),
        "pictures": partial(PredictionPictures, on_pictures=on_pictures),
        "first batch": partial(FirstBatch, on_data=on_data),
        "memory samples": MemorySamples,
        "first loss": FirstLoss,
    }
