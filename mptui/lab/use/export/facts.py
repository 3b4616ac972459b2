"""What a user of an exported network must know: classes, input, origin, metrics, licences."""

import json
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

from torch import nn

from mptui.codec import finite_json
from mptui.lab.use.course import Course
from mptui.lab.use.export.preprocessing_code import code_of, words_of
from mptui.lab.use.trained import Trained

NOT_STATED = "not stated"
_VERSION = 1


def facts_of(trained: Trained, course: Course, licence: str | None) -> dict[str, Any]:
    """Return the facts of a network, JSON-ready.

    Args:
        trained: The run.
        course: Its course.
        licence: The SPDX identifier under which the file will be given away; None: not stated.
    """
    config = trained.config
    facts: dict[str, Any] = finite_json(
        {
            "version": _VERSION,
            "task": trained.plan.task,
            "model": config.model.model_dump(exclude_none=True, exclude_defaults=True),
            "classes": list(trained.classes),
            "input": {
                **words_of(trained),
                "code": code_of(trained),
            },
            "run": {
                "name": trained.run.name,
                "checkpoint": trained.checkpoint,
                "step": trained.step,
                "precision": course.precision,
                "ema": config.training.ema_decay is not None,
                "data": config.data.name if config.data.path is None else Path(config.data.path).name,
            },
            "metrics": course.measured or {},
            "licences": licences_of(trained.model, course.weights, licence),
        }
    )
    return facts


def as_text(facts: dict[str, Any]) -> str:
    """Return facts as they are stored in a file."""
    return json.dumps(facts, ensure_ascii=True, allow_nan=False, sort_keys=True)


def licences_of(model: nn.Module, weights: str | None, licence: str | None) -> dict[str, str]:
    """Return the licences that bear on an exported network, as far as they are known.

    Args:
        model: The network.
        weights: What its weights were at the start, as `model.weights`.
        licence: The licence of the file.
    """
    package = type(model).__module__.partition(".")[0]
    return {
        "network": f"{package}: {_licence_of_package(package)}",
        "initial weights": "random" if weights is None else f"{Path(weights).name}: {NOT_STATED}",
        "data": NOT_STATED,
        "this file": licence or NOT_STATED,
    }


def _licence_of_package(package: str) -> str:
    try:
        entries = metadata(package)
    except PackageNotFoundError:
        return NOT_STATED
    names = [name for name in ("License-Expression", "License") if name in entries]
    return entries[names[0]].strip().splitlines()[0][:80] if names else NOT_STATED
