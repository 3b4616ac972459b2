"""Completes names of networks and data while they are typed, without blocking on the disk."""

import os

from textual.suggester import Suggester

from mptui.io.places import expanded
from mptui.registry.models import model_names
from mptui.tui.threads import in_background


class ModelSuggester(Suggester):
    """Completes names of networks, in the order of the registry: common ones come first."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        """Return the first name with this prefix."""
        return await in_background(lambda: next(iter(model_names(value)), None)) if value else None


class DataSuggester(Suggester):
    """Completes names of sets and folders."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        """Return the first set or folder with this prefix."""
        return await in_background(lambda: _completed(value)) if value else None


def _completed(value: str) -> str | None:
    from mptui.data.formats.named.torchvision_sets import NAMED
    from mptui.registry.samples import BUILT_IN

    named = [name for name in (BUILT_IN, *NAMED) if name.startswith(value)]
    return next(iter(named or _folders(value)), None)


def _folders(value: str) -> list[str]:
    """Return the folders with the prefix `value`; hidden ones only if the dot is typed."""
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
