"""Buffers the figures of each step on the device and reads them later, so that no step synchronizes.

A step writes one row (loss, gradient norm, refused, loss scale, learning rate) into a ring buffer on the
device. At each log interval the new rows are copied asynchronously to pinned host memory; they are read at
the next interval, when the copy has finished. On a CPU they are read at once.
"""

from collections import deque
from dataclasses import dataclass

import torch

from mptui.engine.reporting.late_reads import HostCopy

COLUMNS = ("loss", "grad_norm", "refused", "loss_scale", "lr")
CAPACITY = 4096
_VIEWS = 64
"""Rows whose views are made at a time: those of the whole ring would cost each start 20 ms."""

About = tuple[int, int, int, int, int]


@dataclass(slots=True)
class StepRow:
    """Figures of one optimizer step."""

    step: int
    epoch: int
    epoch_step: int
    samples: int
    sample: int
    loss: float
    grad_norm: float
    refused: bool
    loss_scale: float
    lr: float


@dataclass(slots=True)
class ReceivedRows:
    """Rows copied to the host, and the metrics' sums after the last of them."""

    rows: list[StepRow]
    sums: dict[str, torch.Tensor]


class Meter:
    """Ring buffer of step rows with pending copies to the host. Returns rows in order, each once.

    With `in_step` the rows that `read` returns don't depend on how fast a device is: on other devices than a
    CPU, all but those sent last.
    """

    def __init__(self, device: torch.device, *, in_step: bool = False) -> None:
        self._held = int(in_step and device.type != "cpu")
        self._in_step = in_step
        self._ring = torch.zeros(CAPACITY, len(COLUMNS), device=device)
        self._rows: list[torch.Tensor] = []
        self._about: list[About] = []
        self._start = 0
        self._pending: deque[tuple[list[About], list[str], HostCopy]] = deque()

    def write(self, values: tuple[torch.Tensor, ...], about: About) -> None:
        """Write the row of a step.

        Args:
            values: 0-dim float32 tensors on the device, in the order of COLUMNS.
            about: Step, epoch, step in the epoch (all from 1), samples, and the index (from 0) of the first
                sample in the epoch's order.
        """
        row = self._start + len(self._about)
        if row == len(self._rows):
            self._rows += self._ring[row : row + _VIEWS].unbind(0)
        torch.stack(values, out=self._rows[row])
        self._about.append(about)

    @property
    def full(self) -> bool:
        """Whether rows must be sent before another can be written."""
        return self._start + len(self._about) >= CAPACITY

    def send(self, sums: dict[str, torch.Tensor]) -> None:
        """Start copying all new rows and the metrics' `sums` to the host."""
        if not self._about:
            return
        end = self._start + len(self._about)
        copy = HostCopy([self._ring[self._start : end], *sums.values()])
        self._pending.append((self._about, list(sums), copy))
        self._about = []
        # the ring starts over once it is full: the stream orders those writes after the copies
        self._start = 0 if end >= CAPACITY else end

    def read(self, *, wait: bool = False) -> list[ReceivedRows]:
        """Return the rows that have reached the host; with `wait`, all that were sent."""
        arrived: list[ReceivedRows] = []
        while self._pending:
            about, names, copy = self._pending[0]
            if not wait and len(self._pending) <= self._held:
                break
            if not copy.arrived:
                if not wait and not self._in_step:
                    break
                copy.wait()
            self._pending.popleft()
            rows, *sums = copy
            steps = [
                StepRow(*of, loss, norm, refused > 0, scale, lr)
                for of, (loss, norm, refused, scale, lr) in zip(about, rows.tolist(), strict=True)
            ]
            arrived.append(ReceivedRows(steps, dict(zip(names, sums, strict=True))))
        return arrived
