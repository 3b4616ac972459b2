"""The processes of a run in several processes."""

from dataclasses import dataclass, field
from typing import ClassVar

from mptui.events.event import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One rank: its device, and the medians of its recent times; None for what is not known.

    `utilisation` is a fraction of 1, memory in bytes, `temperature_c` in degrees Celsius; on a CPU,
    utilisation and memory are those of its process. `throttle` lists why clocks are reduced. A step of this
    rank is `data_s` (waiting for its data), `forward_s`, `backward_s` (until its own gradients are complete)
    and `wait_s` (for those of the others), in seconds. `slowest` counts the measured steps in which it was
    the slowest, `silent_s` the seconds since its last sign of life.
    """

    rank: int
    host: str
    utilisation: float | None
    memory_used: int | None
    memory_total: int | None
    temperature_c: float | None
    throttle: list[str]
    data_s: float | None
    forward_s: float | None
    backward_s: float | None
    wait_s: float | None
    slowest: int
    silent_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksSampled(Event):
    """All ranks of a run in several processes: an event every two seconds, less often with many ranks.

    `rows` are in the order of the ranks, `steps` is the number of measured steps that they are about.
    `verdict` says which ranks are slower than the others, how often, and why; empty if none is. With weights
    that are `sharded` and with synchronized BatchNorm, for which it is set, too, ranks wait for each other in
    all passes: only their waits for data are compared.
    """

    kind: ClassVar[str] = "ranks"

    rows: list[RankRow]
    steps: int
    verdict: str = ""
    slow: list[int] = field(default_factory=list)
    sharded: bool = False
