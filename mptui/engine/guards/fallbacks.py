"""Fallbacks: safer settings that a run takes after a divergence, one at a time, the cheapest first.

1. A lower loss scale, down to its floor: if gradients overflowed in fp16 and the loss was finite.
2. bf16 instead of fp16, if the hardware supports it: as fast, with the range of fp32.
3. The layer at fault in fp32, if bf16 is not supported: the rest keeps its speed.
4. fp32.
5. Half the learning rate.

Fallbacks that can't help are skipped: if the batch fails in fp32 too, the number format is not the cause.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mptui.engine.guards.nan_localizer import NanLocation
from mptui.engine.job import Job

Kind = Literal["scale", "bf16", "island", "fp32", "lr"]

_GENTLENESS = ("fp16", "bf16", "fp32")
SCALE_DROP = 2.0**-4
MAX_FP32_LAYERS = 4


@dataclass(slots=True)
class Fallbacks:
    """The fallbacks that a run has taken.

    Args:
        budget: Maximum number of fallbacks over the whole run.
        moves: Fallbacks taken so far, in words, in order.
        precision: Precision that replaces the job's; None: the job's.
        fp32_layers: Layers that fell back to fp32.
        lr_factor: Factor of the learning rate.
    """

    budget: int
    moves: list[str] = field(default_factory=list)
    precision: str | None = None
    fp32_layers: list[str] = field(default_factory=list)
    lr_factor: float = 1.0

    def next(self, finding: NanLocation, job: Job, *, scale: float | None, floor: float) -> Kind | None:
        """Take the next fallback and return its kind; None: the budget is spent.

        Args:
            finding: Where the numbers stopped being finite.
            job: The current job, with the fallbacks so far.
            scale: The loss scale; None if the loss is not scaled.
            floor: Lower limit of the loss scale.
        """
        if len(self.moves) >= self.budget:
            return None
        kind = self._kind(finding, job, scale, floor)
        words = {
            "scale": f"loss scale {scale or 0:g} → {lowered(scale or 0.0, floor):g}",
            "bf16": f"precision {job.precision} → bf16",
            "island": f'layer "{finding.layer}" in fp32',
            "fp32": f"precision {job.precision} → fp32",
            "lr": f"learning rate {job.config.training.lr:g} → {job.config.training.lr / 2:g}",
        }
        self.moves.append(words[kind])
        if kind in {"bf16", "fp32"}:
            self.precision = kind
        elif kind == "island":
            self.fp32_layers.append(finding.layer)
        elif kind == "lr":
            self.lr_factor /= 2
        return kind

    def _kind(self, finding: NanLocation, job: Job, scale: float | None, floor: float) -> Kind:
        if job.precision == "fp32" or finding.also_in_fp32:
            return "lr"
        if job.precision == "fp16":
            if finding.where == "backward" and scale is not None and scale > floor:
                return "scale"
            if "bf16" in job.fallbacks:
                return "bf16"
            if (
                finding.is_layer
                and finding.layer not in self.fp32_layers
                and len(self.fp32_layers) < MAX_FP32_LAYERS
            ):
                return "island"
        return "fp32"

    def onto(self, job: Job) -> Job:
        """Return `job` with the fallbacks applied."""
        training = job.config.training
        safer = training.model_copy(update={"lr": training.lr * self.lr_factor})
        return replace(
            job,
            precision=self.over(job.precision),
            config=job.config.model_copy(update={"training": safer}),
        )

    def over(self, precision: str) -> str:
        """Return the safer of the job's precision and the one fallen back to."""
        return max(precision, self.precision or "fp16", key=_GENTLENESS.index)

    def state_dict(self) -> dict[str, Any]:
        """Return the fallbacks for a checkpoint."""
        return {
            "moves": self.moves,
            "precision": self.precision,
            "islands": self.fp32_layers,
            "lr_factor": self.lr_factor,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore from `state_dict`; settings missing in it stay as configured."""
        self.moves = [str(move) for move in state_dict["moves"]]
        self.precision = state_dict.get("precision")
        self.fp32_layers = [str(name) for name in state_dict.get("islands", ())]
        self.lr_factor = float(state_dict.get("lr_factor", 1.0))


def lowered(scale: float, floor: float) -> float:
    """Return the loss scale after one fallback."""
    return max(floor, scale * SCALE_DROP)
