"""The first hour on a GPU: checks and measurements in the order of what they tell, and a page to send.

    python -m benchmarks.first_hour                     # 30 minutes at most
    python -m benchmarks.first_hour --minutes 6
    python -m benchmarks.first_hour --only identity,graphs

Leaves a folder with `report.md`, a page to attach to a bug report; `report.json`, rewritten after each
check; and the whole output of each command in `logs/`. Ends after a check without which the next ones tell
nothing. On a machine without a GPU the same checks train small networks on the CPU, and what needs a GPU is
named as not tried. Ends with 1 if a check has failed.
"""

import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import machine, parser_of
from benchmarks.hour_checks import CHECKS, Check, Found, Ran

SPARE_S = 5.0
"""Seconds kept for writing the report."""


@dataclass
class Hour:
    """The machine and the time of all checks.

    Attributes:
        folder: Folder of the report.
        until: End of the time, in seconds of `time.monotonic`.
        gpus: Number of GPUs that torch can use.
        scratch: Folder of runs and files that no report needs.
    """

    folder: Path
    until: float
    gpus: int
    scratch: Path
    commands: list[dict[str, Any]] = field(default_factory=list)

    @property
    def device(self) -> str:
        """`cuda`, or `cpu` without a GPU."""
        return "cuda" if self.gpus else "cpu"

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.until - time.monotonic() - SPARE_S

    def command(self, name: str, words: Sequence[str], **environ: str) -> Ran:
        """Run a command in the time that is left; its output is in `logs/NAME.log`.

        Args:
            name: Name of the log; a second command of the name is added to it.
            words: The command; "python" is this interpreter.
            environ: Additional variables.
        """
        log = self.folder / "logs" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        words = [sys.executable if word == "python" else word for word in words]
        began, limit = time.monotonic(), max(1.0, self.left_s)
        with log.open("ab") as output:
            output.write(f"$ {shlex.join(words)}\n".encode())
            output.flush()
            begins = output.tell()
            child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environ},
                start_new_session=True,
            )
            code = _ended(child, limit)
        ran = Ran(code, time.monotonic() - began, log.read_bytes()[begins:].decode(errors="replace"))
        self.commands.append(
            {"log": name, "command": shlex.join(words), "code": code, "seconds": ran.seconds}
        )
        return ran


def _ended(child: "subprocess.Popen[bytes]", limit: float) -> int | None:
    """Wait for the end of a command; after `limit` seconds its whole group is killed: None."""
    try:
        return child.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return None


def go(hour: Hour, checks: Sequence[Check]) -> Iterator[tuple[Check, Found, float]]:
    """Yield each check, what it found and its seconds; after a failure that ends the hour, none is tried."""
    ended = ""
    for check in checks:
        began = time.monotonic()
        if ended:
            found = Found("not tried", ended)
        elif check.gpus > hour.gpus:
            found = Found("not tried", f"needs {check.gpus} GPU{'s' * (check.gpus > 1)}; here: {hour.gpus}")
        elif hour.left_s < check.least_s * bool(hour.gpus):
            found = Found(
                "not tried", f"needs some {check.least_s:.0f} s; {max(0.0, hour.left_s):.0f} s were left"
            )
        else:
            found = _tried(check, hour)
        if found.verdict == "failed" and check.ends:
            ended = f"tells nothing after {check.name} has failed"
        yield check, found, time.monotonic() - began


def _tried(check: Check, hour: Hour) -> Found:
    try:
        return check.run(hour)
    except Exception as error:  # noqa: BLE001 - a check that fails is a result; the others go on
        return Found("failed", f"{type(error).__name__}: {error}"[:2000])


def page(document: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    about = ", ".join(f"{name} {value}" for name, value in document["machine"].items() if value is not None)
    lines = ["# First hour", "", about, "", "| check | result | found | s |", "|---|---|---|---|"]
    for row in document["checks"]:
        lines.append(f"| {row['name']} | {row['verdict']} | {_cell(row['words'])} | {row['seconds']:.0f} |")
    for row in document["checks"]:
        if row["figures"]:
            lines += ["", f"## {row['name']}", "", "```json", json.dumps(row["figures"], indent=1), "```"]
        if row["quoted"]:
            lines += ["", f"## {row['name']}: end of the output", "", "```text", *row["quoted"], "```"]
    lines += ["", "## Commands", "", "```text"]
    lines += [f"{c['code']!s:>5} {c['seconds']:6.1f} s  {c['command']}" for c in document["commands"]]
    return "\n".join([*lines, "```", ""])


def _cell(words: str) -> str:
    return words.replace("\n", "<br>").replace("|", "\\|")


def main() -> None:
    """Runs the checks and writes the report after each."""
    names = [check.name for check in CHECKS]
    parser = parser_of(__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--only", help=f"of: {', '.join(names)}")
    parser.add_argument("--out", type=Path, help="folder of the report; default: first-hour-DATE-TIME")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else names
    if unknown := set(wanted) - set(names):
        parser.error(f"no such check: {', '.join(sorted(unknown))}")
    folder = arguments.out or Path(f"first-hour-{time.strftime('%Y%m%d-%H%M%S')}")
    folder.mkdir(parents=True, exist_ok=True)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    document: dict[str, Any] = {
        "machine": {**machine(), "host": platform.platform(), "gpus": gpus},
        "checks": [],
    }
    with tempfile.TemporaryDirectory() as scratch:
        hour = Hour(folder, time.monotonic() + arguments.minutes * 60, gpus, Path(scratch))
        for check, found, seconds in go(hour, [check for check in CHECKS if check.name in wanted]):
            print(f"{check.name:<14} {found.verdict:<10} {seconds:6.1f} s  {found.words}", flush=True)
            document["checks"].append({"name": check.name, "seconds": round(seconds, 1), **asdict(found)})
            document["commands"] = hour.commands
            (folder / "report.json").write_text(json.dumps(document, indent=1) + "\n")
            (folder / "report.md").write_text(page(document))
    print(f"written: {folder / 'report.md'}")
    raise SystemExit(any(row["verdict"] == "failed" for row in document["checks"]))


if __name__ == "__main__":
    main()
