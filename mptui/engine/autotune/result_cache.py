"""On-disk cache of benchmark results, keyed by device, software and model shape."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from mptui.config.schema import RunConfig
from mptui.io.user_cache import cache_folder, load_json, save_json

MOST = 500
"""Maximum number of entries in the cache; the oldest are removed first."""


class CachedResult:
    """One entry of the cache.

    Args:
        kind: Kind of measurement; part of the file's name.
        facts: The key: everything that the results depend on, JSON-ready.
    """

    def __init__(self, kind: str, facts: Mapping[str, object]) -> None:
        self._facts = dict(facts)
        text = json.dumps(self._facts, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:24]
        self._path = cache_folder() / "measured" / f"{kind}-{digest}.json"

    def load(self) -> dict[str, Any]:
        """Return the cached value; empty if there is none."""
        document = load_json(self._path)
        if not isinstance(document, dict) or document.get("facts") != self._facts:
            return {}
        value = document.get("value")
        return value if isinstance(value, dict) else {}

    def save(self, value: Mapping[str, object]) -> None:
        """Store `value` (JSON-ready) for later runs; a cache that can't be written is ignored."""
        save_json(self._path, {"facts": self._facts, "value": dict(value)})
        with suppress(OSError):
            files = sorted(self._path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for old in files[:-MOST]:
                old.unlink(missing_ok=True)


def facts_of(config: RunConfig, device_name: str, num_classes: int) -> dict[str, object]:
    """Return the part of the key that all measurements share: device, software and shape."""
    frozen = {} if config.training.freeze is None else {"freeze": config.training.freeze}
    checkpointed = config.memory.activation_checkpointing
    return {
        **frozen,
        **({"activation_checkpointing": True} if checkpointed else {}),
        "device": device_name,
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "model": config.model.model_dump(exclude={"weights"}),
        "fp32_layers": list(config.precision.fp32_layers),
        "matmul": config.precision.matmul,
        "classes": num_classes,
        "side": config.data.image_size,
        "bands": config.data.channels,
        "batch_size": config.training.batch_size,
        "optimizer": config.training.optimizer,
    }
