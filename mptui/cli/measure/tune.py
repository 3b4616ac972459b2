"""`mptui tune`: measures the fastest settings for a model and data, and saves them as a profile."""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mptui.cli import options as o
from mptui.cli.output import print_json, print_next
from mptui.cli.train.signals import Signals
from mptui.text import clean, shell_word

if TYPE_CHECKING:
    from mptui.lab.measure.tune import Tuning
    from mptui.runs.planning.plan import Plan

_PROFILE = "fast"


class TuneOptions(o.Options):
    """How long to measure, and what is saved."""

    minutes: float = o.option(10.0, "N", "Time limit; more time gives more certain results.", min=0.1)
    save: str | None = o.option(None, "NAME|FILE", "Profile to save; default: print it.")
    force: bool = o.flag("Replace an existing profile.")


_SETTINGS = (
    "profile model weights task data batch_size precision workers device seed download sets trust_code"
)


def tune(
    settings: Annotated[o.SettingOptions, _SETTINGS], options: TuneOptions, output: o.QuietOutput
) -> int:
    """Find the fastest settings by short runs of your training.

    Precision, micro-batch, workers, cache, compile mode and more are measured.
    Settings given by flags are kept; others that were not measured stay as in the profile. Stopped early, it
    saves the best so far. Only settings that were measured to be better are saved.
    """
    signals = Signals()
    from mptui.config.resolve import check_free, profile_path

    path = None if options.save is None else profile_path(options.save)
    if path is not None and not options.force:
        check_free(path, hint="choose another name, or replace it with --force")

    from mptui.hardware.host import usable_cpus
    from mptui.lab.measure.core import Measurer, StoppedError
    from mptui.lab.measure.tune import Tuning
    from mptui.runs.planning.plan import plan_run

    plan = plan_run(settings.request(settings.profile or _PROFILE))
    cpus = usable_cpus()
    with Measurer(os.environ, lambda: signals.stop_requested) as measurer:
        tuning = Tuning(
            plan,
            measurer,
            seconds=60 * options.minutes,
            cpus=cpus,
            on_line=lambda line: _progress(line, tuning, output.quiet),
        )
        with contextlib.suppress(StoppedError):  # partial results are saved
            tuning.go()
    if tuning.search is None:
        typer.echo("ended before the first measurement; no profile saved", err=True)
        signals.leave_if_stopped()
        print_next("give it more time: --minutes N")
        return 1
    _report(plan, tuning, cpus, path, options=options, as_json=output.as_json)
    signals.leave_if_stopped()
    return 0


def _progress(line: str, tuning: "Tuning", quiet: bool) -> None:
    if not quiet:
        left = int(tuning.clock.seconds_left())
        typer.echo(f"{left // 60}:{left % 60:02} left  {clean(line, limit=400)}", err=True)


def _report(
    plan: "Plan", tuning: "Tuning", cpus: int, path: Path | None, *, options: TuneOptions, as_json: bool
) -> None:
    from mptui.config.resolve import profile_text, write_profile
    from mptui.events import finite_json
    from mptui.lab.measure import tune as measure_tune

    search = tuning.search
    assert search is not None
    effort = measure_tune.TuneCost(tuning.seconds, tuning.runs)
    lines = measure_tune.evidence(plan, search, effort, cpus)
    text = None
    if measure_tune.is_better(plan, search):
        config = measure_tune.tuned(plan, measure_tune.settings(plan, search))
        text = profile_text(config, measure_tune.description(plan), lines, task=plan.task)
    else:
        path = None
        profile = plan.resolved.profile
        typer.echo(f"no setting was measured to be better than {profile}: no profile saved", err=True)
    if path is not None and text is not None:
        replaced = path.exists()
        write_profile(path, text, replace=options.force)
        typer.echo(f"{'Replaced' if replaced else 'Saved'}: {clean(str(path), limit=4096)}", err=True)
    if as_json:
        document = {**measure_tune.document(plan, search, effort)}
        document |= {"profile": None if path is None else str(path), "toml": text}
        print_json(finite_json(document), older={"dataset": "data"})
    elif path is None and text is not None:
        typer.echo(text, nl=False)
    else:
        for line in lines:
            typer.echo(clean(line, limit=1000))
    if text is None:
        print_next(
            f"mptui run --profile {shell_word(plan.resolved.profile)}   # or give it more time: --minutes N"
        )
    elif path is None:
        print_next("save it: the same command with --save NAME")
    else:
        print_next(f"mptui run --profile {shell_word(options.save)}")
