"""`mptui memory`: where the memory of a training goes, what saves some, and what fits a card."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptui import text as fmt
from mptui.cli import completion
from mptui.cli import options as o
from mptui.cli.output import TableColumn, columns_of, file_progress, print_json, print_next, print_rows
from mptui.errors import ConfigError
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.hardware.devices import Machine
    from mptui.lab.measure.memory import ClassCount, Ledger
    from mptui.runs.planning.plan import Plan, Request

_MODULES = 8
_AUTOCAST = (
    "Autocast keeps weights, gradients and optimizer states in FP32, whatever the precision: 16 bits shrink\n"
    "activations, apart from those of operations that autocast computes in FP32, such as GroupNorm."
)
_USUAL_CARD = "h100"
"""Counted by `--ranks` on a machine without a GPU: nobody trains on so many CPUs."""
_GROUPS = range(2, 16_385)
_MEASURED_S = 3.0
_BANDWIDTH_GB_S, _LATENCY_US = 25.0, 10.0
_WAYS = {"replicated": "DDP", "sharded": "FSDP2"}


class MemoryOptions(o.Options):
    """What is counted, on which GPUs, and what is between them."""

    card: str | None = o.option(
        None,
        "NAME|SIZE",
        "A GPU that need not be here: h100, rtx4090, 24GiB, …",
        autocompletion=completion.cards,
    )
    ranks: str | None = o.option(
        None, "N,…", "Also on so many GPUs, each with --batch-size samples: replicated and sharded."
    )
    bandwidth: float | None = o.option(
        None,
        "GB/S",
        f"Of each GPU and direction: the bus bandwidth of nccl-tests; or {_BANDWIDTH_GB_S:g}.",
        min=0.001,
    )
    latency: float | None = o.option(
        None, "US", f"Microseconds of each hop between them; or {_LATENCY_US:g}.", min=0.0
    )
    samples_per_second: float | None = o.option(
        None,
        "N",
        "Speed of one of them, from a run or `mptui bench`; without --card, it is measured here otherwise.",
        min=0.001,
    )

    def sizes(self) -> list[int]:
        """Return the numbers of `--ranks`; none without it.

        Raises:
            ConfigError: They are no such numbers, or a flag is given that only `--ranks` uses.
        """
        if self.ranks is not None:
            return o.numbers("--ranks", self.ranks, _GROUPS, "numbers", example="8,64")
        for name in ("bandwidth", "latency", "samples_per_second"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"--{name.replace('_', '-')} without --ranks", hint="name numbers of GPUs: --ranks 8,64"
                )
        return []


def memory(
    settings: Annotated[o.SettingOptions, o.COUNTED], options: MemoryOptions, output: o.MarkdownOutput
) -> int:
    """Show where the memory of a training goes.

    Counts weights, gradients, optimizer states and activations in FP32, FP16 and BF16, what each setting
    saves, and the largest batch that fits; with --ranks, also memory, communication and speed on many GPUs.
    Nothing is trained or allocated, but to measure that speed; data is read for the number of its classes.
    See docs/memory.md and docs/scaling.md.
    """
    from mptui.lab.measure.memory import ledger_of
    from mptui.runs.planning.plan import plan_run, within_budget

    sizes, request = options.sizes(), settings.request()
    plan = plan_run(request, machine=_machine_with(options.card))
    if sizes and plan.device.kind == "cpu" and plan.config.hardware.device == "auto":
        options.card = _USUAL_CARD
        plan = plan_run(request, machine=_machine_with(options.card))
        typer.echo(f"no GPU here: counted for {plan.device.name}; another: --card rtx4090", err=True)
    room, budget = plan.device.memory_total, plan.config.memory.budget_gib
    if budget is not None:
        room = min(room or sys.maxsize, int(budget * (1 << 30)))
    with counting(plan) as classes:
        with _if_nothing_fits():
            plan = within_budget(plan, precision=plan.precision.used, classes=classes.number, ranks=1)
        ledger = ledger_of(plan, classes, room, lambda what: typer.echo(f"counting: {what}", err=True))
        group = _over_ranks(ledger, request, sizes, options) if sizes else {}
    if output.as_json:
        print_json({**ledger.document(), **group}, older={"classes": "class_count"})
        return 0
    _print(ledger, markdown=output.markdown)
    if group:
        typer.echo("")
        _print_group(ledger, group, markdown=output.markdown)
        print_next("the assumptions: docs/scaling.md")
    elif options.card is None and plan.device.kind == "cpu":
        print_next("count it for a GPU: mptui memory … --card rtx4090")
    else:
        print_next("a run that keeps to a limit: mptui run … --set memory.budget_gib=4")
    return 0


@contextmanager
def counting(plan: "Plan") -> Iterator["ClassCount"]:
    """Count the classes of the data of a plan, whose network is then counted.

    Raises:
        ConfigError: It can't be counted.
    """
    from mptui.engine.memory.tape import UncountableError
    from mptui.lab.measure.memory import count_classes
    from mptui.runs.planning.plan import import_own_code

    import_own_code(plan.config)
    with file_progress() as on_progress:
        classes = count_classes(plan, on_progress)
    try:
        yield classes
    except UncountableError as error:
        raise ConfigError(
            f"model.name: the layers of {plan.config.model.name} depend on values of tensors",
            hint="use another network",
        ) from error


@contextmanager
def _if_nothing_fits() -> Iterator[None]:
    """Say that nothing fits, and go on: the ledger shows why."""
    try:
        yield
    except ConfigError as error:
        typer.echo(error.message, err=True)


def _machine_with(card: str | None) -> "Machine | None":
    """Return this machine with a GPU named by `--card` in place of its own; None without."""
    if card is None:
        return None
    from mptui.hardware.cards import card_device
    from mptui.hardware.devices import find_machine

    there = card_device(card)
    machine = find_machine(with_torch=False)
    return replace(machine, devices=[there, machine.devices[-1]], notes=[])


def _print(ledger: "Ledger", *, markdown: bool) -> None:
    print_rows(_by_part(ledger), title=_title(ledger), markdown=markdown)
    typer.echo(f"\n{_AUTOCAST}")
    used = ledger.used
    if used.gradients_at_peak < used.gradients:
        typer.echo(
            f"All gradients are {fmt.size(used.gradients)}; most are made when activations have been freed."
        )
    name = ledger.plan.precision.used.upper()
    typer.echo("")
    print_rows(_by_lever(ledger), title=f"In {name}, each of these alone saves memory:", markdown=markdown)
    typer.echo("")
    print_rows(_by_module(ledger), title=f"Where {name} has the most activations:", markdown=markdown)


def _title(ledger: "Ledger") -> str:
    config, used = ledger.plan.config, ledger.used
    recomputed = ", blocks checkpointed" if config.memory.activation_checkpointing else ""
    return (
        f"{config.model.name} at {config.data.image_size} px, {used.batch_size} images at once{recomputed}, "
        f"{clean(ledger.classes.words)}, {config.training.optimizer}, {used.parameters:,} parameters, "
        f"on {ledger.plan.device.name} ({fmt.size(ledger.room)})"
    )


def _by_part(ledger: "Ledger") -> list[TableColumn]:
    from mptui.lab.measure.memory import PARTS

    parts = [part for part, size in ledger.used.parts.items() if size]
    columns = [TableColumn("", [*(PARTS[part] for part in parts), "total", "largest batch"])]
    for name, counted in ledger.formats.items():
        cells = [fmt.size(counted.parts[part]) for part in parts]
        cells += [fmt.size(counted.total), fmt.count(ledger.largest_batch(counted))]
        columns.append(TableColumn(name.upper(), cells, right=True))
    return columns


def _by_lever(ledger: "Ledger") -> list[TableColumn]:
    from mptui.lab.measure.memory import SHARDED_OVER

    rows = [
        (
            lever.setting,
            lever.footprint.total,
            "any" if lever.any_batch else fmt.count(ledger.largest_batch(lever.footprint)),
            lever.effect,
        )
        for lever in ledger.levers
    ]
    if ledger.sharded is not None:
        setting = f"memory.shard=true on {SHARDED_OVER} GPUs"
        rows.append((setting, ledger.sharded, fmt.UNKNOWN, "the same result, slower; not compiled"))
    return [
        TableColumn("setting", [setting for setting, *_ in rows]),
        TableColumn("total", [fmt.size(total) for _, total, *_ in rows], right=True),
        TableColumn("saved", [f"{1 - total / ledger.used.total:.0%}" for _, total, *_ in rows], right=True),
        TableColumn("largest batch", [largest for *_, largest, _ in rows], right=True),
        TableColumn("effect", [effect for *_, effect in rows], leave=1),
    ]


def _by_module(ledger: "Ledger") -> list[TableColumn]:
    from mptui.lab.measure.memory import largest_modules

    largest = list(largest_modules(ledger.used, _MODULES))
    return [
        TableColumn("module", [name for name, _ in largest]),
        TableColumn("activations", [fmt.size(size) for _, size in largest], right=True),
    ]


# The same training on many GPUs
# ------------------------------


def _over_ranks(
    ledger: "Ledger", request: "Request", sizes: Sequence[int], options: MemoryOptions
) -> dict[str, Any]:
    """Return what JSON says of a training on these numbers of GPUs."""
    from mptui.lab.measure.scaling import Link

    batch = ledger.plan.config.training.batch_size
    rate = options.samples_per_second
    if rate is None and options.card is None:
        rate = _measured(request, ledger.plan)
    bandwidth = 1e9 * (options.bandwidth or _BANDWIDTH_GB_S)
    latency = (_LATENCY_US if options.latency is None else options.latency) / 1e6
    rows = []
    for size in sizes:
        typer.echo(f"counting: on {size:,} GPUs", err=True)
        found = ledger.over_ranks(Link(size, bandwidth, latency), None if rate is None else batch / rate)
        rows.append({"ranks": size, **{way: one and asdict(one) for way, one in found.items()}})
    return {
        "batch_size_per_rank": batch,
        "samples_per_second_of_one": rate,
        "bandwidth_bytes_per_s": bandwidth,
        "latency_s": latency,
        "ranks": rows,
    }


def _measured(request: "Request", plan: "Plan") -> float | None:
    """Return the samples per second of a short run on this machine; None, and why on stderr, if it fails."""
    from mptui.lab.measure.core import Effort, MeasureError, Measurer, endless

    typer.echo(f"measuring one {plan.device.name} for {_MEASURED_S:g} s …", err=True)
    with Measurer(os.environ) as measurer:
        try:
            return measurer.measure(endless(request, plan), {}, Effort(_MEASURED_S)).samples_per_second
        except MeasureError as error:
            typer.echo(clean(f"one device could not be measured: {error}"), err=True)
            return None


def _print_group(ledger: "Ledger", group: Mapping[str, Any], *, markdown: bool) -> None:
    rate = group["samples_per_second_of_one"]
    headings = ("GPUs", "", "memory", "in collectives", "communication", "images/s", "of ideal")
    rows = [
        [
            f"{row['ranks']:,}",
            name,
            fmt.size(found["memory_bytes"]),
            fmt.size(found["collective_bytes"]),
            fmt.milliseconds(found["collective_s"]),
            fmt.filled("{:,.0f}", found["samples_per_second"]),
            fmt.filled("{:.0%}", found["efficiency"]),
        ]
        for row in group["ranks"]
        for way, name in _WAYS.items()
        if (found := row[way]) is not None
    ]
    columns = columns_of(headings, rows, left={1})
    if rate is None:
        del columns[-2:]  # those of speed
    title = (
        f"{group['batch_size_per_rank']} images on each of several GPUs, "
        f"{group['bandwidth_bytes_per_s'] / 1e9:g} GB/s between them"
    )
    title += "" if rate is None else f", {rate:,.0f} images/s on one"
    print_rows(columns, title=f"{title}:", markdown=markdown)
    for fault in ledger.shard_faults:
        typer.echo(clean(f"no FSDP2: {fault}"))
    if rate is None:
        typer.echo("for images/s, give the speed of one GPU: --samples-per-second N", err=True)
