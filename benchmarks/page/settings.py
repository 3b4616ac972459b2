"""Sections of the settings: what is chosen, compiling, what each switch is worth, and tuning."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import asked
from benchmarks.page.results import Result, Section
from benchmarks.page.training import measured_on
from benchmarks.page.words import (
    beside_one,
    figure,
    interval,
    listed,
    network,
    paragraph,
    percent,
    ratio,
    rounds,
    table,
)


def choices(results: Sequence[Result]) -> Section:
    """What `auto` chooses."""
    section = Section("What `auto` chooses")
    section.add(
        "Precision, layout and optimizer's update as a run chooses them by measuring, anew each time with "
        "nothing kept, beside longer timings of all candidates between the trials. A choice is right where "
        "no candidate is faster by more than the margin that `auto` asks of it."
    )
    cases: dict[str, Mapping[str, Any]] = {}
    for result in results:
        command = f"python -m benchmarks.choices{f' --case {result.part}' if result.part else ''}"
        for name, measured in result.document.items():
            if name == "machine":
                continue
            cases[name] = measured
            if name in asked.CHANNELS_LAST and "fp32" in measured["last_over_first"]:
                what = f"{_at(name, measured)}: a step of FP32 in NCHW over channels last"
                found = measured["last_over_first"]["fp32"]
                section.at_least(what, found, asked.CHANNELS_LAST[name], result, command)
            _right(section, result, _at(name, measured), measured, command)
    section.add(*_choices_tables(cases), measured_on(results, "python -m benchmarks.choices"))
    return section


def _at(name: str, measured: Mapping[str, Any]) -> str:
    """A network and the size of its images."""
    return f"{network(name)} at {measured['side']} px" if "side" in measured else network(name)


def _right(section: Section, result: Result, name: str, measured: Mapping[str, Any], command: str) -> None:
    """The claim that all choices are right, told as the share of wrong ones."""
    right = [int(told.split(" of ")[0]) for told in measured["right"].values()]
    wrong = 1 - sum(right) / (measured["trials"] * len(right))
    section.at_most_alone(f"{name}: wrong choices of `auto`", wrong, 0.0, result, command, percent)


def _choices_tables(cases: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = [
        [
            _at(name, m),
            _chosen(m["chosen"]),
            *(m["right"][kind] for kind in ("precision", "layout", "update")),
        ]
        for name, m in cases.items()
    ]
    kinds = list(dict.fromkeys(kind for measured in cases.values() for kind in measured["seconds"]))
    steps = [
        [
            _candidate(kind),
            *(figure(1e3 * m["seconds"][kind]) if kind in m["seconds"] else "–" for m in cases.values()),
        ]
        for kind in kinds
    ]
    gains = [
        f"{_at(name, found)} {ratio(found['last_over_first']['fp32'])}"
        + (f" (asked: at least {asked.CHANNELS_LAST[name]:g})" if name in asked.CHANNELS_LAST else "")
        for name, found in cases.items()
        if "fp32" in found["last_over_first"]
    ]
    return [
        table(["", "chosen", "precision right", "layout right", "update right"], rows),
        table(["median ms", *(_at(name, found) for name, found in cases.items())], steps),
        f"A step of FP32 in NCHW over one in channels last: {listed(gains)}." if gains else "",
    ]


def _chosen(choices: Sequence[Mapping[str, str]]) -> str:
    """What was chosen, with how often where it was not always the same."""
    told = Counter(f"{c['precision']}, channels {c['layout']}, {c['update']}" for c in choices)
    return "; ".join(f"{words} ({times})" if len(told) > 1 else words for words, times in told.items())


def _candidate(kind: str) -> str:
    first, second = kind.split()
    if first == "update":
        return f"update, {second}"
    return f"step in {first}, channels {second}"


def compiling(results: Sequence[Result]) -> Section:
    """What compiling costs and gains."""
    section = Section("Compiling")
    rows, lines = [], []
    for result in results:
        blocks = result.part.startswith("blocks")
        for name, measured in result.document.items():
            if not isinstance(measured, dict) or name == "machine" or blocks:
                continue
            command = f"python -m benchmarks.compiling{f' --case {name}' if result.part else ''}"
            rows += _starts(name, measured)
            gain = {"more": "a gain", "less": "a loss", "a tie": "a tie"}
            lines.append(
                f"{network(name)}: the second start takes {ratio(measured['second_start'])} of the first "
                f"(asked: at most {asked.SECOND_START:g}), and a step that is not compiled "
                f"{ratio(measured['eager_over_compiled'])} times as long as a compiled one: "
                f"{gain[beside_one(measured['eager_over_compiled'])]}, by {rounds(len(measured['first']))}."
            )
            what = f"{network(name)}: a start with compiled code kept, of the first start"
            section.at_most(what, measured["second_start"], asked.SECOND_START, result, command)
    if rows:
        section.add(
            "`mptui run` in fresh processes: compiled with nothing kept, compiled again with what that "
            "kept, and not compiled. A start counts from the beginning of training to the end of its "
            "first step; the validation compiles once more. Medians.",
            table(["", "start, s", "validation's compiling, s", "a step, ms"], rows),
            "\n".join(f"- {line}" for line in lines),
        )
    _blocks(section, results)
    section.add(measured_on(results, "python -m benchmarks.compiling"))
    return section


def _starts(name: str, measured: Mapping[str, Any]) -> list[list[str]]:
    titles = {"first": "nothing kept", "again": "compiled code kept", "eager": "not compiled"}

    def middle(side: str, of: str) -> float:
        return float(statistics.median(each[of] for each in measured[side]))

    return [
        [
            f"{network(name)}, {title}",
            figure(middle(side, "start_s")),
            figure(middle(side, "validation_s")) if side != "eager" else "",
            figure(1e3 * middle(side, "step_s")),
        ]
        for side, title in titles.items()
    ]


def _blocks(section: Section, results: Sequence[Result]) -> None:
    rows, lines = [], []
    for result in results:
        if not result.part.startswith("blocks"):
            continue
        for name, measured in result.document.items():
            if not isinstance(measured, dict) or name == "machine":
                continue
            starts, step = measured["blocks_over_whole"], measured["blocks_over_whole_step"]
            ratios = (starts["first"], starts["again"], step, measured["blocks_over_whole_memory"])
            rows.append([network(name), *map(ratio, ratios)])
            used = {"more": "is a loss, and runs compile the whole", "less": "is a gain", "a tie": "is a tie"}
            wrong = measured["gradient_error"]
            lines.append(
                f"{network(name)}: each step by blocks {used[beside_one(step)]}; a step that is not compiled "
                f"takes {ratio(measured['eager_over_whole_step'])} times as long as one of the whole. "
                f"Gradients are {wrong['whole']:.1g} off eager ones (whole), {wrong['blocks']:.1g} (blocks), "
                f"{wrong['nested']:.1g} (torch's nested regions), relative to their length."
            )
    if rows:
        section.add(
            "Repeated blocks compiled as one, each by itself, over the whole compiled, in a bare loop:",
            table(["", "first start", "start with code kept", "a step", "peak memory, code kept"], rows),
            "\n".join(f"- {line}" for line in lines),
        )


def switches(results: Sequence[Result]) -> Section:
    """What each switch is worth."""
    section = Section("What each switch is worth")
    section.add(
        "`mptui bench --against guides`: each switch added alone to the plain FP32 loop, and left out of "
        "all of them together; in times as many images a second, with a 95 % interval, beside what guides "
        "to mixed precision promise of the switch on a GPU. A difference inside the noise is called one."
    )
    for result in results:
        _switches_of(section, result)
    return section


def _switches_of(section: Section, result: Result) -> None:
    document = result.document
    rows = {row["name"]: row for row in document["variants"]}
    base = rows["baseline"]
    lines = [["baseline", figure(base["samples_per_second"]), "", "", "", ""]]
    for name, row in rows.items():
        if name != "everything" and not name.startswith("+"):
            continue
        left_out = rows.get(f"-{name[1:]}") if name.startswith("+") else None
        lines.append(
            [
                row["title"].removeprefix("+ "),
                figure(row["samples_per_second"]) if row["failed"] is None else str(row["failed"]),
                _worth(row),
                _worth(left_out) if left_out else "",
                percent(row["peak_bytes"] / base["peak_bytes"])
                if row["peak_bytes"] and base["peak_bytes"]
                else "–",
                _promised(row.get("claim")),
            ]
        )
    told = {
        verdict: [
            row["title"].removeprefix("+ ")
            for row in rows.values()
            if row["name"].startswith("+") and row["verdict"] == verdict
        ]
        for verdict in ("faster", "slower", "same")
    }
    sentences = [
        f"Alone {text}: {listed(told[verdict])}."
        for verdict, text in (("faster", "faster"), ("slower", "slower"), ("same", "no more than noise"))
        if told[verdict]
    ]
    section.add(
        f"### {network(document['model'])}",
        table(
            [
                "",
                "images a second",
                "alone, times the baseline",
                "left out, times everything",
                "memory, of the baseline's",
                "guides say",
            ],
            lines,
        ),
        paragraph(*sentences, _together(rows.get("everything"))),
        f"{rounds(document['rounds'])} of {figure(document['seconds'])} s each. `python -m "
        f"benchmarks.ablation bench {result.part}` on {result.machine}.",
    )


def _worth(row: Mapping[str, Any]) -> str:
    noise = ", noise" if row["verdict"] == "same" else ""
    return interval(row["ratio"]) + noise


def _promised(claim: Mapping[str, Any] | None) -> str:
    if claim is None:
        return ""
    speed = f"{claim['speed']:g} times" if claim["speed"] else ""
    memory = f"{percent(claim['memory'])} memory" if claim["memory"] else ""
    return ", ".join(part for part in (speed, memory) if part)


def _together(row: Mapping[str, Any] | None) -> str:
    if row is None or row["ratio"] is None:
        return ""
    claim = row.get("claim")
    promised = f" where guides promise {claim['speed']:g}" if claim and claim["speed"] else ""
    return f"Everything together is {interval(row['ratio'])} times the baseline{promised}."


def tuning(results: Sequence[Result]) -> Section:
    """What tuning finds."""
    section = Section("What tuning finds")
    section.add(
        "`mptui tune`: short runs in turn, one setting after the other, each held against the value in "
        "force then, with a 95 % interval; what is faster beyond the noise stays in force."
    )
    for result in results:
        document = result.document
        rows = []
        for finding in document["findings"]:
            tried = "; ".join(
                f"{entry['value']} {entry['failed'] or interval(entry['ratio'])}"
                for entry in finding["tried"]
            )
            rows.append([finding["name"], str(finding["before"]), tried, str(finding["kept"])])
        untried = f"There was no time for {listed(document['untried'])}." if document["untried"] else ""
        section.add(
            f"### {network(document['model'])}",
            table(["", "before", "tried, times as fast", "kept"], rows),
            paragraph(
                f"All of it is {interval(document['ratio'])} times as fast as the start, by "
                f"{rounds(document['ratio_rounds'])}."
                if document["ratio"]
                else "",
                untried,
                f"It took {document['runs']} runs in {figure(document['seconds'] / 60)} minutes.",
            ),
            f"`python -m benchmarks.ablation tune {result.part}` on {result.machine}.",
        )
    return section
