"""One short honest run in a process of its own: its speed, its memory, and what it had learnt by then.

A process of its own since the switches of torch, the memory's peak and what a compiler keeps are a process's:
what was measured before must not be seen in what is measured next. `python -m mptui.lab.measure` is that
process; it reads what to do on stdin and answers on stdout, both in JSON.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from mptui.errors import MptuiError
from mptui.events import EpochStarted, Event, Step

if TYPE_CHECKING:
    from mptui.runs.plan import Request

LOSS_AT = 10
"""Steps after which the losses of two runs are compared."""

_INTERVAL_S = 0.1
_WARM_UP = 5


@dataclass(frozen=True, slots=True)
class Measured:
    """What one short run came to. Bytes and seconds.

    Attributes:
        samples_per_second: Median over the intervals after the warm-up.
        peak_bytes: Most that the tensors took on the device; on a CPU, the process.
        first_step_s: From the start of training to the end of its first step, compiling included.
        loss: Mean training loss about step `LOSS_AT`; None if it did not come so far.
        wait: Share of the time that steps waited for data.
    """

    samples_per_second: float
    peak_bytes: int | None
    first_step_s: float | None
    loss: float | None
    wait: float


class MeasureError(Exception):
    """A run that could not be measured; the text is a sentence for people."""


def measure(request: "Request", settings: Mapping[str, object], seconds: float) -> Measured:
    """Run `request` under `settings` (table.key -> value) in a process of its own.

    Args:
        request: What is trained; what it says of the keys in `settings` is left aside.
        settings: They win over everything.
        seconds: Of training after the warm-up.

    Raises:
        MeasureError: The run ended before it was measured, out of memory for one.
    """
    flags = {key: list(value) for key, value in request.flags.items() if key not in settings}
    flags |= {key: ["bench", value] for key, value in settings.items()}
    sets = [given for given in request.sets if given.partition("=")[0].strip() not in settings]
    asked = {"profile": request.profile, "flags": flags, "sets": sets, "seconds": seconds}
    child = subprocess.run(
        [sys.executable, "-m", "mptui.lab.measure"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=dict(request.environ),
        check=False,
    )
    try:
        answer = json.loads(child.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (child.stderr.strip() or f"ended with {child.returncode}").splitlines()[-1]
        raise MeasureError(f"the run to be measured failed: {last}") from None
    if "error" in answer:
        raise MeasureError(answer["error"])
    return Measured(**answer)


class Watch:
    """Listens to a run until enough of it is measured.

    Args:
        seconds: Of training after the warm-up that are enough.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._warm = 0
        self._rates: list[float] = []
        self._waits: list[float] = []
        self._fresh = True
        self.loss: float | None = None

    def note(self, event: Event) -> None:
        """Take an event of the run in."""
        if isinstance(event, EpochStarted):
            self._fresh = True
        if not isinstance(event, Step):
            return
        if self.loss is None and event.step >= LOSS_AT:
            self.loss = event.loss
        self._warm += event.steps
        # the first interval of an epoch has the start of its workers in it
        skipped, self._fresh = self._fresh or self._warm <= _WARM_UP, False
        if skipped or event.samples_per_second is None or event.step_time_s is None:
            return
        self._left -= event.step_time_s * event.steps
        self._rates.append(event.samples_per_second)
        self._waits.append(event.data_wait_fraction or 0.0)

    @property
    def enough(self) -> bool:
        """Whether the run may end."""
        return self._left <= 0 and self.loss is not None

    @property
    def rate(self) -> float | None:
        """Median samples a second; None before anything was measured."""
        return median(self._rates) if self._rates else None

    @property
    def wait(self) -> float:
        """Mean share of the time that steps waited for data."""
        return sum(self._waits) / len(self._waits) if self._waits else 0.0


def _run(profile: str | None, flags: dict[str, Any], sets: Sequence[str], seconds: float) -> dict[str, Any]:
    from mptui.runs.directory import create_run
    from mptui.runs.plan import Request, plan_run
    from mptui.runs.session import Session

    given = {key: (str(flag), value) for key, (flag, value) in flags.items()}
    given["logging.step_interval_s"] = ("bench", _INTERVAL_S)
    given["guards.on_nan"] = ("bench", "ignore")  # a repair would change what is being measured
    plan = plan_run(Request(profile, given, sets, os.environ))
    watch = Watch(seconds)
    with tempfile.TemporaryDirectory() as folder:
        run = create_run(Path(folder), "bench", str(plan.config.model.name), None)
        session = Session(plan, run, force_compile=plan.config.speed.compile != "off")
        events = session.listen()
        session.start()
        while not session.finished:
            events.wait(_INTERVAL_S)
            for event in events.drain():
                watch.note(event)
            if watch.enough:
                session.mailbox.stop(None)
        result = session.result
    if result.bug is not None:
        raise result.bug
    if result.error is not None:
        raise result.error
    if result.summary["recoveries"]:
        raise MptuiError(str(result.summary["recoveries"][0]["action"]), hint="")
    if watch.rate is None:
        raise MptuiError("the run was over before it was measured", hint="")
    memory = result.summary["memory"]
    return asdict(
        Measured(
            samples_per_second=watch.rate,
            peak_bytes=memory.get("peak_allocated_bytes") or memory.get("host_peak_bytes"),
            first_step_s=result.summary["time"]["first_step_s"],
            loss=watch.loss,
            wait=watch.wait,
        )
    )


def _answer() -> None:
    """Be the process that measures."""
    from mptui.hardware.memory import keep_freed_memory

    keep_freed_memory()
    asked = json.loads(sys.stdin.read())
    try:
        answer = _run(**asked)
    except MptuiError as error:
        answer = {"error": error.message}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    _answer()
