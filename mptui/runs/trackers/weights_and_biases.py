"""A run of a Weights & Biases project."""

import json
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mptui.io.atomic import replace_file
from mptui.io.user_cache import load_json

NAME = "trackers.json"
"""File in the run directory with the ID of the run at W&B."""

_ID = re.compile(r"[A-Za-z0-9._+-]{1,128}")


class WeightsAndBiases:
    """Logs to W&B; the API key comes from wandb's own environment or login, never from a profile."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            project=config["logging"]["wandb_project"],
            name=config["logging"]["wandb_name"] or run.name,
            id=_run_id(run),
            resume="allow",
            dir=str(run),
            config=dict(config),
        )

    def log(self, scalars: dict[str, float], step: int) -> None:
        """Log the scalars of one step."""
        self._run.log(scalars, step=step)

    def close(self) -> None:
        """Upload buffered data and finish the run."""
        self._run.finish()


def _run_id(run: Path) -> str:
    """Return the run's ID at W&B, stored in its directory so that a resumed run continues there.

    Raises:
        OSError: It can't be written.
    """
    document = load_json(run / NAME)
    kept = document.get("wandb_id") if isinstance(document, dict) else None
    if isinstance(kept, str) and _ID.fullmatch(kept):
        return kept
    fresh = f"{run.name[:64]}-{secrets.token_hex(4)}"  # runs of the same name get different IDs
    replace_file(run / NAME, json.dumps({"version": 1, "wandb_id": fresh}).encode())
    return fresh
