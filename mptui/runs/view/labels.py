"""Names of metrics and phases on screens."""

from mptui.registry.tasks import TASKS, MetricSpec

TRAIN, VALIDATION = "train", "validation"
LOSS = "loss"
LR = "learning rate"
GRADIENT_NORM = "gradient norm"
DEVICE = "device"
MEMORY = "memory GiB"

FROM_ZERO = frozenset({LR, "speed", DEVICE, MEMORY})
"""Charts of rates, whose axis begins at 0."""

NOISY = frozenset({GRADIENT_NORM, "speed", DEVICE})
"""Charts whose values vary from step to step, as losses and metrics of training do."""


PHASE_WORDS = {
    "warming_up": "warming up",
}

BUSY_PHASES = frozenset(
    {"starting", "restarting", "scanning", "preparing", "warming_up", "compiling", "sampling", "saving"}
)
"""Phases without figures; the screen shows their elapsed seconds instead."""


def ranks_words(ranks: int, nodes: int) -> str:
    """Describe the processes of a run: `8 ranks on 2 nodes`; "" for a single one."""
    where = f" on {nodes:,} nodes" if nodes > 1 else ""
    return f"{ranks:,} ranks{where}" if ranks > 1 else ""


def shown(metric: str) -> MetricSpec:
    """Return the display of `metric`; an unknown one has its own chart."""
    known = (spec.metrics[metric] for spec in TASKS.values() if metric in spec.metrics)
    return next(known, MetricSpec(metric))


def is_percent(chart: str) -> bool:
    """Whether all metrics of a chart are fractions of 1."""
    metrics = [metric for spec in TASKS.values() for metric in spec.metrics.values() if metric.chart == chart]
    return chart == DEVICE or (bool(metrics) and all(metric.fraction for metric in metrics))


def is_noisy(chart: str, series: str) -> bool:
    """Whether a curve varies from step to step, so that its trend is easier to see when it is smoothed."""
    return chart in NOISY or series.endswith(TRAIN)
