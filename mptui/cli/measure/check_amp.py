"""`mptui check-amp`: checks layer by layer which precision is safe for a model."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptui.cli import options as o
from mptui.cli.output import print_json, print_next
from mptui.text import clean, filled, shell_word, some

if TYPE_CHECKING:
    from mptui.lab.measure.amp import AmpReport, Checked
    from mptui.lab.measure.first_difference import FirstDifference
    from mptui.runs.planning.plan import Plan

LAYERS_SHOWN = 10
SAMPLES_SHOWN = 3
_VERDICTS = {
    "as fp32": "safe",
    "as rounding": "safe as rounding",
    "can't tell": "can't tell",
    "not safe": "not safe",
}


class CheckOptions(o.Options):
    """What is checked and saved."""

    batches: int = o.option(2, "N", "Number of batches to check.", min=1)
    diff: bool = o.flag("Also name the first operation that differs from fp32 by more than rounding.")
    save: str | None = o.option(None, "NAME|FILE", "Save the recommendation as a profile.")


_SETTINGS = "profile model weights task data batch_size precision device seed download sets trust_code"


def check_amp(
    settings: Annotated[o.SettingOptions, _SETTINGS], options: CheckOptions, output: o.Output
) -> int:
    """Check which of fp32, bf16 and fp16 is safe for your model.

    Runs the model on your data, names the layers that need fp32, and the lines of your own network that
    don't follow autocast.
    """
    from mptui.hardware.host import keep_freed_memory
    from mptui.runs.planning.plan import plan_run

    keep_freed_memory()
    plan = plan_run(settings.request())

    from mptui.engine.mailbox import Mailbox
    from mptui.lab.measure.amp import check

    report = check(plan, options.batches, Mailbox(), diff=options.diff)
    path = None if options.save is None else _save(options.save, report, plan)
    if output.as_json:
        print_json(_document(report, path), older={"dataset": "data"})
        return 0
    _show(report)
    if path is not None:
        typer.echo(f"Saved: {path}", err=True)
        print_next(f"mptui run --profile {shell_word(options.save)}")
    else:
        print_next("save it as a profile: mptui check-amp … --save NAME")
    return 0


def _save(where: str, report: "AmpReport", plan: "Plan") -> str:
    from mptui.config.resolve import profile_path, profile_text, write_profile

    used = report.checked[report.use]
    fp32_layers = f", {len(used.fp32_layers)} layers in fp32" if used.fp32_layers else ""
    description = f"{report.model} in {report.use}{fp32_layers}: recommended by check-amp"
    config = report.config(plan.config).model_copy(update={"data": plan.data_from_anywhere()})
    return str(write_profile(profile_path(where), profile_text(config, description, task=plan.task)))


def _document(report: "AmpReport", path: str | None) -> dict[str, Any]:
    from dataclasses import asdict

    from mptui.events import finite_json
    from mptui.lab.measure.amp import lost_layers

    ranking = report.ranking
    document = {
        "model": report.model,
        "data": report.dataset,
        "device": report.device,
        "device_name": report.device_name,
        "batches": report.batches,
        "batch_size": report.batch_size,
        "use": report.use,
        "reason": report.reason,
        "precisions": {
            name: {**asdict(checked), "safe": checked.safe} for name, checked in report.checked.items()
        },
        "best_loss_scale": None if ranking.best is None else ranking.best.scale,
        "layers": [asdict(layer) for layer in lost_layers(ranking)],
        "unjudged": report.unjudged,
        "first_differences": None
        if report.first_differences is None
        else {name: found and asdict(found) for name, found in report.first_differences.items()},
        "samples": report.samples,
        "operations": [asdict(finding) for finding in report.operations],
        "profile": path,
    }
    return dict(finite_json(document))


def _show(report: "AmpReport") -> None:
    from mptui.lab.measure.amp import lost_layers

    counted = f"{report.batches} batch{'es' if report.batches != 1 else ''} of {report.batch_size}"
    typer.echo(clean(f"{report.model} on {report.dataset}, {counted}, on {report.device_name}; not compiled"))
    typer.echo(f"\n{'':8}{'loss':>10}{'outputs off':>13}{'gradients':>11}{'rounding':>10}{'loss scale':>12}")
    for checked in report.checked.values():
        typer.echo(clean(_precision_line(checked)))
    rows = lost_layers(report.ranking)
    width = max(12, *(min(40, len(layer.name)) for layer in rows[:LAYERS_SHOWN])) + 2
    head = f"\n{'layer':<{width}}{'part':<10}{'smallest':>10}{'largest':>10}{'lost':>9}{'bf16':>8}{'fp16':>8}"
    typer.echo(head)
    cosines = {name: checked.layers for name, checked in report.checked.items()}
    for layer in rows[:LAYERS_SHOWN]:
        turned = "".join(_cell(cosines[name].get(layer.name)) for name in ("bf16", "fp16"))
        sizes = f"{layer.smallest:>10.1e}{layer.largest:>10.1e}{layer.lost:>8.1%} "
        fault = f"  {layer.fault}" if layer.fault else ""
        typer.echo(clean(f"{layer.name[-40:]:<{width}}{layer.part:<10}{sizes}{turned}{fault}"))
    if len(rows) > LAYERS_SHOWN:
        typer.echo(f"and {len(rows) - LAYERS_SHOWN} more, with less at risk")
    typer.echo("lost: values outside fp16's range of full precision")
    typer.echo("gradients, bf16, fp16: cosine similarity to the fp32 gradient")
    typer.echo("rounding: that of fp32 with images and weights rounded to the format\n")
    for checked in list(report.checked.values())[1:]:
        typer.echo(clean(f"{checked.precision}: {_VERDICTS[checked.verdict]}: {checked.why}"))
        if checked.safe and checked.fp32_layers:
            typer.echo(clean(f"      in fp32: {', '.join(checked.fp32_layers)}"))
    for name, found in (report.first_differences or {}).items():
        typer.echo(clean(f"{name}: {_difference(report, found)}", 2000))
    if report.unjudged:
        names = ", ".join(name or "the network" for name in report.unjudged)
        typer.echo(clean(f"not judged, since their gradients are rounding errors in fp32 too: {names}"))
    if report.operations:
        typer.echo("\nyour code where it doesn't follow autocast (docs/custom_operations.md):")
    for finding in report.operations:
        typer.echo(f"  {finding.line}\n    {', '.join(finding.precisions)}: {finding.what}")
    typer.echo(clean(f"use {report.use}: {report.reason}"))


def _difference(report: "AmpReport", found: "FirstDifference | None") -> str:
    if found is None:
        return "no operation differs from fp32 by more than rounding"
    batch = f"batch {found.batch + 1}: {some(report.samples[found.batch], SAMPLES_SHOWN)}"
    return f"the first operation that differs: {found.words()} ({batch})"


def _precision_line(checked: "Checked") -> str:
    scale = filled("{:,.0f}", checked.loss_scale)
    if math.isnan(checked.loss):
        nothing = f"{'–':>10}{'–':>13}{'–':>11}{'–':>10}{'–':>12}"
        return f"  {checked.precision}  {nothing}  {_VERDICTS[checked.verdict]}"
    if checked.precision == "fp32":
        return f"  fp32  {checked.loss:>10.4f}{'–':>13}{'–':>11}{'–':>10}{'–':>12}"
    off, turned, control = f"{checked.outputs_error:.2%}", f"{checked.cosine:.4f}", f"{checked.control:.4f}"
    figures = f"{checked.loss:>10.4f}{off:>13}{turned:>11}{control:>10}{scale:>12}"
    return f"  {checked.precision}  {figures}  {_VERDICTS[checked.verdict]}"


def _cell(cosine: float | None) -> str:
    return f"{'–':>8}" if cosine is None else f"{cosine:>8.3f}"
