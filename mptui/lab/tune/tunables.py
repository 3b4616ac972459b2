"""The tunable settings of a device, each with its rivals and their expected gain.

The values come from the schema, so that new ones are tried too. Settings given by a flag, a variable or
`--set` are not tuned.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from mptui.config.keys import SETTINGS
from mptui.engine.compile.start_seconds import estimated_start_s
from mptui.engine.memory.footprint import footprint
from mptui.engine.memory.step_trace import UncountableError
from mptui.hardware.advice import measurable_precisions
from mptui.lab.bench.measure import ShortRunResult
from mptui.lab.tune.search import Option, Settings, TunedSetting
from mptui.registry.own_code import is_own
from mptui.runs.planning.plan import Plan

MICRO_BATCH, BATCH = "memory.micro_batch", "training.batch_size"
COMPILE = "speed.compile"

_WAIT = 0.005
"""Fraction of time waiting for data below which the input settings can't gain anything."""
_EPOCH_STEPS = 50
"""Least steps per epoch with a larger batch."""

# expected gains, as a fraction of the speed, from published figures; only their order matters
_GAINS = {
    "gpu": {
        "precision.mode": 0.6,
        "speed.compile": 0.3,
        "speed.channels_last": 0.2,
        BATCH: 0.2,
        "precision.matmul": 0.1,
        "speed.fused": 0.03,
        MICRO_BATCH: 0.01,
    },
    "cpu": {
        "precision.mode": 0.5,
        "speed.channels_last": 0.2,
        "speed.compile": 0.15,
        MICRO_BATCH: 0.08,
        BATCH: 0.03,
        "speed.fused": 0.02,
        "precision.matmul": 0.0,
    },
}
_LITTLE = 0.005


