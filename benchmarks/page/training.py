"""Sections of the training loop: beside its peers, alone, with what watches it, under a screen, on a GPU."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import asked
from benchmarks.page.results import Result, Section
from benchmarks.page.words import (
    bounds,
    capital,
    figure,
    listed,
    network,
    paragraph,
    percent,
    ratio,
    rounds,
    spread,
    standing,
    table,
)

SIDES = {
    "mptui": "`mptui run`",
    "bare": "bare loop",
    "recipe": "torchvision's recipe",
    "accelerate": "Accelerate",
    "timm": "timm",
    "lightning": "bare-bones Lightning",
    "lightning-logging": "Lightning with its bar and logger",
}


def peers(results: Sequence[Result]) -> Section:
    """`mptui run` beside a bare loop and other trainers."""
    section = Section("Beside a bare loop and other trainers")
    section.add(
        "`mptui run`, with its logging, journal and guards as they are by default, and other ways to train "
        "the same network: a bare loop tuned by hand, torchvision's reference script, Accelerate, timm, "
        "and Lightning both stripped for measuring and with its bar and logger. Batch, precision, "
        "optimizer, layout and threads are the same for all, the data is in memory. Each round has fresh "
        "processes; on a CPU they all live and work in turn for a second each, since two that do the same "
        "differ by some percent from second to second, and from start to start. These turns are too short "
        "for what `mptui run` does once in half a minute, a look at its numerics: that takes as long as one "
        "or two steps. The floor is what the "
        "network's operations and bytes take at the speed of a large product or convolution and of a large "
        "copy, measured in the same run."
    )
    for result in results:
        for name, measured in result.document["cases"].items():
            _peers_of(section, result, name, measured)
    return section


def _peers_of(section: Section, result: Result, name: str, measured: Mapping[str, Any]) -> None:
    case, ratios = measured["case"], measured["ratios"]
    command = "python -m benchmarks.peers"
    if result.part:
        command += " --device cuda" if result.part == "cuda" else f" --only {name}"
    command += f" --rounds {result.document['rounds']}"
    wanted = asked.PEERS["tiny" if name == "tiny" else case["device"]]
    rates = measured["images_per_second"]
    rows = [
        [
            SIDES[side],
            spread(values),
            ratio(ratios[side]) if side in ratios else "",
            f"at least {wanted[side]:g}" if side in wanted and side in ratios else "",
        ]
        for side, values in rates.items()
    ]
    floor = measured["floor"]["images_per_second"]
    rows.append(["floor", figure(floor), figure(statistics.median(rates["mptui"]) / floor), ""])
    by = {"wall": "by the wall clock", "cpu": "by processor time"}[result.document["clock"]]
    compiled = "compiled" if case["compile"] != "off" else "not compiled"
    section.add(
        f"### {capital(network(name))}",
        f"{case['side']} px, {case['batch']} images a step, {case['precision']}, {compiled}; "
        f"{rounds(result.document['rounds'])}, {by}. `{command}` on {result.machine}.",
        table(["", "images a second", "`mptui run` over it", "asked"], rows),
        paragraph(
            standing({_the(side): found for side, found in ratios.items()}),
            "More is reached than this floor allows: what was measured as the machine's best is not its best."
            if statistics.median(rates["mptui"]) > floor
            else "",
        ),
    )
    if "bare" in wanted and "bare" in ratios:
        what = f"{network(name)}: `mptui run` over a bare loop"
        section.at_least(what, ratios["bare"], wanted["bare"], result, command)
    for least in sorted({value for side, value in wanted.items() if side != "bare" and side in ratios}):
        sides = [side for side in wanted if wanted[side] == least and side != "bare" and side in ratios]
        closest = min(sides, key=lambda side: ratios[side]["median"])
        over = SIDES[closest] if len(sides) == 1 else f"the nearest of {len(sides)} others ({SIDES[closest]})"
        section.at_least(f"{network(name)}: `mptui run` over {over}", ratios[closest], least, result, command)


def _the(side: str) -> str:
    """A side as a sentence names it."""
    return f"the {SIDES[side]}" if side == "bare" else SIDES[side]


def loop(results: Sequence[Result]) -> Section:
    """What the host does for a step beyond a bare loop."""
    section = Section("The loop alone")
    rows = []
    for result in results:
        low, middle, high = result.document["over_bare_us_quartiles"]
        times = result.document["median_us"]
        more = f"{bounds(middle, low, high)} more"
        rows.append([*(figure(times[side]) for side in ("mptui", "bare")), more])
        section.at_most_alone(
            "Tiny network: a turn of the trainer's loop beyond a bare loop's",
            *(middle, asked.LOOP_TINY_US, result, "python -m benchmarks.loop"),
            lambda value: f"{value:.3g} µs",
        )
    section.add(
        "A turn of the trainer's loop with all that a run has by default, beside one of a bare loop, on the "
        "tiny network, all of whose step is the interpreter's work: µs of processor time, in one process and "
        "in blocks that alternate (the middle half of the blocks in brackets).",
        table(["`mptui`", "bare loop", "over it"], rows),
        measured_on(results, "python -m benchmarks.loop"),
    )
    return section


def measured_on(results: Sequence[Result], command: str) -> str:
    """The line that says where and by what."""
    places = dict.fromkeys(result.place for result in results)
    versions = dict.fromkeys(result.versions for result in results)
    return f"`{command}` on {listed(places)}; {'; '.join(versions)}."


def guards(results: Sequence[Result]) -> Section:
    """What the guards cost a healthy run."""
    section = Section("The guards")
    rows: list[list[str]] = []
    unseen: list[str] = []
    every = 0
    for result in results:
        for name, measured in result.document.items():
            if name == "machine":
                continue
            every = measured["snapshot_every"]
            low, middle, high = measured["guards_us_quartiles"]
            if low < 0 < high:
                unseen.append(network(name))
            rows.append(
                [
                    network(name),
                    f"{figure(measured['step_us'])} µs",
                    f"{bounds(middle, low, high)} µs",
                    f"{figure(measured['snapshot_ms'])} ms",
                    percent(measured["share"]),
                    f"at most {percent(asked.GUARDS)}",
                ]
            )
            section.at_most_alone(
                f"{network(name)}: what the guards take of a step",
                *(measured["share"], asked.GUARDS, result, "python -m benchmarks.guards", percent),
            )
    section.add(
        "What watches for divergence and bad numbers, in a healthy run: the same trainer with the guards "
        "and with nothing in their place, in blocks of steps that alternate in one process; the middle "
        f"half of the blocks in brackets. A snapshot comes once in {every:,} steps and is in the share.",
        table(["", "a step", "guards a step", "a snapshot", "share of a step", "asked"], rows),
        f"On {listed(unseen)} the guards' work is less than what blocks differ by anyway." if unseen else "",
        measured_on(results, "python -m benchmarks.guards"),
    )
    return section


def numerics(results: Sequence[Result]) -> Section:
    """What looks at the numbers cost."""
    section = Section("Looks at the numbers")
    for result in results:
        measured = result.document
        rows = [
            [
                f"guards.numerics = {look}",
                f"{ratio(measured[look]['a_step_looked_at'])} times",
                percent(measured[look]["share_of_a_run"]),
            ]
            for look in ("summary", "full")
        ]
        section.add(
            f"One step in a while is looked at layer by layer. A step of {network(measured['model'])} at "
            f"{measured['side']} px with {measured['batch']} images takes "
            f"{figure(1e3 * measured['step_s'])} ms; beside it the same with a look, in turn, and the "
            "share of a run's time that looks take at the pace the lens keeps to.",
            table(["", "a step that is looked at", "share of a run, at most"], rows),
            measured_on([result], "python -m benchmarks.numerics"),
        )
    return section


def ui(results: Sequence[Result]) -> Section:
    """Training under the terminal UI."""
    section = Section("Under the screen")
    rows = []
    for result in results:
        for name, measured in result.document.items():
            if name not in asked.UI:
                continue
            command = f"python -m benchmarks.ui{f' --only {name}' if result.part else ''}"
            sides = [spread(measured[side]) for side in ("mptui", "mptui run")]
            rows.append([network(name), *sides, ratio(measured["ratio"]), f"at least {asked.UI[name]:g}"])
            what = f"{network(name)}: `mptui` with its screen over `mptui run`"
            section.at_least(what, measured["ratio"], asked.UI[name], result, command)
    width, height = results[0].document["terminal"]
    section.add(
        f"The same run in `mptui`, on a real terminal of {width}x{height} cells that is read all the time, "
        "and in `mptui run`; each figure is the run's own samples a second, of a fresh process. The loop "
        "bound by Python takes thousands of tiny steps: there the screen's thread costs most.",
        table(["", "`mptui`", "`mptui run`", "with the screen over without", "asked"], rows),
        measured_on(results, "python -m benchmarks.ui"),
    )
    return section


def gpu(results: Sequence[Result]) -> Section:
    """What a GPU is asked for."""
    section = Section("On a GPU")
    section.add(
        "`mptui run` in strict FP32, FP32 (TF32) and AMP (the better of bf16 and fp16), all else equal and "
        "compiled; beside it the best peer, and the floor by the card's own large product and large copy."
    )
    for result in results:
        command = f"python -m benchmarks.gpu{f' --only {result.part}' if result.part else ''}"
        for name, wanted in asked.GPU.items():
            if name in result.document:
                _gpu_network(section, result, name, wanted, command)
        if "photos" in result.document:
            photos = result.document["photos"]
            rows = [[side, spread(values)] for side, values in photos["images_per_second"].items()]
            section.add("### From JPEG to weights", table(["", "images a second"], rows))
            what = "Photos: everything together over a plain FP32 script"
            section.at_least(what, photos["over_plain_script"], asked.GPU_PHOTOS, result, command)
        section.add(measured_on([result], command))
    return section


def _gpu_network(section: Section, result: Result, name: str, wanted: asked.OnGpu, command: str) -> None:
    measured = result.document[name]
    held: list[tuple[str, str, float | None]] = [
        ("AMP as a share of the floor", "floor_share", wanted.floor_share),
        ("AMP over FP32 with TF32", "amp_over_tf32", wanted.over_tf32),
        ("AMP over strict FP32", "amp_over_fp32", wanted.over_fp32),
        (f"AMP over the best peer, {measured.get('best_peer', '')}", "over_best_peer", wanted.over_peer),
    ]
    rows = [[side, spread(values)] for side, values in measured["images_per_second"].items()]
    rows.append(["floor", figure(measured["floor"]["images_per_second"])])
    section.add(f"### {network(name)}", table(["", "images a second"], rows))
    ratios = [(what, measured[key], least) for what, key, least in held if key in measured and least]
    section.add(
        table(
            ["", "measured", "asked"],
            [[what, ratio(found), f"at least {least:g}"] for what, found, least in ratios],
        )
    )
    for what, found, least in ratios:
        section.at_least(f"{network(name)}: {what}", found, least, result, command)
    memory = measured["memory"]
    shares = {kind: memory[kind]["share"] for kind in asked.GPU_MEMORY if kind in memory}
    if shares:
        peaks = memory["peak_bytes"]
        section.add(
            table(
                ["", "peak memory, MiB", "of FP32's", "asked"],
                [
                    ["fp32", figure(peaks["fp32"] / 2**20), "", ""],
                    *(
                        [kind, figure(peaks[kind] / 2**20), percent(share), f"at most {percent(most)}"]
                        for kind, share in shares.items()
                        for most in [asked.GPU_MEMORY[kind]]
                    ),
                ],
            )
        )
    for kind, share in shares.items():
        what = f"{network(name)}: memory of {kind} as a share of FP32's"
        section.at_most_alone(what, share, asked.GPU_MEMORY[kind], result, command, percent)
