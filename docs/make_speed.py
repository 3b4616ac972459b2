"""Print `speed.md`, what was measured where, from `benchmarks/results/*.json`.

python docs/make_speed.py > docs/speed.md
"""

import ast
import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"
RESULTS = BENCHMARKS / "results"
MOST_ROWS = 40
"""Of a table whose shape this script does not know."""

_FIRST = (
    "peers",
    "gpu",
    "loop",
    "guards",
    "input",
    "cache",
    "compiling",
    "ui",
    "numerics",
    "saving",
    "attach",
)
_WAITS = (
    (
        "peers-cuda",
        "python -m benchmarks.peers --device cuda --precision bf16 --compile default",
        "ResNet-50 at 224 and a U-Net at 512 beside Lightning, Accelerate, timm and torchvision's recipe",
    ),
    (
        "gpu",
        "python -m benchmarks.gpu",
        "AMP over TF32 and FP32-strict, shares of the floor, the best peer, peak memory, photos on the disk",
    ),
)
_GPU_FLOOR = {"operations_s": 790e12, "bytes_s": 4.3e12}
"""What an H200 reaches in bf16 on a large product and a large copy."""

_HEAD = """# Speed

Every figure is one of `benchmarks/results/`, with the machine that it was taken on; this page is made of them
by `python docs/make_speed.py > docs/speed.md`. Sides that are compared ran in turn, forwards and backwards,
mostly as fresh processes; a figure is the median, with the lowest and the highest of the rounds behind it. A
ratio nearer to 1 than its spread is a tie."""


