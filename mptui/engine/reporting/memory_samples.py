"""Reports the memory of the training process: what torch's allocator has, and what the system gave it."""

import time

import psutil
import torch

from mptui.engine.context import TrainContext
from mptui.engine.hooks import Hook
from mptui.events import MemorySample

EVERY_S = 10.0
"""Seconds between two reports, but for the first after a rise of the peak."""


class MemorySamples(Hook):
    """Emits a sample of the memory every few seconds; reading the allocator's counters waits for nothing."""

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        self._process = psutil.Process()
        self._due, self._peak = 0.0, 0

    def report_due(self) -> None:
        """Emit a sample if it is time, or the peak has risen."""
        device = self._context.device
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
        now = time.monotonic()
        if now >= self._due or peak > self._peak:
            self._due, self._peak = now + EVERY_S, peak
            self._context.emit(self._sample(device))

    def _sample(self, device: torch.device) -> MemorySample:
        step, process = self._context.state.step, self._process.memory_info().rss
        if device.type != "cuda":
            return MemorySample(step=step, process=process)
        counters = torch.cuda.memory_stats(device)
        return MemorySample(
            step=step,
            allocated=counters.get("allocated_bytes.all.current"),
            peak=counters.get("allocated_bytes.all.peak"),
            reserved=counters.get("reserved_bytes.all.current"),
            gaps=counters.get("inactive_split_bytes.all.current"),
            process=process,
        )
