"""Known slowdowns of number formats on devices without fast units for them.

Each is a factor of the time of a training step, with its source.
"""

from collections.abc import Collection
from dataclasses import dataclass

from mptui.hardware.formats import CPU_BF16, CPU_FP16, Capability


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Time of a step relative to another format, from `low` to `high`, with its source."""

    low: float
    high: float
    than: str
    source: str

    @property
    def factor(self) -> str:
        """Format the factor: `16 to 36 times fp32's time`."""
        numbers = f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"
        return f"{numbers} times {self.than}'s time"


Costs = dict[str, Cost]

# ResNet-18 and a U-Net at 64 px, one thread, NCHW and NHWC; ResNet-50 and U-Nets on two
_CPU_FP16 = Cost(
    low=16, high=36, than="fp32", source="measured with torch 2.14 on a Xeon without AVX512-FP16"
)
_CPU_FP16_UNITS = Cost(
    low=44, high=44, than="bf16", source="CPU time measured with torch 2.13 on a Xeon with AVX512-FP16"
)
_CPU_BF16 = Cost(
    low=1.7, high=3.1, than="fp32", source="measured with torch 2.13 and 2.14 on Xeons without AVX512-BF16"
)
_PASCAL_FP16 = Cost(
    low=64, high=64, than="fp32", source="throughput of arithmetic, CUDA C++ Programming Guide"
)


def cpu_costs(features: Collection[str]) -> Costs:
    """Return the costs of a CPU's formats, from its feature flags in Linux's names.

    fp16 units don't make fp16 training fast: torch has no fast kernels for its backward pass.
    """
    costs = {"fp16": _CPU_FP16_UNITS if CPU_FP16.intersection(features) else _CPU_FP16}
    return costs if CPU_BF16.intersection(features) else {**costs, "bf16": _CPU_BF16}


def cuda_costs(capability: Capability) -> Costs:
    """Return the costs of an NVIDIA GPU's formats."""
    return {"fp16": _PASCAL_FP16} if capability == (6, 1) else {}