@dataclass(frozen=True, slots=True)
class Tunable:
    """A run to tune.

    Attributes:
        plan: Plan of the requested run.
        cpus: CPUs that it may use.
        free_bytes: Free memory of the device; None: unknown.
    """

    plan: Plan
    cpus: int
    free_bytes: int | None

    def start(self) -> dict[str, object]:
        """Return the initial settings: the profile's, as suits the device, not compiled."""
        plan, config = self.plan, self.plan.config
        return {
            "precision.mode": plan.precision.used,
            "precision.matmul": config.precision.matmul,
            "speed.compile": "off",
            "speed.channels_last": plan.channels_last,
            "speed.fused": plan.fused,
            "data.workers": plan.workers,
            "data.prefetch": config.data.prefetch,
            "data.cache": config.data.cache,
            BATCH: config.training.batch_size,
        }

    def axes(self, best: Settings, first: ShortRunResult) -> list[TunedSetting]:
        """Return all tunable settings, given the current ones and the start's measurement."""
        found = [
            *self._of_the_device(best),
            *self._of_the_batch(best, first),
            *self._of_the_data(best, first),
        ]
        return [axis for axis in found if axis.options and not self._is_given(axis)]

    @property
    def _kind(self) -> str:
        return "cpu" if self.plan.device.kind == "cpu" else "gpu"

    def _gain(self, key: str) -> float:
        return _GAINS[self._kind][key]

    def _is_given(self, axis: TunedSetting) -> bool:
        sources = self.plan.resolved.sources
        keys = {key for option in axis.options for key in option.settings}
        return any(sources[key].startswith(("--", "MPTUI_")) for key in keys)

    def _axis(
        self,
        key: str,
        best: Settings,
        values: Sequence[object],
        worth: float,
        **more: Any,  # noqa: ANN401
    ) -> TunedSetting:
        current = best.get(key)
        options = tuple(Option(_shown(v), {key: v}, self._first_s(key, v)) for v in values if v != current)
        return TunedSetting(more.pop("name", key), _shown(current), options, worth, **more)

    def _first_s(self, key: str, value: object) -> float:
        return estimated_start_s(self.plan.device.kind, str(value)) if key == "speed.compile" else 0.0

    def _of_the_device(self, best: Settings) -> Iterator[TunedSetting]:
        native, measurable = self.plan.device.native, measurable_precisions(self.plan.device)
        modes = [str(mode) for mode in _choices("precision.mode")]
        fast = [mode for mode in modes if mode == "fp32" or native.get(mode) == "native"]
        slow = [mode for mode in modes if mode in measurable and mode not in fast]
        yield self._axis("precision.mode", best, fast, self._gain("precision.mode"), same_start=True)
        # emulated formats are nearly always slower, so they are tried last
        yield self._axis(
            "precision.mode", best, slow, _LITTLE, name="precision.mode, emulated", same_start=True
        )
        if native.get("tf32") == "native" and best["precision.mode"] == "fp32":
            yield self._axis(
                "precision.matmul", best, ("highest", "high"), self._gain("precision.matmul"), same_start=True
            )
        if self.plan.device.kind != "mps":
            for key in ("speed.channels_last", "speed.fused"):
                yield self._axis(key, best, _choices(key), self._gain(key), same_start=True)
            compiled = _choices("speed.compile") if self._kind == "gpu" else ["off", "default"]
            yield self._axis("speed.compile", best, compiled, self._gain("speed.compile"))

    def _of_the_batch(self, best: Settings, first: ShortRunResult) -> Iterator[TunedSetting]:
        batch = int(str(best[BATCH]))
        micro = best.get(MICRO_BATCH, batch)
        smaller = [size for size in (batch // 2, batch // 4) if size >= 2 and size != micro]
        yield self._axis(MICRO_BATCH, {MICRO_BATCH: micro}, smaller, self._gain(MICRO_BATCH))
        # a larger batch changes the training, unless the profile rescales the rate
        asked = self.plan.config.training
        if asked.lr_batch_size is None or MICRO_BATCH in best:
            return
        larger = [
            size for size in (2 * asked.batch_size, 4 * asked.batch_size) if self._fits(size, best, first)
        ]
        yield self._axis(BATCH, best, larger, self._gain(BATCH), same_batch=False)

    def _fits(self, batch: int, best: Settings, first: ShortRunResult) -> bool:
        """Whether a batch is small compared to the data set and is predicted to fit into memory."""
        asked = self.plan.config
        samples = first.epoch_steps * asked.training.batch_size
        if asked.data.samples is not None:  # measured runs of the built-in data are longer
            samples = min(samples, asked.data.samples)
        if samples < _EPOCH_STEPS * batch:
            return False
        if self.free_bytes is None or is_own(asked.model.name):
            return True  # what does not fit is found out
        config = asked.model_copy(
            update={"training": asked.training.model_copy(update={"batch_size": batch})}
        )
        device = self.plan.device.torch_name.partition(":")[0]
        try:
            predicted = footprint(
                config,
                self.plan.task,
                device=device,
                precision=str(best["precision.mode"]),
                classes=first.classes,
            )
        except UncountableError:
            return True
        return predicted.total <= self.free_bytes

    def _of_the_data(self, best: Settings, first: ShortRunResult) -> Iterator[TunedSetting]:
        waits = first.wait / (1 - min(first.wait, 0.99)) if first.wait > _WAIT else 0.0
        worth = waits or _LITTLE
        yield self._axis("data.cache", best, _choices("data.cache"), worth)
        if best["data.cache"] == "device" or (not waits and best["data.cache"] != "off"):
            return  # steps don't wait for data
        counts = sorted({0, 1, max(1, self.cpus // 2), self.cpus, 2 * self.cpus})
        yield self._axis("data.workers", best, counts, worth)
        if best["data.workers"] != 0:
            yield self._axis("data.prefetch", best, (2, 8, 16), worth / 4)


def _choices(key: str) -> list[object]:
    """Return the values of a key in its schema; auto is a separate value only for the cache."""
    found: list[object] = []
    for kind in _kinds(SETTINGS[key].field.annotation):
        if kind is bool:
            found += [True, False]
        elif get_origin(kind) is Literal:
            found += get_args(kind)
    return [value for value in found if value != "auto" or key == "data.cache"]


def _kinds(annotation: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a type as the schema has it
    return (annotation,) if get_origin(annotation) is Literal else get_args(annotation) or (annotation,)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
