"""Cost of the numerics monitor: probed steps against others, in one process.

    python -m benchmarks.numerics

The same trainer takes alternating blocks of steps: off, a summary at every step, every value at every step. A
run probes only some steps, so its cost is that of a probe times their rate, which the monitor itself limits
to `NUMERICS_BUDGET`.
"""

import statistics
import time
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from benchmarks.common import alternate, parser_of, ratios, save
from mptui.config.schema import ModelConfig
from mptui.engine.numerics import EVERY_S, SAMPLED, Probe
from mptui.engine.reporting.step_time import HostCopy
from mptui.engine.spectrum import rank
from mptui.events import NUMERICS_BUDGET
from mptui.models.zoo import build

CLASSES = 10
SIDES = {"off": None, "summary": SAMPLED, "full": 0}


class Steps:
    """Forward and backward passes of a network on one batch, probed or not."""

    def __init__(self, name: str, side: int, batch: int, device: torch.device) -> None:
        torch.manual_seed(0)
        network = build(ModelConfig(name=name), num_classes=CLASSES, task="classification", side=side)
        self.model, self.device = network.to(device), device
        self.images_BCHW = torch.randn(batch, 3, side, side, device=device)
        self.labels_B = torch.randint(CLASSES, (batch,), device=device)

    def seconds(self, most: int | None, steps: int) -> float:
        """Returns seconds per step; `most` as in SIDES."""
        self._synchronize()
        started = time.perf_counter()
        for _ in range(steps):
            self._step(most)
        self._synchronize()
        return (time.perf_counter() - started) / steps

    def _step(self, most: int | None) -> None:
        look = None if most is None else Probe(self.model, self.device, most=most or None)
        with nullcontext() if look is None else look.hooks():
            with torch.autocast(self.device.type, dtype=torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(self.model(self.images_BCHW), self.labels_B)
            torch.autograd.backward(loss)
        if look is not None:
            look.add_weights()
            (rows,) = HostCopy([look.rows])
            self._synchronize()
            rank(look.seen(rows), None)
        self.model.zero_grad(set_to_none=True)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    steps = Steps(args.model, args.side, args.batch, device)
    steps.seconds(0, 2)
    figures = alternate(
        {name: partial(steps.seconds, most, args.steps) for name, most in SIDES.items()}, args.rounds
    )
    plain = statistics.median(figures["off"])
    document: dict[str, Any] = {"model": args.model, "side": args.side, "batch": args.batch, "step_s": plain}
    for name in ("summary", "full"):
        look = ratios(figures[name], figures["off"])
        extra = max(0.0, look["median"] - 1) * plain
        share = min(NUMERICS_BUDGET[name], extra / EVERY_S[name])
        document[name] = {"a_step_looked_at": look, "share_of_a_run": share}
        print(f"{name}: a step that is looked at takes {look['median']:.2f}x; of a run at most {share:.3%}")
    if not args.no_save:
        save("numerics", document)


if __name__ == "__main__":
    main()
