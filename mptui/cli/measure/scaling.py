"""`mptui bench --scaling`: the throughput at numbers of processes."""

import os
from typing import TYPE_CHECKING, Any

import typer

from mptui.cli.measure.bench_table import print_rows
from mptui.cli.output import print_json, print_next
from mptui.cli.table import TableColumn
from mptui.cli.train.launch import rank_flags
from mptui.errors import ConfigError
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.lab.bench.bench import AblationRun, Row
    from mptui.runs.planning.plan import Plan, Request

_NOT_OF_RUN = frozenset(
    {"batch_size", "rounds", "seconds", "minutes", "only", "against", "table", "scaling", "as_json"}
    | {"markdown", "profile"}
)
_MOST = 64


def scaling(
    ctx: typer.Context, request: "Request", given: str, *, rounds: int, seconds: float, budget_s: float
) -> int:
    """Measure the throughput at each of the given numbers of processes, and print it."""
    from mptui.hardware.host import usable_cpus
    from mptui.lab.bench.bench import AblationRun
    from mptui.lab.bench.measure import Effort, MeasureError, Measurer, endless
    from mptui.lab.bench.processes import GroupMeasurer, variants
    from mptui.runs.planning.plan import plan_run

    sizes, plan = numbers(given), plan_run(request)
    batch = plan.config.training.batch_size
    environ = dict(os.environ)
    if plan.device.kind == "cpu":  # as many threads for each process, whatever their number
        environ["OMP_NUM_THREADS"] = str(max(1, usable_cpus() // sizes[-1]))
    with Measurer(environ) as measurer:
        try:
            once = measurer.measure(endless(request, plan), {}, Effort(min(seconds, 2.0), loss_at=0))
        except MeasureError as error:
            raise ConfigError(f"one process could not be measured: {error}", hint="try: mptui run") from error
    words = [*rank_flags(ctx, _NOT_OF_RUN), "--profile", str(request.profile)]
    group = GroupMeasurer(words, environ, batch / once.samples_per_second)
    lab = AblationRun(
        request,
        variants(sizes, batch),
        effort=Effort(seconds, loss_at=0),
        measure=group.measure,
        budget_s=budget_s,
    )
    interrupted = lab.measure_rounds(
        rounds, lambda row: typer.echo(clean(f"{row.variant.title}: {row.latest}"), err=True)
    )
    document = _document(plan, lab)
    if ctx.params["as_json"]:
        print_json(document)
    else:
        _print_table(plan, lab, document, markdown=ctx.params["markdown"])
        print_next(f"mptui run --nproc-per-node {sizes[-1]}   # for more GPUs than there are: mptui simulate")
    return 130 if interrupted else 0


def numbers(given: str) -> list[int]:
    """Return the numbers of processes in `--scaling`, in order.

    Raises:
        ConfigError: They are none.
    """
    parts = [part.strip() for part in given.split(",")]
    sizes = sorted({int(part) if part.isascii() and part.isdecimal() else 0 for part in parts})
    if not 1 <= sizes[0] <= sizes[-1] <= _MOST:
        raise ConfigError(
            f"--scaling {given}: not numbers of processes from 1 to {_MOST}",
            hint="separate them by commas: 1,2,4",
        )
    return sizes


def _document(plan: "Plan", lab: "AblationRun") -> dict[str, Any]:
    return {
        "model": plan.config.model.name,
        "device_name": plan.device.name,
        "batch_size_per_process": plan.config.training.batch_size,
        "rounds": lab.rounds,
        "processes": [_described(lab, row) for row in lab.rows],
    }


def _described(lab: "AblationRun", row: "Row") -> dict[str, Any]:
    """Return a row; what efficiency lacks to 1 went to waiting for more data, and to the rest."""
    from mptui.lab.bench.processes import PROCESSES, data_wait, efficiency

    share, wait, first_wait = efficiency(lab, row), data_wait(row), data_wait(lab.rows[0])
    to_data = to_others = None
    if share is not None and wait is not None and first_wait is not None:
        to_data = min(max(0.0, wait - first_wait), max(0.0, 1 - share))
        to_others = max(0.0, 1 - share - to_data)
    return {
        "processes": row.variant.settings[PROCESSES],
        "samples_per_second": row.rate,
        "efficiency": share,
        "lost_to_data": to_data,
        "lost_to_sums_and_waiting": to_others,
        "data_wait_fraction": wait,
        "peak_bytes": row.peak_bytes,
        "rounds": [each.samples_per_second for each in row.rounds],
        "failed": row.failed,
    }


def _print_table(plan: "Plan", lab: "AblationRun", document: dict[str, Any], *, markdown: bool) -> None:
    from mptui import format as fmt
    from mptui.lab.bench.stats import rounds_text

    rows = document["processes"]

    def column(heading: str, key: str, text: Any) -> TableColumn:  # noqa: ANN401 - a function of a number
        cells = [fmt.UNKNOWN if row[key] is None else text(row[key]) for row in rows]
        return TableColumn(heading, cells, right=True)

    columns = [
        column("processes", "processes", str),
        column("images/s", "samples_per_second", "{:,.1f}".format),
        column("of ideal", "efficiency", "{:.0%}".format),
        column("lost to data", "lost_to_data", "{:.0%}".format),
        column("sums and waiting", "lost_to_sums_and_waiting", "{:.0%}".format),
    ]
    batch = plan.config.training.batch_size
    title = f"{plan.config.model.name} on {plan.device.name}, {batch} images in each process"
    print_rows(f"{title}: {rounds_text(lab.rounds)}", columns, markdown=markdown)
    for row in lab.rows:
        if row.failed is not None:
            typer.echo(clean(f"{row.variant.title}: not measured: {row.failed}"))
