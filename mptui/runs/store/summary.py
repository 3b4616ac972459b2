"""summary.json: the state and result of a run, computed from its events."""

import resource
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch

from mptui.events import Event
from mptui.runs.store.directory import VERSION
from mptui.runs.view.events.event_registry import EVENTS

_CARRIED_OVER = (
    *("profile", "task", "model", "parameters", "dataset", "device", "ranks", "nodes"),
    *("precision", "price_per_hour"),
    *("epochs", "optimizer_steps", "samples_seen", "skipped_steps", "final", "loss_terms", "best"),
    *("samples_per_second", "recoveries", "warnings", "energy", "forked_from"),
)
"""Entries that a resumed run carries over; time and memory are those of one process.

What a run is stays known when its resume ends before `RunStarted` tells it anew.
"""


class Summary:
    """The document behind `summary.json` and `--json`."""

    def __init__(self, run: str, directory: str) -> None:
        self._started, self._cost_before = time.monotonic(), 0.0
        self.document: dict[str, Any] = {
            "version": VERSION,
            "run": run,
            "directory": directory,
            "status": "running",
            "started": time.time(),
            "task": None,
            "model": None,
            "dataset": {"name": None, "train_samples": None, "val_samples": None, "classes": None},
            "device": None,
            "ranks": 1,
            "nodes": 1,
            "precision": {"requested": None, "used": None, "reason": None},
            "epochs": 0,
            "optimizer_steps": 0,
            "samples_seen": 0,
            "skipped_steps": 0,
            "final": {},
            "loss_terms": [],
            "best": {"epoch": None, "metric": None, "value": None},
            "samples_per_second": None,
            "energy": {"watt_hours": None, "seconds": 0.0, "until": 0.0},
            "price_per_hour": None,
            "cost": None,
            "time": {"total_s": 0.0, "first_step_s": None, "data_wait_fraction": None},
            "memory": {
                "peak_allocated_bytes": None,
                "peak_reserved_bytes": None,
                "host_peak_bytes": None,
            },
            "recoveries": [],
            "warnings": [],
        }

    def go_on_from(self, before: Mapping[str, Any]) -> None:
        """Carry over the results of an earlier process of the run, from its summary (`read_summary`)."""
        self.document |= {name: before[name] for name in _CARRIED_OVER if name in before}
        self._cost_before = before.get("cost") or 0.0

    def handle(self, event: Event) -> None:
        """Update the document."""
        EVENTS[event.kind].summarize(self.document, event)

    def measure(self, device: torch.device | None) -> None:
        """Record the elapsed time, its cost, and the peaks of memory."""
        seconds = time.monotonic() - self._started
        self.document["time"]["total_s"] = round(seconds, 3)
        if (price := self.document["price_per_hour"]) is not None:
            self.document["cost"] = round(self._cost_before + price * seconds / 3600, 6)
        # Linux counts in KiB, macOS in bytes
        unit = 1 if sys.platform == "darwin" else 1024
        memory = self.document["memory"]
        memory["host_peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        if device is not None and device.type == "cuda":
            memory["peak_allocated_bytes"] = torch.cuda.max_memory_allocated(device)
            memory["peak_reserved_bytes"] = torch.cuda.max_memory_reserved(device)
