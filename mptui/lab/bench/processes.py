"""Measures the throughput of a training in several processes, each with the batch of one.

Each number of processes is a run of `mptui run --nproc-per-node`, in alternating rounds as of an ablation.
"""

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from mptui.lab.bench.ablation import Variant
from mptui.lab.bench.bench import AblationRun, Row
from mptui.lab.bench.measure import Effort, MeasureError, ShortRunResult
from mptui.lab.bench.stats import Span
from mptui.processes.child import mptui_command
from mptui.runs.store.directory import SUMMARY

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Request

PROCESSES = "processes"
"""The key of a variant that is no setting: its number of processes."""
_WARM_UP = 6
"""Steps that don't count, and a few more to measure at least."""
_NAME = "scaling"


def variants(sizes: Sequence[int], batch_size: int) -> list[Variant]:
    """Return a variant for each number of processes; the first is compared with."""
    return [
        Variant(
            str(size),
            "1 process" if size == 1 else f"{size} processes",
            {PROCESSES: size, "training.batch_size": size * batch_size},
            None if number == 0 else str(sizes[0]),
        )
        for number, size in enumerate(sizes)
    ]


class GroupMeasurer:
    """Measures runs in several processes.

    Args:
        words: Flags of `mptui run`, but for its batch size.
        environ: Environment of the runs.
        step_s: Expected seconds of a step.
    """

    def __init__(self, words: Sequence[str], environ: Mapping[str, str], step_s: float) -> None:
        self._words, self._environ, self._step_s = words, environ, step_s

    def measure(self, request: "Request", settings: Mapping[str, object], effort: Effort) -> ShortRunResult:
        """Measure a variant, as `Measurer.measure`.

        Raises:
            MeasureError: The run failed, or took too long.
        """
        steps = _WARM_UP + max(_WARM_UP, ceil(effort.seconds / self._step_s))
        size, batch = int(str(settings[PROCESSES])), int(str(settings["training.batch_size"]))
        flags = ["--batch-size", batch, "--max-steps", steps, "--epochs", steps, "--nproc-per-node", size]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            flags += ["--runs-dir", folder, "--name", _NAME, "--quiet"]
            command = mptui_command("run", *self._words, *map(str, flags))
            try:
                ended = subprocess.run(  # noqa: S603 - our own program
                    command,
                    env=dict(self._environ),
                    capture_output=True,
                    text=True,
                    timeout=effort.limit_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise MeasureError(f"no result within {effort.limit_s:.0f} s") from None
            if ended.returncode:
                lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
                fault = next((line for line in lines if line.startswith("mptui: ")), lines[-1])
                raise MeasureError(fault.removeprefix("mptui: "), ended.returncode)
            summary = json.loads(Path(folder, _NAME, SUMMARY).read_text())
        if not summary["samples_per_second"]:
            raise MeasureError("the run ended before it was measured")
        memory, time = summary["memory"], summary["time"]
        return ShortRunResult(
            span=Span(batch * steps, batch * steps / summary["samples_per_second"]),
            peak_bytes=memory.get("peak_allocated_bytes") or memory.get("host_peak_bytes"),
            first_step_s=time["first_step_s"],
            loss=None,
            wait=time["data_wait_fraction"] or 0.0,
        )


def efficiency(lab: AblationRun, row: Row) -> float | None:
    """Return the throughput of each process, as a fraction of that in the first row."""
    over = lab.over_baseline(row)
    first, size = (int(str(each.variant.settings[PROCESSES])) for each in (lab.rows[0], row))
    return None if over is None else over.value * first / size


def data_wait(row: Row) -> float | None:
    """Return the mean fraction of time that steps waited for data."""
    return sum(each.wait for each in row.rounds) / len(row.rounds) if row.rounds else None
