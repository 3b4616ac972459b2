"""Accuracy of `auto` on this machine: repeated fresh choices against longer timings of all candidates.

    python -m benchmarks.choices            # results/choices.json
    python -m benchmarks.choices --case resnet18 --trials 10

A trial is a choice with an empty cache folder, as a long run makes it before training. After each trial all
candidates are timed in alternating steps; their medians over all trials are the ground truth. A choice is
right if no candidate is faster by more than the margin of `auto`.
"""

import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import RESNET18, Network, parser_of, ratios, save, turn
from mptui.data.open import open_dataset
from mptui.engine.choose import Candidates, StepTimer, layouts, precisions, updates
from mptui.hardware.advice import measurable_precisions
from mptui.models.zoo import build
from mptui.registry.tasks import TASKS
from mptui.runs.planning.auto import Decider
from mptui.runs.planning.plan import Plan, Request, plan_run
from mptui.tasks.build_task import build_task

STEPS = 3
"""Steps of each candidate after each trial."""


CASES = {"resnet18": RESNET18, "resnet50": Network("resnet50", 224, 8), "unet": Network("unet", 128, 2)}
"""Small images, where layouts tie; the network and size where channels last pays off; and masks."""


class Setting:
    """One case, ready for choosing and timing."""

    def __init__(self, case: Network) -> None:
        values = {
            "model.name": case.model,
            "data.image_size": case.side,
            "data.samples": 4 * case.batch,
            "training.batch_size": case.batch,
            "training.epochs": 100_000,
        }
        self.plan = plan_run(Request(None, {key: ("benchmark", v) for key, v in values.items()}, (), {}))
        config = self.plan.config
        self.dataset = open_dataset(
            config.data,
            kind=TASKS[self.plan.task].sample,
            side=case.side,
            seed=0,
            on_progress=lambda done, total: None,
            should_stop=lambda: False,
            on_warning=print,
        )
        classes = self.dataset.classes
        self.model = build(config.model, num_classes=len(classes), task=self.plan.task, side=case.side)
        task = build_task(self.plan.task, classes, config.training)
        device = torch.device(self.plan.device.torch_name)
        self.trial = StepTimer(self.model, task, config, device)

    def decided(self) -> Plan:
        """Makes the choice of a run with an empty cache."""
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            decider = Decider(Path(folder), False, lambda event: None, lambda: None)
            return decider.decide(self.plan, self.model, self.dataset)

    def timers(self) -> dict[str, Callable[[], float]]:
        """Returns a timer for each candidate: each precision in both layouts, and both updates."""
        found = {}
        for precision in measurable_precisions(self.plan.device):
            for last in (True, False):
                name = f"{precision} {'last' if last else 'first'}"
                found[name] = self.trial.step(precision, channels_last=last)
        for fused in (True, False):
            name = f"update {'fused' if fused else 'foreach'}"
            found[name] = self.trial.update(channels_last=True, fused=fused)
        return found


def measure(case: Network, trials: int) -> dict[str, Any]:
    """Compares choices with the ground truth."""
    setting = Setting(case)
    timers = setting.timers()
    for timer in timers.values():
        timer()  # warm-up
    figures: dict[str, list[float]] = {name: [] for name in timers}
    chosen = []
    for number in range(trials):
        plan = setting.decided()
        layout = "last" if plan.channels_last else "first"
        update = "fused" if plan.fused else "foreach"
        chosen.append({"precision": plan.precision.used, "layout": layout, "update": update})
        print(f"  trial {number + 1}  {chosen[-1]}: {plan.precision.reason}", flush=True)
        for step in range(STEPS):
            for name in turn(timers, number + step):
                figures[name].append(timers[name]())
    seconds = {name: statistics.median(values) for name, values in figures.items()}
    right = {kind: [_right(kind, choice, seconds) for choice in chosen] for kind in chosen[0]}
    result = {
        "side": case.side,
        "batch": case.batch,
        "trials": trials,
        "seconds": seconds,
        "chosen": chosen,
        "right": {kind: f"{sum(each)} of {trials}" for kind, each in right.items()},
        "last_over_first": {
            precision: ratios(figures[f"{precision} first"], figures[f"{precision} last"])
            for precision in measurable_precisions(setting.plan.device)
        },
        "table": setting.plan.precision.used,
    }
    print(f"  right: {result['right']}  channels last over first: {result['last_over_first']}")
    return result


def _right(kind: str, choice: dict[str, str], seconds: dict[str, float]) -> bool:
    """Whether no alternative is faster by more than its margin."""
    if kind == "precision":
        candidates: Candidates = precisions(["fp32", "bf16", "fp16"], "fp32")
        times = {n.split()[0]: s for n, s in seconds.items() if n.endswith(" last") and "update" not in n}
    elif kind == "layout":
        candidates = layouts("true")
        precision = choice["precision"]
        times = {word: seconds[f"{precision} {word}"] for word in ("last", "first")}
    else:
        candidates = updates()
        times = {word: seconds[f"update {word}"] for word in ("fused", "foreach")}
    margin = max(1.05, *candidates.margins.values())
    return times[choice[kind]] <= margin * min(times.values())


def main() -> None:
    """Measures and writes results/choices.json."""
    parser = parser_of(__doc__)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--case", choices=list(CASES))
    arguments = parser.parse_args()
    document: dict[str, Any] = {}
    for name in [arguments.case] if arguments.case else list(CASES):
        print(name)
        document[name] = measure(CASES[name], arguments.trials)
    save(f"choices-{arguments.case}" if arguments.case else "choices", document)


if __name__ == "__main__":
    main()
