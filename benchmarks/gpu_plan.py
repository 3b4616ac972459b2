"""What `benchmarks.gpu` measures, in the order of what tells most, and how long each is expected to take."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.subjects import CASES, TINY, Case
from mptui.config.documents import read_document
from mptui.config.profiles import find_profile

AMP = ("bf16", "fp16")
MICRO_BATCHES = 4
"""Micro-batches per step of memory-limited, for the same batch."""
MEMORY_STEPS = 12

SMOKE = {
    "resnet50": replace(CASES[TINY], batch=8, steps=8, warm_up=2),
    "unet": Case("unet", side=32, batch=2, classes=3, steps=8, warm_up=2, width=4),
}

IMAGE_BYTES = {"resnet50": 90 << 20, "unet": 1600 << 20}
"""Peak memory of a step in FP32 per image, as `mptui.engine.memory.ledger` counts it."""
MEMORY_SHARE = 0.65
"""Share of a card's free memory for the step; the rest is for data, kernels and the trials of compilation."""

START_S = {"mptui": 25.0, "bare": 5.0}
"""Seconds around the steps, on an H200 with 16 processors; a run makes its data, too, and saves."""
COMPILE_S = {"off": 0.0, "default": 45.0, "reduce-overhead": 45.0, "max-autotune": 400.0}
"""Expected seconds of a first compilation."""
AGAIN = 0.3
"""Expected time of a start with compiled code from an earlier side, as a share of a first compilation."""
OF_FLOOR = 0.3
"""Expected throughput in bf16, as a share of the physical bound."""
SLOWER = {"bf16": 1.0, "fp16": 1.1, "tf32": 2.0, "fp32": 5.0}
"""Expected time of a step, as a multiple of that in bf16."""


@dataclass(frozen=True)
class Measurement:
    """One process.

    Attributes:
        part: Network, or `photos`.
        name: Its name in the part.
        program: `mptui`, or one of `benchmarks.sides.SIDES`.
        case: The training case.
        flags: Additional flags for `mptui run`.
    """

    part: str
    name: str
    program: str
    case: Case
    flags: tuple[str, ...] = ()

    @property
    def code(self) -> tuple[str, str, str]:
        """What its compiled code depends on: sides with the same share it."""
        return self.part, arithmetic(self.case), self.case.compile

    @property
    def partner(self) -> str:
        """Name of the bare loop that a run is compared with."""
        return self.name.replace("mptui", "bare", 1)

    def expected_s(self, bound: float, compiled: Iterable[tuple[str, str, str]]) -> float:
        """Returns the expected seconds.

        Args:
            bound: Physical bound in 16 bits, in images per second.
            compiled: Code of the sides so far.
        """
        compiling = COMPILE_S.get(self.case.compile, max(COMPILE_S.values()))
        step = self.case.batch / (OF_FLOOR * bound) * SLOWER[arithmetic(self.case)]
        return (
            START_S.get(self.program, START_S["bare"])
            + compiling * (AGAIN if self.code in compiled else 1)
            + self.case.steps * step
        )


def arithmetic(case: Case) -> str:
    """Returns bf16, fp16, tf32 or fp32."""
    return "tf32" if case.precision == "fp32" and case.tf32 else case.precision


def in_arithmetic(case: Case, name: str) -> Case:
    """Returns the case in bf16, fp16, tf32 or fp32."""
    if name in AMP:
        return replace(case, precision=name)
    return replace(case, precision="fp32", tf32=name == "tf32")


def own_mode() -> str:
    """Returns the compile mode of the profile `fast`."""
    return str(read_document(find_profile("fast", os.environ)).values["speed"]["compile"])


def fitting(case: Case, free_bytes: int | None) -> Case:
    """Returns the case with a batch that fits into the memory of a card, in FP32; None: unknown."""
    while free_bytes and case.batch > 1 and case.batch * IMAGE_BYTES[case.model] > MEMORY_SHARE * free_bytes:
        case = replace(case, batch=case.batch // 2)
    return case


def plan(
    cases: Mapping[str, Case], mode: str, peers: Sequence[str], halves: Sequence[str] = AMP
) -> list[Measurement]:
    """Lists what to measure, what tells most first.

    Args:
        cases: Cases of `resnet50` and `unet`; the photos' is that of `resnet50`.
        mode: Compile mode in which precisions and peers are compared.
        peers: Sides beside the bare loop.
        halves: Types of 16 bits of the card, the usual one first.
    """

    def loops(part: str, *modes: str) -> Iterator[Measurement]:
        for each in modes:
            for program in ("mptui", "bare"):
                yield _side(part, program, in_arithmetic(cases[part], halves[0]), each)

    def precisions(part: str, *names: str) -> Iterator[Measurement]:
        for name in names:
            yield _side(part, "mptui", in_arithmetic(cases[part], name), mode)

    def beside(part: str) -> Iterator[Measurement]:
        for name in halves:
            for peer in peers:
                yield _side(part, peer, in_arithmetic(cases[part], name), mode)

    own, graphs = own_mode(), "reduce-overhead"
    everything = [
        *loops("resnet50", "off", mode, own),
        *precisions("resnet50", "tf32"),
        *loops("unet", "off", mode),
        *precisions("resnet50", "fp32", *halves[1:]),
        *_memory("resnet50", cases["resnet50"], mode, halves[0]),
        *_photos(cases["resnet50"], mode, halves[0]),
        *beside("resnet50"),
        *loops("resnet50", graphs),
        *precisions("unet", "tf32", "fp32", *halves[1:]),
        *_memory("unet", cases["unet"], mode, halves[0]),
        *loops("unet", own, graphs),
    ]
    return list({(each.part, each.name): each for each in everything}.values())


def _side(part: str, program: str, case: Case, mode: str) -> Measurement:
    return Measurement(part, f"{program} {arithmetic(case)} {mode}", program, replace(case, compile=mode))


def _memory(part: str, case: Case, mode: str, half: str) -> list[Measurement]:
    few = replace(in_arithmetic(case, "tf32"), steps=MEMORY_STEPS, warm_up=2, resident=False, compile="off")
    amp = replace(few, precision=half)
    split = replace(amp, batch=max(1, case.batch // MICRO_BATCHES))
    return [
        Measurement(part, "memory fp32", "mptui", few),
        Measurement(part, "memory amp", "mptui", amp),
        Measurement(part, "memory memory-limited", "mptui", split, ("--profile", "memory-limited")),
        Measurement(part, "memory amp compiled", "mptui", replace(amp, compile=mode)),
    ]


def _photos(case: Case, mode: str, half: str) -> list[Measurement]:
    everything = replace(case, precision=half, compile=mode)
    plain = replace(everything, precision="fp32", compile="off", channels_last=False)
    return [
        Measurement("photos", "mptui", "mptui", everything),
        Measurement("photos", "plain script", "bare", plain),
    ]
