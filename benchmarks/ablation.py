"""Ablation and tuning: runs `mptui bench` and `mptui tune`, and saves their results with the machine.

    python -m benchmarks.ablation bench resnet18                # results/bench-resnet18.json
    python -m benchmarks.ablation bench unet --rounds 2         # add two rounds to the file
    python -m benchmarks.ablation bench unet --only bf16,fp16   # only these switches
    python -m benchmarks.ablation tune resnet18 --minutes 10    # results/tune-resnet18.json

Runs the same commands as a user and saves their --json output. Six rounds of all switches take a quarter of
an hour, so a benchmark can be measured in parts: each call adds its rounds to the rows of the file (`--anew`
starts over), and `--minutes` ends a call with the rounds measured so far. Ratios are taken within a round of
one part. A part with only some switches adds nothing to `everything` and to the leave-one-out rows, which
refer to all switches.
"""

import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import common
from mptui.lab.measure.core import BASELINE, EVERYTHING, ROUNDS, SampleSpan, ratio, total

SUBJECTS = {
    "resnet18": ("--model", "resnet18", "--set", "data.image_size=64", "--batch-size", "32"),
    "unet": (
        *("--model", "unet", "--set", "model.width=16", "--set", "model.depth=3"),
        *("--set", "data.image_size=128", "--batch-size", "8"),
    ),
}
INTERRUPTED = 130
GRACE_S = 60.0

Document = dict[str, Any]


def document_of(words: Sequence[str], limit_s: float | None = None) -> Document:
    """Returns the --json output of `mptui`; after `limit_s`, interrupts it as ctrl+c does.

    Raises:
        SystemExit: The command failed and printed the reason.
    """
    # a shell starts background jobs with SIGINT ignored, and their children inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command = [sys.executable, "-m", "mptui", *words, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            told, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
            told, _ = child.communicate(timeout=GRACE_S)
    if child.returncode not in {0, INTERRUPTED}:
        raise SystemExit(child.returncode)
    document: Document = json.loads(told)
    return document


def merged(parts: Sequence[Document]) -> Document:
    """Merges the parts of a benchmark into a document of the form of `mptui bench --json`, plus the parts."""
    names = dict.fromkeys(row["name"] for part in parts for row in _counted(part))
    rows = [_merged(name, parts) for name in names]
    shared = {key: parts[-1][key] for key in ("model", "device", "device_name", "seconds")}
    return {**shared, "rounds": len(rows[0]["rounds"]), "variants": rows, "parts": list(parts)}


def _counted(part: Document) -> Iterator[Document]:
    """Yields the rows of a part that are comparable between parts."""
    for row in part["variants"]:
        alone = row["name"] == BASELINE or (row["against"] == BASELINE and row["name"] != EVERYTHING)
        if part["only"] is None or alone:
            yield row


def _merged(name: str, parts: Sequence[Document]) -> Document:
    """Merges one row from all parts that contain it."""
    found = [(part, row) for part in parts for row in _counted(part) if row["name"] == name]
    first, last = found[0][1], found[-1][1]
    ours: list[SampleSpan] = []
    theirs: list[SampleSpan] = []
    for part, row in found:
        other = next((each for each in part["variants"] if each["name"] == row["against"]), row)
        pairs = list(
            zip(_spans(row, part), _spans(other, part), strict=False)
        )  # an interrupted round has one side
        ours += [pair[0] for pair in pairs]
        theirs += [pair[1] for pair in pairs]
    spans = [span for part, row in found for span in _spans(row, part)]
    over = ratio(ours, theirs) if ours and first["against"] is not None else None
    return {
        **last,
        "samples_per_second": total(spans).rate if spans else None,
        "ratio": None if over is None else over.document,
        "verdict": None if over is None else over.verdict,
        **{key: _median([row[key] for _, row in found]) for key in ("peak_bytes", "first_step_s", "loss")},
        "loss_off_baseline": _median([row["loss_off_baseline"] for _, row in found]),
        "rounds": [span.rate for span in spans],
        "seconds": [span.seconds for span in spans],
        "failed": None if spans else last["failed"],
    }


def _spans(row: Document, part: Document) -> list[SampleSpan]:
    """Returns the measured spans of a row; parts of earlier versions lack their seconds."""
    seconds = row.get("seconds", [part["seconds"]] * len(row["rounds"]))
    return [SampleSpan(rate * each, each) for rate, each in zip(row["rounds"], seconds, strict=True)]


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def bench(subject: str, *, rounds: int, seconds: float, only: str | None, minutes: float | None) -> Document:
    """Runs `mptui bench` once and returns its document as one part."""
    words = ["bench", *SUBJECTS[subject], "--against", "guides"]
    words += ["--rounds", str(rounds), "--seconds", str(seconds), *(["--only", only] if only else [])]
    return {"only": only, **document_of(words, None if minutes is None else 60 * minutes)}


def _kept_parts(name: str) -> list[Document]:
    path = common.RESULTS / f"{name}.json"
    parts: list[Document] = json.loads(path.read_text())["parts"] if path.exists() else []
    return parts


def main() -> None:
    """Measures and writes results/bench-SUBJECT.json or results/tune-SUBJECT.json."""
    parser = common.parser_of(__doc__)
    parser.add_argument("command", choices=["bench", "tune"])
    parser.add_argument("subject", choices=list(SUBJECTS))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of a bench")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="of training that a bench times, each time"
    )
    parser.add_argument("--only", metavar="NAME,…", help="these switches of a bench alone")
    parser.add_argument("--minutes", type=float, help="that tuning may take, or after which a bench ends")
    parser.add_argument("--anew", action="store_true", help="leave out what the file of a bench has")
    given = parser.parse_args()
    name = f"{given.command}-{given.subject}"
    if given.command == "tune":
        limit = ["--minutes", str(given.minutes)] if given.minutes is not None else []
        common.save(name, document_of(["tune", *SUBJECTS[given.subject], *limit]))
        return
    parts = [] if given.anew else _kept_parts(name)
    parts.append(
        bench(
            given.subject,
            rounds=given.rounds,
            seconds=given.seconds,
            only=given.only,
            minutes=given.minutes,
        )
    )
    common.save(name, merged(parts))


if __name__ == "__main__":
    main()
