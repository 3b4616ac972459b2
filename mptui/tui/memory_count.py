"""The memory of a run, counted in a child process: to import torch takes the interpreter for itself."""

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mptui.config.keys import with_values
from mptui.config.resolve import resolve
from mptui.config.schema import RunConfig
from mptui.errors import ConfigError, MptuiError
from mptui.events import RunStarted
from mptui.processes.start import start
from mptui.registry.own_code import is_own
from mptui.runs.store.directory import CONFIG

_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True, slots=True)
class CountedMemory:
    """What a `Footprint` says of the peak of a step, in bytes.

    Attributes:
        batch_size: Samples of a micro-batch.
        allocated: Tensors and workspaces.
        parts: All of it, as `Footprint.parts`.
        by_layer: The activations at the peak by layer.
        per_sample: Each further sample of a micro-batch.
    """

    batch_size: int
    allocated: int
    parts: Mapping[str, int]
    by_layer: Mapping[str, int]
    per_sample: float


def count_memory(run: Path, started: RunStarted, precision: str) -> CountedMemory:
    """Count the memory of a run from its directory, in the precision in use; what was counted is kept.

    Raises:
        MptuiError: Its settings can't be read, or its network can't be counted.
    """
    config = resolve(str(run / CONFIG), task=None, flags={}, sets=(), environ={}).config
    if is_own(config.model.name):
        raise ConfigError("the memory of your own network is not counted", hint="see docs/own_code.md")
    config = with_values(config, {"training.batch_size": started.batch_size})
    asked = {
        "config": config.model_dump(mode="json"),
        "task": started.task,
        "ranks": started.ranks,
        "device": started.device.partition(":")[0],
        "precision": precision,
        "classes": len(started.classes),
    }
    with _ONE_AT_A_TIME:  # who opens the screen again waits for the same child
        return _answer(json.dumps(asked))


@lru_cache(maxsize=16)
def _answer(asked: str) -> CountedMemory:
    if "torch" in sys.modules:
        return _counted(json.loads(asked))
    with start(f"{__name__}:main", text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        answer, _ = child.communicate(asked)
    if child.returncode:
        raise ConfigError("the memory can't be counted: its process ended", hint="see docs/memory.md")
    found = json.loads(answer)
    if "error" in found:
        raise ConfigError(found["error"], hint=found["hint"])
    return CountedMemory(**found)


def main() -> None:
    """Write the memory of the run that stdin describes to stdout, as JSON, or why it can't be counted."""
    try:
        found = asdict(_counted(json.load(sys.stdin)))
    except MptuiError as error:
        found = {"error": error.message, "hint": error.hint}
    sys.stdout.write(json.dumps(found))


def _counted(asked: Mapping[str, Any]) -> CountedMemory:
    from mptui.engine.memory.ledger import footprint, of_one_rank
    from mptui.engine.memory.tape import UncountableError

    config = RunConfig.model_validate(asked["config"])
    kind, precision, classes = asked["device"], asked["precision"], asked["classes"]
    one = of_one_rank(config, asked["ranks"])
    try:
        found = footprint(one, asked["task"], device=kind, precision=precision, classes=classes)
    except UncountableError as error:
        raise ConfigError(f"{config.model.name} can't be counted", hint="see docs/memory.md") from error
    return CountedMemory(found.batch_size, found.allocated, found.parts, found.by_module, found.per_sample)
