"""Writes `docs/speed.md`: one table of the figures in `benchmarks/results/`, each with its goal.

python -m benchmarks.speed_page > docs/speed.md
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import targets
from benchmarks.common import RESULTS

HEAD = """# Speed

Each figure is one of `benchmarks/results/`, with its machine. This page is made of them by
`python -m benchmarks.speed_page > docs/speed.md`; the module of each command says how it measures.

Compared sides ran alternately. A figure is the median of its rounds, with the lowest and the highest in
brackets (quartiles where many short blocks were measured, a 97 % interval for `mptui bench`), and a ratio is
taken within its round. A ratio with rounds on both sides of 1 is a tie."""

NETWORKS = {"resnet18": "ResNet-18", "resnet50": "ResNet-50", "unet": "U-Net", "tiny": "Tiny network"}
SIDES = {
    "bare": "a bare loop",
    "recipe": "torchvision's recipe",
    "accelerate": "Accelerate",
    "timm": "timm",
    "lightning": "bare-bones Lightning",
    "lightning-logging": "Lightning with its bar and logger",
}


@dataclass(frozen=True)
class Figure:
    """A figure and its location.

    Attributes:
        what: Description of the figure.
        result: Name of the result file, without its suffix.
        path: Keys down to the figure, separated by `/`; an item of a list is found by its `name`.
        command: Command that measures it.
        goal: Minimum, or maximum if `at_most`; None: no goal.
        unit: `%` for a fraction of 1, or the text after the number.
    """

    what: str
    result: str
    path: str
    command: str
    goal: float | None = None
    at_most: bool = False
    unit: str = ""


def figures() -> Iterator[Figure]:
    """Yields all figures, in the order of the page."""
    yield from _peers()
    yield from _loop()
    yield from _tiny_images()
    yield from _data()
    yield from _settings()
    yield from _diffusion()
    yield from _long_runs()
    yield from _gpu()


def _peers() -> Iterator[Figure]:
    for network in ("resnet18", "unet", "tiny"):
        goals = targets.PEERS["tiny" if network == "tiny" else "cpu"]
        for side, name in SIDES.items():
            what = f"{NETWORKS[network]}: `mptui run` over {name}, images/s"
            path = f"cases/{network}/ratios/{side}"
            command = f"benchmarks.peers --only {network}"
            yield Figure(what, f"peers-{network}", path, command, goals.get(side))


def _loop() -> Iterator[Figure]:
    what = "Tiny network: a step of the trainer beyond a bare loop's, processor time"
    yield Figure(what, "loop", "over_bare_us_quartiles", "benchmarks.loop", targets.LOOP_TINY_US, True, " µs")
    what = "ResNet-18, two processes of one thread: the trainer over a bare DDP loop, images/s"
    yield Figure(what, "scaling", "ratio", "benchmarks.scaling", targets.RANKS)
    for network in ("resnet18", "tiny", "tiny-fp16"):
        what = f"{NETWORKS.get(network, 'Tiny network, FP16')}: the guards' share of a step"
        yield Figure(what, "guards", f"{network}/share", "benchmarks.guards", targets.GUARDS, True, "%")
    for look in ("summary", "full"):
        what = f"ResNet-18: share of a run with `guards.numerics = {look}`"
        yield Figure(what, "numerics", f"{look}/share_of_a_run", "benchmarks.numerics", unit="%")
    for loop, name in (("resnet18", "ResNet-18"), ("python", "Loop bound by Python")):
        what = f"{name}: `mptui` with its screen over `mptui run`, images/s"
        yield Figure(what, f"ui-{loop}", f"{loop}/ratio", f"benchmarks.ui --only {loop}", targets.UI[loop])
    for size in ("80x24", "140x45", "200x60"):
        what = f"The live screen of a run in another process at {size}: share of a core"
        yield Figure(what, "drawing", f"{size}/share", "benchmarks.drawing", targets.DRAWING, True, "%")
    for state, words in (("ended", "a run that has ended"), ("training", "a run that trains beside it")):
        for size in ("80x24", "200x60"):
            what = f"From a key to the screen's answer at {size}, {words}: 90 % of all keys within"
            yield Figure(what, "keys", f"{state}/{size}/p90", "benchmarks.keys", targets.KEY_MS, True, " ms")


def _tiny_images() -> Iterator[Figure]:
    for network, precision, word in (
        ("resnet18", "bfloat16", "bf16"),
        ("resnet18", "float32", "fp32"),
        ("resnet50", "bfloat16", "bf16"),
    ):
        what = f"{NETWORKS[network]}, 32 px, {word}: a step with products over one with oneDNN's convolutions"
        path = f"cases/{network}-32-{precision}/ratio"
        yield Figure(what, "tiny_images", path, "benchmarks.tiny_images")


def _data() -> Iterator[Figure]:
    for clock, name in (("processor", "processor time"), ("wall", "wall time")):
        what = f"ResNet-18 at 64 px, images in memory: `mptui predict` over a bare loop, {name}"
        goal = targets.PREDICT if clock == "processor" else None  # wall time needs a quiet machine
        yield Figure(what, "predict", clock, "benchmarks.predict --threads 1", goal)
    what = "Photos to batches at 224 px: `ImageFolder` over `mptui`, "
    path, command = "imagefolder_over_mptui", "benchmarks.input --only mixed"
    yield Figure(f"{what}processor time", "input-mixed", f"mixed/cpu_ms/{path}", command, targets.INPUT)
    yield Figure(f"{what}wall time", "input-mixed", f"mixed/wall_ms/{path}", command)
    what = "ResNet-18 at 224 px from photos: share of time that waits for data"
    path, command = "wait/data_wait_fraction", "benchmarks.input --only wait"
    yield Figure(what, "input-wait", path, command, targets.WAIT, True, "%")
    command = "benchmarks.cache --only epochs"
    for clock, name in (("cpu_ms", "processor time"), ("wall_ms", "wall time")):
        what = f"The first epoch over one from memory, {name}"
        yield Figure(what, "cache-epochs", f"epochs/{clock}/first_over_cached", command, targets.CACHED)
    what = "An epoch of the files over one of a set of `mptui prepare`, wall time"
    yield Figure(what, "cache-epochs", "epochs/wall_ms/off_over_prepared", command)
    for key, what in (
        ("wall_ms", "wall time of an image"),
        ("first_batch_s", "seconds to the first batch"),
        ("next_pass_s", "seconds to the next pass where one is left in its middle"),
        ("memory_mb", "memory of the workers"),
    ):
        yield Figure(
            f"torch's `DataLoader` over `mptui`, both with mptui's decoder: {what}",
            "workers",
            f"{key}/forkserver over mptui",
            "benchmarks.workers",
        )


def _settings() -> Iterator[Figure]:
    for network, side in (("resnet18", 64), ("resnet50", 224), ("unet", 128)):
        name = f"{NETWORKS[network]} at {side} px"
        for kind in ("precision", "layout", "update"):
            what = f"{name}: right choices of `auto`, {kind}"
            yield Figure(what, "choices", f"{network}/right/{kind}", "benchmarks.choices")
        what, path = f"{name}: FP32 in NCHW over channels last, a step", f"{network}/last_over_first/fp32"
        goal = targets.CHANNELS_LAST.get(network)
        yield Figure(what, "choices", path, "benchmarks.choices", goal)
    path, command = "resnet18/second_start", "benchmarks.compiling --case resnet18"
    what = "ResNet-18: a start with compiled code kept over the first start"
    yield Figure(what, "compiling-resnet18", path, command, targets.SECOND_START, at_most=True)
    for network in ("resnet18", "unet"):
        for variant, name in (("everything", "all speed settings"), ("+bf16", "bf16 alone")):
            what = f"{NETWORKS[network]}: {name} over the plain FP32 loop (`mptui bench`)"
            path, command = f"variants/{variant}/ratio", f"benchmarks.ablation bench {network}"
            yield Figure(what, f"bench-{network}", path, command)


def _diffusion() -> Iterator[Figure]:
    over = "Diffusion U-Net at 16 px over diffusers' UNet2DModel of the same size: "
    command = "benchmarks.diffusers_unet DATA --only sampling"
    for method, name in (("ancestral", "ancestral"), ("ddim", "DDIM")):
        what, path = f"{over}sampling, {name}, images/s", f"images_per_second/{method}/ratio"
        yield Figure(what, "diffusers_unet-sampling", path, command, targets.DIFFUSERS)
    result, command = "diffusers_unet-training", "benchmarks.diffusers_unet DATA --only training"
    yield Figure(f"{over}training, images/s", result, "images_per_second/ratio", command)
    what, goal = f"{over}loss on other images", targets.DIFFUSERS_LOSS
    yield Figure(what, result, "val_loss/ratio", command, goal, at_most=True)
    for result, precision in (("wide", "bf16"), ("narrow", "bf16"), ("narrow", "fp16")):
        width = "of width 32" if result == "wide" else "of width 16"
        what, path = f"Diffusion U-Net {width}: loss in {precision} over fp32", f"over_fp32/{precision}"
        yield Figure(what, f"ddpm-{result}", path, f"benchmarks.ddpm DATA --only {result}")


def _long_runs() -> Iterator[Figure]:
    what = "ResNet-50: share of a run's time for one checkpoint a minute"
    yield Figure(what, "saving-resnet50", "share_at_one_a_minute", "benchmarks.saving", unit="%")
    what = "`mptui attach` to a journal of 1,000,000 events without an index"
    yield Figure(what, "attach", "median_s", "benchmarks.attach", unit=" s")
    what, command = (
        "from a key to the frame of an earlier moment, over 1,000,000 events",
        "benchmarks.time_travel",
    )
    yield Figure(what, "time_travel", "median_s", command, targets.TIME_TRAVEL, at_most=True, unit=" s")
    what, command = "10,000,000 steps over 100,000: ", "benchmarks.long_run"
    yield Figure(f"{what}memory", "long_run", "grown_mib", command, targets.GROWN_MIB, True, " MiB more")
    for verb in ("attach", "resume"):
        path = f"ratios/{verb}"
        yield Figure(f"{what}`mptui {verb}`", "long_run", path, command, targets.LONG, at_most=True)


def _gpu() -> Iterator[Figure]:
    command = "benchmarks.gpu"
    for network, wanted in targets.GPU.items():
        name = f"GPU, {NETWORKS[network]}: "
        for mode, way in (("off", "eager"), ("default", "compiled")):
            what = f"{name}`mptui run` over a bare loop, in bf16, {way}, images/s"
            yield Figure(what, "gpu", f"{network}/over_bare/bf16 {mode}", command, targets.LOOP)
        for what, path, goal in (
            ("AMP's share of the floor", "floor_share", wanted.floor_share),
            ("AMP over FP32 with TF32", "amp_over_tf32", wanted.over_tf32),
            ("AMP over strict FP32", "amp_over_fp32", wanted.over_fp32),
            ("AMP over the best peer", "over_best_peer", wanted.over_peer),
        ):
            yield Figure(f"{name}{what}", "gpu", f"{network}/{path}", command, goal)
        for kind, most in targets.GPU_MEMORY.items():
            path = f"{network}/memory/{kind}/share"
            yield Figure(f"{name}peak memory of {kind} over FP32's", "gpu", path, command, most, True, "%")
    what = "GPU: from JPEG to weights, over a plain FP32 script"
    yield Figure(what, "gpu", "photos/over_plain_script", command, targets.GPU_PHOTOS)


def page(folder: Path = RESULTS) -> str:
    """Returns the page for the results in `folder`."""
    rows = [(figure, *_measured(figure, folder)) for figure in figures()]
    goals = [(figure, reached) for figure, _, reached, _ in rows if reached]
    missed = [figure.what for figure, reached in goals if reached == "no"]
    summary = f"{len(goals)} figures with a goal are measured, {len(goals) - len(missed)} reach it."
    if missed:
        summary += f" Missed: {'; '.join(missed)}."
    lines = [
        "| what | measured | goal | reached | machine | command |",
        "| --- | ---: | ---: | --- | --- | --- |",
    ]
    for figure, measured, reached, machine in rows:
        goal = (
            ""
            if figure.goal is None
            else f"{'≤' if figure.at_most else '≥'} {_number(figure.goal, figure.unit)}"
        )
        cells = (figure.what, measured, goal, reached, machine, f"`python -m {figure.command}`")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n\n".join((HEAD, summary, "\n".join(lines))) + "\n"


def _measured(figure: Figure, folder: Path) -> tuple[str, str, str]:
    """Returns the figure, whether it reaches its goal, and the machine."""
    documents = (
        json.loads(path.read_text(encoding="utf-8"))
        for stem in (figure.result, figure.result.partition("-")[0])
        if (path := folder / f"{stem}.json").exists()
    )
    found = [(document, value) for document in documents if (value := _at(document, figure.path)) is not None]
    if not found:
        return "not measured yet", "", ""
    document, value = max(found, key=lambda pair: str(pair[0]["machine"]["date"]))
    text, middle = _told(value, figure.unit)
    if figure.goal is None or middle is None:
        return text, "", _machine(document["machine"])
    reached = middle <= figure.goal if figure.at_most else middle >= figure.goal
    return text, "yes" if reached else "no", _machine(document["machine"])


def _at(document: Any, path: str) -> Any:  # noqa: ANN401 - JSON
    for key in path.split("/"):
        if isinstance(document, list):
            document = next((item for item in document if item["name"] == key), None)
        elif isinstance(document, dict):
            document = document.get(key)
    return document


def _told(value: Any, unit: str) -> tuple[str, float | None]:  # noqa: ANN401 - JSON
    """Formats a figure; returns the text and its median."""
    if isinstance(value, str):
        return value, None
    if isinstance(value, int | float):
        return _number(value, unit), float(value)
    if isinstance(value, list):
        low, middle, high = value
    else:
        low, high = (value["min"], value["max"]) if "min" in value else (value["low"], value["high"])
        middle = value["median"]
    bounds = unit if unit == "%" else ""
    return f"{_number(middle, unit)} ({_number(low, bounds)} to {_number(high, bounds)})", float(middle)


def _number(value: float, unit: str) -> str:
    """Formats a number with three significant digits and the unit."""
    return f"{100 * value:.3g} %" if unit == "%" else f"{value:.3g}{unit}"


def _machine(about: Mapping[str, Any]) -> str:
    return f"{about.get('gpu') or about['cpu']}, torch {about['torch']}, {about['date']}"


if __name__ == "__main__":
    print(page(), end="")
