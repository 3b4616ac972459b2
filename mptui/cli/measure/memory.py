"""`mptui memory`: where the memory of a training goes, what saves some, and what fits a card."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from mptui import text as fmt
from mptui.cli import completion
from mptui.cli import options as o
from mptui.cli.output import TableColumn, file_progress, print_json, print_next, print_rows
from mptui.errors import ConfigError
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.hardware.devices import Machine
    from mptui.lab.measure.memory import ClassCount, Ledger
    from mptui.runs.planning.plan import Plan

_MODULES = 8
_AUTOCAST = (
    "Autocast keeps weights, gradients and optimizer states in FP32, whatever the precision: 16 bits shrink\n"
    "activations, apart from those of operations that autocast computes in FP32, such as GroupNorm."
)


class MemoryOptions(o.Options):
    """What is counted."""

    card: str | None = o.option(
        None,
        "NAME|SIZE",
        "A GPU that need not be here: h100, rtx4090, 24GiB, …",
        autocompletion=completion.cards,
    )


def memory(
    settings: Annotated[o.SettingOptions, o.COUNTED], options: MemoryOptions, output: o.MarkdownOutput
) -> int:
    """Show where the memory of a training goes.

    Counts weights, gradients, optimizer states and activations in FP32, FP16 and BF16, what each setting
    saves, and the largest batch that fits. Nothing is trained or allocated; data is read for the number of
    its classes. See docs/memory.md.
    """
    from mptui.lab.measure.memory import ledger_of
    from mptui.runs.planning.plan import plan_run, within_budget

    plan = plan_run(settings.request(), machine=_machine_with(options.card))
    room, budget = plan.device.memory_total, plan.config.memory.budget_gib
    if budget is not None:
        room = min(room or sys.maxsize, int(budget * (1 << 30)))
    with counting(plan) as classes:
        with _if_nothing_fits():
            plan = within_budget(plan, precision=plan.precision.used, classes=classes.number, ranks=1)
        ledger = ledger_of(plan, classes, room, lambda what: typer.echo(f"counting: {what}", err=True))
    if output.as_json:
        print_json(ledger.document(), older={"classes": "class_count"})
        return 0
    _print(ledger, markdown=output.markdown)
    if options.card is None and plan.device.kind == "cpu":
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

    parts = {words: part for part, words in PARTS.items() if getattr(ledger.used, part)}
    columns = [TableColumn("", [*parts, "total", "largest batch"])]
    for name, counted in ledger.formats.items():
        cells = [fmt.size(getattr(counted, part)) for part in parts.values()]
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
