"""The palette: what a screen can do now, and what it has by name; the pages of the documentation."""

from collections.abc import Iterable, Sequence

from textual.command import DiscoveryHit, Hits
from textual.system_commands import SystemCommandsProvider

from mptui.tui.keys import BoundKey

PAGES = {
    "alerts": "what an alert says, and what to do",
    "bands": "images with many bands or more than 8 bits",
    "custom_operations": "operations of your own under AMP",
    "data": "data: layouts that are read",
    "diffusion": "diffusion models",
    "failures": "what a failure does to a run",
    "fine_tuning": "fine-tuning",
    "forks": "forks: the same run in another precision",
    "glossary": "the words of screens and files",
    "gpu": "on a GPU",
    "guides": "what guides to mixed precision describe",
    "json": "documents of --json",
    "keys": "all keys",
    "learn": "learning mixed precision",
    "lists": "one list for everything else",
    "memory": "where the memory of a training goes",
    "optimizers": "optimizers",
    "own_code": "your own network, loss, data and transforms",
    "packed": "images packed into large files",
    "pictures": "pictures of a validation",
    "python": "mptui from Python",
    "recipes": "what suits a set, and how long to train",
    "scaling": "how a training scales",
    "several-gpus": "several GPUs, several nodes",
    "sharing": "to show a run to others",
    "speed": "what was measured",
    "trackers": "experiment trackers",
}
"""The pages of `docs`, and what they are about."""


MOST_USES = 50
"""Number of the last uses of the palette by which it is ordered."""


def by_use(keys: Iterable[BoundKey], used: Sequence[str]) -> list[BoundKey]:
    """Return keys, those first that were used most, of as many the last; then those of the bottom line."""
    last = {name: place for place, name in enumerate(used)}
    return sorted(keys, key=lambda key: (-used.count(key.id), -last.get(key.id, -1), not key.footer))


class Commands(SystemCommandsProvider):
    """The commands of the app, in its order: the frequent ones first."""

    async def discover(self) -> Hits:
        """Yield what is listed before a word is typed."""
        for command in self.app.get_system_commands(self.screen):
            if command.discover:
                yield DiscoveryHit(command.title, command.callback, help=command.help)