def page() -> str:
    """The page: what is measured, what waits for a GPU, and the floors."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")}
    names = sorted((name for name in found if not _superseded(name, found)), key=_place)
    sections = [_section(name, found[name]) for name in names]
    blocks = [_HEAD, *sections, _waiting(names), _floors()]
    return "\n\n".join(block.strip() for block in blocks if block) + "\n"


def _superseded(name: str, found: Mapping[str, Any]) -> bool:
    """Whether a result of a part (`--only`) was taken again with the whole since."""
    whole, _, part = name.partition("-")
    if not part or whole not in found:
        return False
    parts = found[whole].get("cases", found[whole])
    return part in parts and _date(found[whole]) >= _date(found[name])


def _date(document: Mapping[str, Any]) -> str:
    return str(document.get("machine", {}).get("date", ""))


def _place(name: str) -> tuple[int, str]:
    script = _script(name)
    return (_FIRST.index(script) if script in _FIRST else len(_FIRST), name)


def _script(result: str) -> str:
    """The benchmark that leaves this result: the longest name of one that it begins with."""
    found = [path.stem for path in BENCHMARKS.glob("*.py") if result.startswith(path.stem)]
    return max(found, key=len, default=result)


def _section(name: str, document: Mapping[str, Any]) -> str:
    machine = document.get("machine", {})
    script = BENCHMARKS / f"{_script(name)}.py"
    about = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) if script.exists() else ""
    told = [f"## {name}", str(about).partition("\n\n")[0], _machine(machine, script.stem)]
    told += (
        _peers(document)
        if script.stem == "peers"
        else [_table({key: value for key, value in document.items() if key != "machine"})]
    )
    return "\n\n".join(part for part in told if part)


def _machine(machine: Mapping[str, Any], script: str) -> str:
    where = machine.get("gpu") or machine.get("cpu", "a machine unknown")
    threads = machine.get("threads")
    on = f"{where}, {threads} thread{'s' if threads != 1 else ''}" if threads else str(where)
    versions = f"torch {machine.get('torch')}, Python {machine.get('python')}"
    return f"`python -m benchmarks.{script}` on {on}; {versions}; {machine.get('date')}."


# -- the peers


def _peers(document: Mapping[str, Any]) -> list[str]:
    reached = document["ceilings"]
    clock = {"wall": "by the wall clock", "cpu": "by processor time"}[document["clock"]]
    product, copy = (_number(reached[of] / 1e9) for of in ("operations_s", "bytes_s"))
    told = [
        f"{document['rounds']} rounds, {clock}. In the same run a large product reached {product} GFLOP/s, a "
        f"large copy {copy} GB/s."
    ]
    for measured in document["cases"].values():
        case, ratios = measured["case"], measured["ratios"]
        told.append(
            f"{case['model']} at {case['side']} px, {case['batch']} images a step, {case['precision']}, "
            f"{'compiled' if case['compile'] != 'off' else 'not compiled'}:"
        )
        rows = ["| side | images a second | `mptui run` over it | asked |", "| --- | --- | --- | --- |"]
        for side, rates in measured["images_per_second"].items():
            ratio = ratios.get(side)
            over = "" if ratio is None else _ratio(ratio)
            asked = "" if ratio is None else _number(ratio.get("asked"))
            rows.append(f"| {side} | {_spread(rates)} | {over} | {asked} |")
        told += ["\n".join(rows), _floor(measured)]
    return told


def _floor(measured: Mapping[str, Any]) -> str:
    floor = measured["floor"]
    share = statistics.median(measured["images_per_second"]["mptui"]) / floor["images_per_second"]
    operations, moved = _number(floor["operations"] / 1e9), _number(floor["bytes"] / 1e6)
    reached = f"`mptui run` reaches {share:.2f} of it"
    if share > 1:  # the ceilings are measured once, the sides again and again
        reached = "`mptui run` is above it: other work held the ceilings down while they were measured"
    return (
        f"The floor: {operations} GFLOP and {moved} MB an image, so {_number(floor['images_per_second'])} "
        f"images a second at those ceilings; {reached}."
    )


# -- results of any shape


def _table(document: Mapping[str, Any]) -> str:
    rows = list(_rows(document, ()))
    shown = [f"| {name} | {value} | {asked} |" for name, value, asked in rows[:MOST_ROWS]]
    more = f"\n\nand {len(rows) - MOST_ROWS} more in the JSON." if len(rows) > MOST_ROWS else ""
    return "\n".join(["| what | figure | asked |", "| --- | --- | --- |", *shown]) + more


def _rows(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:  # noqa: ANN401 - of JSON
    """Each figure in a tree of JSON: its name, itself, and what is asked of it."""
    name = " · ".join(part.replace("_", " ") for part in path)
    if isinstance(value, Mapping):
        wanted = [key for key in value if key.startswith(("asked", "at_most", "at_least"))]
        if "median" in value and "min" in value:
            yield name, _ratio(value), _asked(value, wanted)
            return
        measured = next((key for key in ("ratio", "share") if key in value), None)
        for key, inner in value.items():
            if key == measured:
                for row in _rows(inner, (*path, key)):
                    yield row[0], row[1], row[2] or _asked(value, wanted)
            elif key not in wanted:
                yield from _rows(inner, (*path, key))
        if wanted and measured is None:
            yield f"{name} · asked".strip(" ·"), "", _asked(value, wanted)
    elif isinstance(value, list):
        if value and all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in value):
            quartiles = path[-1].endswith("quartiles") and len(value) == 3
            yield name, _quartiles(value) if quartiles else _spread(value), ""
        elif value and all(isinstance(each, str) for each in value):
            yield name, ", ".join(value), ""
        elif value:
            for number, inner in enumerate(value, 1):
                yield from _rows(inner, (*path, str(number)))
    elif value is not None:
        yield name, _number(value), ""


def _asked(value: Mapping[str, Any], keys: list[str]) -> str:
    told = [f"{'at most ' if 'most' in key else ''}{_number(value[key])}" for key in keys]
    return ", ".join(told)


def _ratio(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})"


def _quartiles(values: list[float]) -> str:
    low, middle, high = values
    return f"{_number(middle)} ({_number(low)} to {_number(high)}, the middle half)"


def _spread(values: list[float]) -> str:
    if len(values) == 1:
        return _number(values[0])
    return f"{_number(statistics.median(values))} ({_number(min(values))} to {_number(max(values))})"


def _number(value: Any) -> str:  # noqa: ANN401 - of JSON
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and abs(value) >= 1000):
        return f"{value:,.0f}"
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", " ")


# -- what is not measured, and what can't be beaten


def _waiting(names: list[str]) -> str:
    rows = [f"| {what} | `{command}` |" for name, command, what in _WAITS if name not in names]
    if not rows:
        return ""
    rows.append("| that no step waits for the device | `pytest -m gpu -n 0` |")
    head = "## What waits for a GPU\n\nWritten, and tried on a CPU, but not measured yet:\n\n"
    return head + "\n".join(["| what | command |", "| --- | --- |", *rows])


def _floors() -> str:
    """The floor of a step of some networks, by the model alone."""
    sys.path.insert(0, str(ROOT))
    import torch

    from benchmarks.floors import work_of
    from benchmarks.subjects import CASES, ON_GPU, TINY

    rows = []
    for case in [*ON_GPU.values(), *CASES.values()]:
        if case.model == TINY:
            continue
        with torch.device("meta"):
            network = case.network()
        work = work_of(network, case.side, case.batch)
        width = f", {case.width} wide" if case.model == "unet" else ""
        rate = work.images_per_second(**_GPU_FLOOR, value_bytes=2)
        figures = (work.operations / 1e9, 2 * work.values / 1e6, rate)
        named = f"{case.model} at {case.side}{width}"
        rows.append(f"| {named} | " + " | ".join(map(_number, figures)) + " |")
    head = """## Floors

No training step is faster than its layers, one after the other, can be computed and their values moved
(`benchmarks/floors.py` counts both, forward and backward). In bf16, at the 790 TFLOP/s and 4.3 TB/s that an
H200 reaches on a large product and a large copy:

| network | GFLOP an image | MB an image | images a second |
| --- | --- | --- | --- |
"""
    return head + "\n".join(rows)


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
