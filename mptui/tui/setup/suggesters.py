"""What may be meant while a network or a place of data is typed. Nothing here waits for a disk."""

import os
from collections.abc import Sequence

from textual.suggester import Suggester

from mptui.io.places import expanded
from mptui.tui.threads import in_background

COMMON_MODELS = (
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "unet",
    "vit_b_16",
    "convnext_tiny",
    "efficientnet_b0",
    "efficientnet_v2_s",
    "mobilenet_v3_large",
    "swin_t",
    "densenet121",
)


class ModelSuggester(Suggester):
    """Completes names of networks: the common ones at once, all when they are known."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self.names: Sequence[str] = COMMON_MODELS

    async def get_suggestion(self, value: str) -> str | None:
        """Return the first name that begins so, a common one before others."""
        return next((n for n in (*COMMON_MODELS, *self.names) if value and n.startswith(value)), None)


class DataSuggester(Suggester):
    """Completes names of sets and folders."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        """Return the first set or folder that begins so."""
        return await in_background(lambda: _completed(value)) if value else None


def _completed(value: str) -> str | None:
    from mptui.data.formats.open import BUILT_IN
    from mptui.data.formats.torchvision_sets import NAMED

    named = [name for name in (BUILT_IN, *NAMED) if name.startswith(value)]
    return next(iter(named or _folders(value)), None)


def _folders(value: str) -> list[str]:
    """The folders whose path begins with `value`, hidden ones only where that is written."""
    head, tail = os.path.split(value)  # keeps the text as it was typed
    try:
        with os.scandir(expanded(head or ".")) as entries:
            names = [
                entry.name
                for entry in entries
                if entry.name.startswith(tail)
                and entry.name.isprintable()
                and (tail.startswith(".") or not entry.name.startswith("."))
                and entry.is_dir()
            ]
    except (OSError, ValueError):
        return []
    return [f"{value.removesuffix(tail)}{name}{os.sep}" for name in sorted(names)]
