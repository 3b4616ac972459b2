"""Sections of the data: from files to batches, and decoded images kept."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks import asked
from benchmarks.page.results import Result, Section
from benchmarks.page.training import measured_on
from benchmarks.page.words import (
    figure,
    listed,
    network,
    paragraph,
    percent,
    ratio,
    rounds,
    spread,
    table,
)

_BOTH = {"images_per_second": "images a second", "cpu_ms": "processor ms an image"}


def _photos(made: Mapping[str, Any]) -> str:
    """What the photos are, in a sentence."""
    count = f"{made['count']:,} photos"
    if "shares" not in made:
        return f"Photos: {count}, {made['photos']}."
    kinds = [f"{percent(each['share'])} {name}" for name, each in made["shares"].items()]
    return (
        f"Photos: {count}, {made['bytes'] / 1e6:.0f} MB of JPEG, {listed(kinds)}, cut out of "
        f"{len(made['originals'])} photographs."
    )


def inputs(results: Sequence[Result]) -> Section:
    """From photos on the disk to batches."""
    section = Section("Photos to batches")
    section.add(
        "JPEGs on the disk to normalised batches at 224 px, nothing trained: `mptui`'s loader, and "
        "torchvision's `ImageFolder` with its recipe in a `DataLoader` at each count of workers, of which "
        "the best counts. Processor time of the process and its workers, and wall time, an image; each "
        "figure is a fresh process after a pass to warm up.",
        _photos(results[0].document["set"]),
    )
    for result in results:
        command = f"python -m benchmarks.input{f' --only {result.part}' if result.part else ''}"
        for name in ("mixed", "typical"):
            if name in result.document:
                _input_of(section, result, name, command)
        if "wait" in result.document:
            waited = result.document["wait"]
            section.add(
                f"A ResNet-18 at 224 px trained from the photos on this machine takes "
                f"{figure(waited['samples_per_second'])} images a second and waits for its data "
                f"{percent(waited['data_wait_fraction'])} of the time (asked: at most {percent(asked.WAIT)})."
            )
            section.at_most_alone(
                "What a ResNet-18 at 224 px waits for its photos, of its time",
                *(waited["data_wait_fraction"], asked.WAIT, result, command, percent),
            )
    section.add(measured_on(results, "python -m benchmarks.input"))
    return section


def _input_of(section: Section, result: Result, name: str, command: str) -> None:
    measured = result.document[name]
    cpu, wall = measured["cpu_ms"], measured["wall_ms"]
    rows = [
        [
            f"mptui, {measured['workers']} workers"
            if side == "mptui"
            else side.replace("1 workers", "1 worker"),
            figure(cpu["median"][side]),
            figure(wall["median"][side]),
        ]
        for side in cpu["median"]
    ]
    rows.append(["decoding alone, whole photos", figure(measured["floor"]["whole_cpu_ms"]), ""])
    rows.append(["decoding alone, at the size needed", figure(measured["floor"]["needed_cpu_ms"]), ""])
    pixels = [
        f"{figure(off['mean'])} for the {off['photos']:,} {of}"
        for kind, of in (("whole", "photos that are decoded whole"), ("smaller", "decoded smaller"))
        if (off := measured["off_pillow"].get(kind))
    ]
    count = len(next(iter(measured["rounds"].values())))
    over = {of: found["imagefolder_over_mptui"] for of, found in (("cpu", cpu), ("wall", wall))}
    section.add(
        f"### {'All photos' if name == 'mixed' else 'Those of a typical size'}",
        table(["", "processor ms an image", "wall ms an image"], rows),
        paragraph(
            f"`ImageFolder` at its best takes {ratio(over['cpu'])} times the processor time and "
            f"{ratio(over['wall'])} times the wall time, by {rounds(count)} (asked of processor time: at "
            f"least {asked.INPUT:g}).",
            f"The pixels are off those of Pillow on the whole photo by {listed(pixels)}, of 255, on average.",
        ),
    )
    of = "" if name == "mixed" else " of a typical size"
    what = f"Photos{of} to batches at 224 px: `ImageFolder` over `mptui`, processor time"
    section.at_least(what, over["cpu"], asked.INPUT, result, command)


def cache(results: Sequence[Result]) -> Section:
    """Decoded images kept."""
    section = Section("Decoded images kept")
    for result in results:
        command = f"python -m benchmarks.cache{f' --only {result.part}' if result.part else ''}"
        if "epochs" in result.document:
            _epochs(section, result, command)
        if "scan" in result.document:
            _scan(section, result.document["scan"])
        section.add(measured_on([result], command))
    return section


def _epochs(section: Section, result: Result, command: str) -> None:
    measured, ready = result.document["epochs"], result.document["prepare"]
    cpu, wall = measured["cpu_ms"], measured["wall_ms"]
    titles = {
        "off": "`data.cache = off`",
        "ram": "`data.cache = ram`",
        "prepared": "set of `mptui prepare`, `off`",
    }
    rows = [
        [
            title,
            *(figure(kind["median"][side][when]) for when in ("first", "later") for kind in (cpu, wall)),
        ]
        for side, title in titles.items()
    ]
    headings = ["ms an image", "first epoch, processor", "wall", "later epochs, processor", "wall"]
    gains = [
        [title, ratio(cpu[key]), ratio(wall[key]), wanted]
        for key, title, wanted in (
            ("first_over_cached", "first epoch over one from memory", f"at least {asked.CACHED:g}"),
            ("off_over_cached", "epoch without a cache over one from memory", ""),
            ("first_over_off", "first epoch, which fills the cache, over one without", ""),
            ("off_over_prepared", "epoch of the files over one of the prepared set", ""),
        )
    ]
    section.add(
        "Photos to batches at 224 px, epoch by epoch: decoded each time, kept in memory by the first "
        "epoch, and read from a set that `mptui prepare` made of the same files.",
        _photos(result.document["set"]),
        table(headings, rows),
        table(["times as long", "processor", "wall", "asked"], gains),
        f"The prepared set takes {ready['bytes'] / 1e6:.0f} MB in place of {ready['bytes_before'] / 1e6:.0f} "
        f"and was made in {figure(ready['seconds'])} s. {rounds(len(measured['rounds']['ram']))}.",
    )
    for kind, clock in ((cpu, "processor time"), (wall, "wall time")):
        what = f"The first epoch over one from memory, {clock}"
        section.at_least(what, kind["first_over_cached"], asked.CACHED, result, command)


def decoding(results: Sequence[Result]) -> Section:
    """JPEG files decoded by the workers, and on the device."""
    section = Section("Who decodes")
    for result in results:
        command = f"python -m benchmarks.decoding{f' --only {result.part}' if result.part else ''}"
        if "input" in result.document:
            _decoded(section, result.document["input"])
        if "runs" in result.document:
            _trained(section, result.document["runs"])
        section.add(measured_on([result], command))
    return section


def _decoded(section: Section, measured: Mapping[str, Any]) -> None:
    rows = [
        [
            f"{count} worker{'' if count == 1 else 's'}",
            *(spread(measured[kind][f"{way} {count}"]) for kind in _BOTH for way in ("cpu", "device")),
            ratio(measured["device_over_cpu"][str(count)]),
        ]
        for count in measured["workers"]
    ]
    headings = [f"{title}, {by}" for title in _BOTH.values() for by in ("by workers", "on the device")]
    off = measured["apart"]
    section.add(
        f"{measured['images']:,} photos on the disk to batches at 224 px, nothing trained.",
        table(["", *headings, "device over workers"], rows),
        f"The pixels of the two ways are {figure(off['mean'])} of 255 apart on average, in the worst photo "
        f"{figure(off['worst_photo'])}.",
    )


def _trained(section: Section, measured: Mapping[str, Any]) -> None:
    rows = []
    for way, found in measured["rounds"].items():
        rates, waits = ([one[key] for one in found] for key in ("samples_per_second", "data_wait_fraction"))
        notes = dict.fromkeys(note for one in found for note in one["notes"])
        rows.append([f"`data.decode = {way}`", spread(rates), percent(median(waits)), "; ".join(notes)])
    section.add(
        f"`mptui run` of a {network(measured['model'])} from the photos. `auto` reaches "
        f"{ratio(measured['auto_over_best'])} of the better way.",
        table(["", "images a second", "waits for data", "what it chose"], rows),
    )


def _scan(section: Section, measured: Mapping[str, Any]) -> None:
    rows = [
        [
            f"{when} opening",
            figure(found["wall_s"]),
            figure(found["cpu_s"] + found["children_cpu_s"]),
            figure(found["bytes_a_file"]),
            figure(found["peak_bytes"] / 2**20),
        ]
        for when, found in measured.items()
    ]
    section.add(
        f"Opening a set of {measured['first']['files']:,} files, each time by a process of its own:",
        table(["", "wall s", "processor s", "bytes of memory a file", "peak MiB"], rows),
    )
