"""Files of published weights, in the caches that all programs share."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mptui.errors import ConfigError
from mptui.text import clean

_HASH = re.compile(r"-([0-9a-f]{8,})\.")
"""The start of a file's SHA-256 in its name."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a hub.

    Attributes:
        place: Where the cache has it, or would have it.
        fetch: Downloads it into the cache; returns its path. May raise nearly anything.
        command: Downloads it elsewhere.
        to_copy: What to copy from there to here.
    """

    place: Path
    fetch: Callable[[], Path]
    command: str
    to_copy: str

    @property
    def cached(self) -> bool:
        """Whether it is there."""
        return self.place.is_file()

    def path(self) -> Path:
        """Return the path of the file, which is downloaded if it is not in the cache.

        Raises:
            ConfigError: It can't be downloaded.
        """
        if self.cached:
            return self.place
        try:
            return self.fetch()
        except Exception as error:  # of the network, the hub, the disk
            reason = clean(str(error).strip().partition("\n")[0], limit=120)
            raise ConfigError(
                f"model.weights = pretrained: {self.place} is missing, and can't be downloaded: "
                f"{reason or type(error).__name__}",
                hint=f"With a network: `{self.command}`; then copy {self.to_copy} to {self.place}",
            ) from error


def torch_hub_file(url: str) -> HubFile:
    """Return the file at `url`, in the cache of torch.hub (`$TORCH_HOME/hub/checkpoints`)."""
    import torch

    name = url.rpartition("/")[2]
    place = Path(torch.hub.get_dir()) / "checkpoints" / name

    def fetch() -> Path:
        place.parent.mkdir(parents=True, exist_ok=True)
        known = _HASH.search(name)
        torch.hub.download_url_to_file(url, str(place), known and known[1], progress=False)
        return place

    return HubFile(place, fetch, f"curl -LO {url}", name)


def hugging_face_file(repository: str, name: str) -> HubFile:
    """Return a file of a repository of the Hugging Face hub, in its cache (`$HF_HOME/hub`)."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    folder = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
    newest = folder / "refs" / "main"
    revision = newest.read_text().strip() if newest.is_file() else "main"
    place = folder / "snapshots" / revision / name

    def fetch() -> Path:
        disable_progress_bars()  # they would be drawn over the screen
        return Path(hf_hub_download(repository, name))

    return HubFile(place, fetch, f"hf download {repository} {name} --local-dir .", name)
