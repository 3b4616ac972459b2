"""summary.json: how a run stands or ended, folded from its events."""

import resource
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch

from mptui.events import (
    EpochFinished,
    Event,
    PrecisionChanged,
    Recovered,
    RunStarted,
    Step,
    Validated,
    Warned,
)
from mptui.runs.store.directory import VERSION

LIST_LIMIT = 100
"""Entries kept of a list, whatever happens to a run: its first half, and the latest."""


_CARRIED_OVER = (
    *("epochs", "optimizer_steps", "samples_seen", "skipped_steps", "final", "best"),
    *("samples_per_second", "recoveries", "warnings"),
)
"""What a run that goes on has come to already; time and memory are those of a process."""


class Summary:
    """The document behind `summary.json` and `--json`."""

    def __init__(self, run: str, directory: str) -> None:
        self._started = time.monotonic()
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
            "precision": {"requested": None, "used": None, "reason": None},
            "epochs": 0,
            "optimizer_steps": 0,
            "samples_seen": 0,
            "skipped_steps": 0,
            "final": {},
            "best": {"epoch": None, "metric": None, "value": None},
            "samples_per_second": None,
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
        """Begin where an earlier process left the run, as its summary (of `read_summary`) says."""
        self.document |= {name: before[name] for name in _CARRIED_OVER if name in before}

    def fold(self, event: Event) -> None:
        """Take in what an event says."""
        document = self.document
        if isinstance(event, RunStarted):
            self._fold_start(event)
        elif isinstance(event, Step):
            document["optimizer_steps"] = event.step
            document["samples_seen"] = event.samples_seen
            document["skipped_steps"] = event.skipped_steps
        elif isinstance(event, Validated) and event.best:
            metric = next(iter(event.metrics), None)
            document["best"] = {
                "epoch": event.epoch,
                "metric": metric,
                "value": event.metrics.get(str(metric)),
            }
            if event.per_class:
                document["best"]["per_class"] = event.per_class
        elif isinstance(event, EpochFinished):
            document["epochs"] = event.epoch
            document["final"] = {
                "train_loss": event.train_loss,
                "val_loss": event.val_loss,
                **event.val_metrics,
            }
        elif isinstance(event, PrecisionChanged):
            document["precision"]["used"] = event.precision
        elif isinstance(event, Recovered):
            recovery = {"kind": event.problem, "step": event.step, "action": event.action}
            _keep(document["recoveries"], recovery)
        elif isinstance(event, Warned):
            _keep(document["warnings"], {"code": event.code, "message": event.message})

    def _fold_start(self, event: RunStarted) -> None:
        self.document |= {
            "profile": event.profile,
            "task": event.task,
            "model": event.model,
            "parameters": event.parameters,
            "dataset": {
                "name": event.dataset,
                "train_samples": event.train_samples,
                "val_samples": event.val_samples,
                "classes": len(event.classes),
            },
            "device": event.device_name,
            "precision": {
                "requested": event.precision_requested,
                "used": event.precision,
                "reason": event.precision_reason,
            },
        }

    def measure(self, device: torch.device | None) -> None:
        """Note the time so far and the peaks of memory."""
        self.document["time"]["total_s"] = round(time.monotonic() - self._started, 3)
        # Linux counts in KiB, macOS in bytes
        unit = 1 if sys.platform == "darwin" else 1024
        memory = self.document["memory"]
        memory["host_peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        if device is not None and device.type == "cuda":
            memory["peak_allocated_bytes"] = torch.cuda.max_memory_allocated(device)
            memory["peak_reserved_bytes"] = torch.cuda.max_memory_reserved(device)


def _keep(entries: list[dict[str, Any]], entry: dict[str, Any]) -> None:
    entries.append(entry)
    if len(entries) > LIST_LIMIT:
        del entries[LIST_LIMIT // 2]
