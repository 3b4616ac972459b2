"""`mptui simulate`: predicts memory and speed on many GPUs that nobody needs to have."""

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptui import text as fmt
from mptui.cli import options as o
from mptui.cli.measure.memory import counting
from mptui.cli.output import TableColumn, print_json, print_next, print_rows
from mptui.errors import ConfigError
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.lab.measure.scaling import Prediction
    from mptui.runs.planning.plan import Plan, Request

_SIZES = range(2, 16_385)
_MEASURED_S = 3.0
_WAYS = {"replicated": "DDP", "sharded": "FSDP2"}


class SimulateOptions(o.Options):
    """The GPUs, and what is between them."""

    ranks: str = o.option("8,16,64,256,1024", "N,…", "Numbers of processes, one for each GPU.")
    bandwidth: float = o.option(
        25.0,
        "GB/S",
        "Between GPUs, for each and direction: the bus bandwidth of nccl-tests.",
        min=0.001,
    )
    latency: float = o.option(10.0, "US", "Microseconds of each hop.", min=0.0)
    samples_per_second: float | None = o.option(
        None, "N", "Speed of one GPU, from a run or `mptui bench`; default: measured here.", min=0.001
    )


def simulate(
    settings: Annotated[o.SettingOptions, o.COUNTED], options: SimulateOptions, output: o.MarkdownOutput
) -> int:
    """Predict memory and speed on many GPUs.

    Each GPU has --batch-size samples, so that all together have a multiple of it. Nothing is trained: the
    network is traced without storage, and sharded over a group of processes that does not communicate. See
    docs/scaling.md for the assumptions.
    """
    from mptui.lab.measure.scaling import Link, Simulation
    from mptui.runs.planning.plan import plan_run

    sizes = o.numbers("--ranks", options.ranks, _SIZES, "numbers", example="8,64")
    request = settings.request()
    plan = plan_run(request)
    with counting(plan) as classes:
        rate = options.samples_per_second or _measured(request, plan)
        if classes.assumed:
            typer.echo(clean(classes.words), err=True)
        simulation = Simulation(
            plan.config,
            plan.task,
            device=plan.device.kind,
            precision=plan.precision.used,
            classes=classes.number,
            step_s=plan.config.training.batch_size / rate,
        )
    rows = []
    for size in sizes:
        link = Link(size, options.bandwidth * 1e9, options.latency * 1e-6)
        found = {"replicated": simulation.replicated(link), "sharded": simulation.sharded(link)}
        rows.append((size, found))
    if output.as_json:
        print_json(_document(plan, rate, options, rows))
    else:
        _print_table(plan, rate, options.bandwidth, rows, markdown=output.markdown)
        print_next("the assumptions: docs/scaling.md")
    return 0


def _measured(request: "Request", plan: "Plan") -> float:
    """Return the samples per second of a short run on this machine."""
    from mptui.lab.measure.core import Effort, MeasureError, Measurer, endless

    typer.echo(f"measuring one {plan.device.name} for {_MEASURED_S:g} s …", err=True)
    with Measurer(os.environ) as measurer:
        try:
            return measurer.measure(endless(request, plan), {}, Effort(_MEASURED_S)).samples_per_second
        except MeasureError as error:
            raise ConfigError(
                f"one device could not be measured: {error}", hint="give its speed: --samples-per-second N"
            ) from error


def _document(
    plan: "Plan", rate: float, options: SimulateOptions, rows: "list[tuple[int, dict[str, Prediction]]]"
) -> dict[str, Any]:
    return {
        "model": plan.config.model.name,
        "device": plan.device.torch_name,
        "device_name": plan.device.name,
        "precision": plan.precision.used,
        "batch_size_per_rank": plan.config.training.batch_size,
        "samples_per_second_of_one": rate,
        "bandwidth_bytes_per_s": options.bandwidth * 1e9,
        "latency_s": options.latency * 1e-6,
        "ranks": [
            {"ranks": size, **{way: asdict(prediction) for way, prediction in found.items()}}
            for size, found in rows
        ],
    }


def _print_table(
    plan: "Plan",
    rate: float,
    bandwidth: float,
    rows: "list[tuple[int, dict[str, Prediction]]]",
    *,
    markdown: bool,
) -> None:
    def column(heading: str, cells: list[str], leave: int = 0) -> TableColumn:
        return TableColumn(heading, cells, right=True, leave=leave)

    columns = [column("GPUs", [f"{size:,}" for size, _ in rows])]
    for number, (way, name) in enumerate(_WAYS.items()):
        each = [found[way] for _, found in rows]
        columns += [
            column(f"{name}: images/s", [f"{one.samples_per_second:,.0f}" for one in each], leave=2 + number),
            column("of ideal", [f"{one.efficiency:.0%}" for one in each]),
            column("memory", [fmt.size(one.memory_bytes) for one in each]),
            column("in collectives", [fmt.size(one.collective_bytes) for one in each], leave=4 + number),
        ]
    batch = plan.config.training.batch_size
    title = (
        f"{plan.config.model.name}, {plan.precision.used}, {batch} images on each GPU: "
        f"{rate:,.0f} images/s on one, {bandwidth:g} GB/s between them"
    )
    print_rows(columns, title=title, markdown=markdown)
