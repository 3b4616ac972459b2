"""Sections of a run around its steps: saving, attaching, and ten million steps."""

from collections.abc import Sequence

from benchmarks import asked
from benchmarks.page.results import Result, Section
from benchmarks.page.training import measured_on
from benchmarks.page.words import figure, network, percent, ratio, rounds, spread, table

WIDE = 5
"""Times the median: a highest round that far off says little."""


def saving(results: Sequence[Result]) -> Section:
    """What saving costs the training."""
    section = Section("Saving")
    rows = []
    for result in results:
        measured = result.document
        share = measured["share_at_one_a_minute"]
        rows.append(
            [
                network(result.part),
                f"{measured['size_bytes'] / 1e6:.0f} MB",
                f"{figure(measured['written_in_s'])} s",
                f"{ratio(measured['cost_s'])} s",
                f"{ratio(measured['processor_s'])} s",
                f"{percent(share['median'])} ({percent(share['min'])} to {percent(share['max'])})",
            ]
        )
    costs = [result.document["cost_s"] for result in results]
    wide = any(cost["max"] > WIDE * cost["median"] for cost in costs)
    section.add(
        "Blocks of steps in one process, with a checkpoint written beside them and without, in turn: what "
        "a block with a save takes longer than as many steps without one is what the save costs. "
        f"{rounds(results[0].document['rounds'])}.",
        table(
            [
                "",
                "checkpoint",
                "written in",
                "costs the training",
                "processor time",
                "share at one a minute",
            ],
            rows,
        ),
        "The rounds differ too much for more than the median to be read." if wide else "",
        measured_on(results, "python -m benchmarks.saving"),
    )
    return section


def attach(results: Sequence[Result]) -> Section:
    """How long `mptui attach` takes on a long journal without an index."""
    section = Section("Attaching without an index")
    for result in results:
        measured = result.document
        section.add(
            f"`mptui attach` on a journal of {measured['events']:,} events ({measured['bytes'] / 1e6:.0f} "
            f"MB), as an older version left it, takes {spread(measured['seconds'])} s from the start of "
            f"the process to the first full frame, by {rounds(len(measured['seconds']))}.",
            measured_on([result], "python -m benchmarks.attach"),
        )
    return section


def long_run(results: Sequence[Result]) -> Section:
    """What a run of ten million steps costs."""
    section = Section("Ten million steps")
    for result in results:
        each_step = result.name.endswith("each_step")
        command = f"python -m benchmarks.long_run{' --each-step' if each_step else ''}"
        document, seconds = result.document, result.document["seconds"]
        short, long = document["points"]
        rows = [
            [
                "memory, MiB",
                *(figure(point["resident_mib"]) for point in (short, long)),
                f"{document['grown_mib']:+.1f} MiB",
                f"at most {asked.GROWN_MIB:+g} MiB",
            ],
            [
                "journal and view, µs a step",
                figure(short["us_a_step"]),
                figure(long["us_a_step"]),
                f"{figure(document['us_a_step_ratio'])} times",
                "",
            ],
            ["renewing the index, ms", figure(short["renew_ms"]), figure(long["renew_ms"]), "", ""],
            ["journal, MB", *(figure(point["journal_bytes"] / 1e6) for point in (short, long)), "", ""],
            ["index, MB", *(figure(point["index_bytes"] / 1e6) for point in (short, long)), "", ""],
            *(
                [
                    title,
                    spread(seconds[f"{kind} short"]),
                    spread(seconds[f"{kind} long"]),
                    f"{ratio(document['ratios'][kind])} times",
                    f"at most {asked.LONG:g} times" if kind != "screen" else "",
                ]
                for kind, title in (
                    ("attach", "attach, processor s"),
                    ("screen", "attach to the first frame, s"),
                    ("resume", "resume, s"),
                )
            ),
        ]
        told = "of each step" if each_step else "as much as a real one does in that time"
        after = [f"after {point['steps']:,} steps" for point in (short, long)]
        section.add(
            f"A run in fast forward, which tells {told} into a real journal and the view of a live "
            "screen; then both journals attached to and resumed, in turn, by fresh processes, "
            f"{rounds(len(seconds['attach short']))}.",
            table(["", *after, "long over short", "asked"], rows),
            measured_on([result], command),
        )
        section.at_most_alone(
            f"{long['steps']:,} steps: more memory than after {short['steps']:,}",
            *(document["grown_mib"], asked.GROWN_MIB, result, command),
            lambda value: f"{value:.3g} MiB",
        )
        for kind in ("attach", "resume"):
            what = f"{long['steps']:,} steps: `mptui {kind}` over that after {short['steps']:,}"
            section.at_most(what, document["ratios"][kind], asked.LONG, result, command)
    return section
