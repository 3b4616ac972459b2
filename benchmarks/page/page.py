"""The page: what was asked and measured in one table, then a section for each benchmark."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.page import data, running, settings, training
from benchmarks.page.floors import floors
from benchmarks.page.results import NO, Result, Section, found_in
from benchmarks.page.words import listed

SECTIONS: Mapping[Callable[[Sequence[Result]], Section], tuple[str, ...]] = {
    training.peers: ("peers",),
    training.gpu: ("gpu",),
    training.loop: ("loop",),
    training.guards: ("guards",),
    training.numerics: ("numerics",),
    training.ui: ("ui",),
    data.inputs: ("input",),
    data.cache: ("cache",),
    data.decoding: ("decoding",),
    settings.choices: ("choices",),
    settings.compiling: ("compiling",),
    settings.switches: ("bench",),
    settings.tuning: ("tune",),
    running.saving: ("saving",),
    running.attach: ("attach",),
    running.long_run: ("long_run", "long_run_each_step"),
}
"""The sections in order, each with the kinds of result that it is made of."""

HEAD = """# Speed

What mptui is asked to reach, and what was measured. Every figure is one of `benchmarks/results/`, with the
machine that it was taken on; this page is made of them by `python docs/make_speed.py > docs/speed.md`.

Sides that are compared ran in turn, forwards and backwards, mostly in processes of their own. A figure is the
median of its rounds, with the lowest and the highest in brackets, and a ratio is taken within its round: one
with rounds on both sides of 1 is a tie."""

WAITS = {
    "peers-cuda": (
        "python -m benchmarks.peers --device cuda --precision bf16 --compile default",
        "ResNet-50 at 224 and a U-Net at 512 beside Lightning, Accelerate, timm and torchvision's recipe",
    ),
    "gpu": (
        "python -m benchmarks.gpu",
        "AMP over TF32 and FP32-strict, shares of the floor, the best peer, peak memory, photos on the disk",
    ),
    "decoding": (
        "python -m benchmarks.decoding",
        "JPEG files decoded on the device and by the workers: images a second, processor time, whole runs",
    ),
}
"""What needs a GPU, by the result that it leaves: command, and what is measured."""


def page(folder: Path) -> str:
    """The page of the results in `folder`."""
    results = found_in(folder)
    sections = []
    for section, kinds in SECTIONS.items():
        mine = [result for result in results if result.kind in kinds]
        if mine:
            sections.append(section(mine))
    known = {kind for kinds in SECTIONS.values() for kind in kinds}
    others = [result.name for result in results if result.kind not in known]
    blocks = [HEAD, _summary(sections)]
    for each in [*sections, _waiting({result.name for result in results}), floors()]:
        blocks += [f"## {each.title}", *each.blocks, _missed(each)] if each.blocks else []
    if others:
        blocks.append(f"Results that this page doesn't show: {listed(f'`{name}.json`' for name in others)}.")
    return "\n\n".join(block for block in blocks if block) + "\n"


def _summary(sections: Sequence[Section]) -> str:
    """What is asked, and what was measured of it."""
    claims = [claim for section in sections for claim in section.claims]
    if not claims:
        return ""
    missed = [claim.what for claim in claims if claim.reached == NO]
    told = f"Of {len(claims)} figures that are asked for, {len(claims) - len(missed)} are reached"
    told += f". Missed: {'; '.join(missed)}." if missed else "."
    lines = ["| what | asked | measured | reached | on | command |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [
        f"| {claim.what} | {claim.asked} | {claim.measured} | {claim.reached} | {claim.on} | "
        f"`{claim.command}` |"
        for claim in claims
    ]
    return f"{told}\n\n" + "\n".join(lines)


def _missed(section: Section) -> str:
    """What is not reached, said where it was measured."""
    missed = [claim for claim in section.claims if claim.reached == NO]
    return "\n".join(
        f"**Missed**: {claim.what}: {claim.measured}, where {claim.asked} is asked for." for claim in missed
    )


def _waiting(names: set[str]) -> Section:
    section = Section("What waits for a GPU")
    rows = [f"| {what} | `{command}` |" for name, (command, what) in WAITS.items() if name not in names]
    if rows:
        rows.append("| that no step waits for the device | `pytest -m gpu -n 0` |")
        section.add(
            "Written, and tried on a CPU, but not measured yet:",
            "\n".join(["| what | command |", "| --- | --- |", *rows]),
        )
    return section
