"""Launches and synchronisations of a step of `mptui run`, counted by torch.profiler: a child of `first_hour`.

    python -m benchmarks.launches CASE FIGURES run --json …   # as benchmarks.timed_run

The profiler records the calls of the CUDA runtime of the whole process, so those of other threads count too.
"""

from collections import Counter
from typing import Any

import torch

from benchmarks import timed_run
from benchmarks.subjects import Case

KINDS = {
    "kernels": ("LaunchKernel",),
    "graphs": ("GraphLaunch",),
    "copies": ("MemcpyAsync", "MemsetAsync"),
    "synchronisations": ("StreamSynchronize", "DeviceSynchronize", "EventSynchronize"),
}
"""Parts of the names of the calls of the CUDA runtime and driver, by what they do."""


class Launches:
    """Counts the calls from the request for the first batch after warm-up to that for the last.

    Attributes:
        figures: Calls of each of KINDS, and operations of torch on the host, per step; `steps` counted.
    """

    def __init__(self, case: Case) -> None:
        self._case, self._requests = case, 0
        self._profiler: torch.profiler.profile | None = None
        self.figures: dict[str, Any] = {}

    def request(self) -> None:
        """Records that another batch is requested."""
        self._requests += 1
        if self._requests == self._case.warm_up:
            on_gpu = [torch.profiler.ProfilerActivity.CUDA] if self._case.device == "cuda" else []
            self._profiler = torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU, *on_gpu], acc_events=True
            )
            self._profiler.start()
        elif self._requests == self._case.steps and self._profiler is not None:
            self._profiler.stop()
            self.figures = self._counted(self._profiler)

    def _counted(self, profiler: torch.profiler.profile) -> dict[str, Any]:
        steps = self._case.steps - self._case.warm_up
        calls: Counter[str] = Counter()
        for event in profiler.events() or []:  # type: ignore[no-untyped-call]
            name = event.name
            for kind, parts in KINDS.items():
                calls[kind] += name.startswith("cu") and any(part in name for part in parts)
            calls["operations"] += name.startswith("aten::") and event.cpu_parent is None
        return {"steps": steps, **{kind: calls[kind] / steps for kind in (*KINDS, "operations")}}


def main() -> None:
    """Trains and writes the counts."""
    timed_run.main(Launches)


if __name__ == "__main__":
    main()
