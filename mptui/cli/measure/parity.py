"""`mptui parity`: trains in FP32 and in 16 bits from the same seeds and compares the accuracy."""

import os
import signal
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from mptui.cli import options as o
from mptui.cli.output import columns_of, print_json, print_next, print_rows
from mptui.text import clean, filled, shell_word

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mptui.lab.measure.parity import Comparison, ParityResult, Stop, TrainingResult

_DISAGREES = 1


class ParityOptions(o.NewRun):
    """What is trained, and where."""

    seeds: int = o.option(1, "N", "Train both with N seeds, starting at --seed; one seed decides nothing.")
    strict: bool = o.flag("Exit with 1 unless both are shown to agree.")


_SETTINGS = (
    "profile model weights task data epochs max_steps batch_size lr precision compile workers device seed"
    " download sets trust_code"
)


def parity(
    settings: Annotated[o.SettingOptions, _SETTINGS],
    options: Annotated[ParityOptions, "seeds strict runs_dir name"],
    output: o.QuietOutput,
) -> int:
    """Compare the accuracy of a precision with that of FP32.

    Both train from the same seed, with the same order of samples.
    FP32 trains without TF32, whose products have 10 bits.
    The difference counts beside the noise between seeds and that of the validation images.
    Run again with the same --name, it continues where it stopped; further --seeds are added.
    """
    from mptui.lab.measure.parity import Stop, make_folder, plan_comparison

    stop = Stop()
    _catch_signals(stop)
    comparison = plan_comparison(settings.request(), options.seeds)
    if comparison.plan.precision.warning is not None:
        typer.echo(f"warning: {clean(comparison.plan.precision.warning)}", err=True)
    folder = make_folder(comparison, options.runs_dir, options.name)
    outcomes = _train(comparison, folder, stop, quiet=output.quiet or output.as_json)
    if stop.signal is not None and len(outcomes) < 2 * options.seeds:
        return _interrupted(folder, stop)
    return _report(folder, comparison, outcomes, stop, as_json=output.as_json, strict=options.strict)


def _interrupted(folder: Path, stop: "Stop") -> int:
    print_next(f"continue: the same command with --name {folder.name}")
    return 128 + (stop.signal or 0)


def _catch_signals(stop: "Stop") -> None:
    """Handle signals as a run does: SIGINT and SIGTERM save and stop, SIGHUP is ignored."""

    def asked(number: int, _frame: FrameType | None) -> None:
        if stop.signal is not None and not stop.training:
            raise KeyboardInterrupt
        stop.ask(number)

    signal.signal(signal.SIGINT, asked)
    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _train(comparison: "Comparison", folder: Path, stop: "Stop", *, quiet: bool) -> "list[TrainingResult]":
    from mptui.lab.measure.parity import read_outcome, train
    from mptui.processes.start import RUN_MODULES, ForkServer

    outcomes: list[TrainingResult] = []
    total = 2 * len(comparison.seeds)
    with ForkServer(RUN_MODULES, os.environ) as server:
        for number, piece in enumerate(comparison.pieces(folder), 1):
            if not quiet:
                typer.secho(f"{number}/{total}  {piece.name}", bold=True, err=True)
            summary = train(piece, server, os.environ, stop, quiet=quiet)
            if summary is None:
                break
            outcomes.append(read_outcome(piece, summary))
    return outcomes


def _report(
    folder: Path,
    comparison: "Comparison",
    outcomes: "list[TrainingResult]",
    stop: "Stop",
    *,
    as_json: bool,
    strict: bool,
) -> int:
    from mptui.engine.mailbox import Stopped
    from mptui.events import finite_json
    from mptui.lab.measure.parity import RESULT, compare, sentences, to_document
    from mptui.runs.store.directory import write_json

    try:
        by_image = _by_image(comparison, outcomes, stop)
    except Stopped:
        return _interrupted(folder, stop)
    result = compare(folder, comparison.precision, outcomes, by_image)
    document = finite_json(to_document(result))
    write_json(folder / RESULT, document)
    if as_json:
        print_json(document)
    else:
        _print_table(result)
        for sentence in sentences(result):
            typer.echo(sentence)
        pair = " ".join(f"{name}-seed{comparison.seeds[0]}" for name in ("fp32", comparison.precision))
        where = f"mptui runs compare {pair} --where --runs-dir {shell_word(folder)}"
        print_next(f"the runs: mptui runs --runs-dir {shell_word(folder)}; where they part: {where}")
    return _DISAGREES if strict and result.verdict != "agrees" else 0


def _by_image(
    comparison: "Comparison", outcomes: "list[TrainingResult]", stop: "Stop"
) -> "npt.NDArray[np.float64] | None":
    """Compare both image by image; None if a training has no result to compare."""
    from mptui.cli.use.used_run import note
    from mptui.engine.mailbox import Stopped
    from mptui.lab.measure.noise import differences_by_image
    from mptui.lab.measure.parity import pairs_of

    def check_stop() -> None:
        if stop.signal is not None:
            raise Stopped(stop.signal)

    if any(outcome.trouble for outcome in outcomes):
        return None
    runs = [(Path(ours.run), Path(fp32.run)) for ours, fp32 in pairs_of(outcomes)]
    metric, trusted = outcomes[0].curves.metric, comparison.request.trust_code
    return differences_by_image(runs, metric, trust_code=trusted, note=cache(note), check_stop=check_stop)


def _print_table(result: "ParityResult") -> None:
    rows = [
        [
            str(outcome.seed),
            outcome.precision,
            outcome.status.replace("_", " "),
            filled("{:,.4f}", outcome.metric),
            filled("{:,.4f}", outcome.val_loss),
            filled("{:,.1f}", outcome.samples_per_second),
            filled("{:,.2f}", outcome.peak_bytes and outcome.peak_bytes / 2**30),
            filled("{:,.0f}", outcome.seconds),
        ]
        for pair in zip(result.fp32, result.ours, strict=True)
        for outcome in pair
    ]
    figures = (result.metric or "metric", "val loss", "images/s", "peak GiB", "s")
    print_rows(columns_of(("seed", "precision", "status", *figures), rows, left={1, 2}))
