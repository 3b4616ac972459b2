"""Number formats by architecture, with what they cost."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

# Support for number formats by device architecture, without querying the device
# ------------------------------------------------------------------------------

Support = Literal["native", "memory-only", "unreliable", "slow", "emulated", "no"]
"""Support for a format: native (faster), memory-only (smaller, not faster), unreliable (known to give NaN),
slow (much slower than fp32), emulated (computed as fp32 and rounded), or no."""

Formats = dict[str, Support]
Capability = tuple[int, int]

_ARCHITECTURES: dict[int, str] = {
    3: "Kepler",
    5: "Maxwell",
    6: "Pascal",
    7: "Volta",
    8: "Ampere",
    9: "Hopper",
    10: "Blackwell",
    11: "Blackwell",
    12: "Blackwell",
}
_ARCHITECTURES_WITHIN: dict[Capability, str] = {(7, 5): "Turing", (8, 9): "Ada Lovelace"}

_TURING_WITHOUT_TENSOR_CORES = re.compile(r"\b(GTX 16\d\d|MX[45]50|T(400|500|550|600|1000|1200|2000))\b")

CPU_BF16 = frozenset({"amx_bf16", "avx512_bf16"})
CPU_FP16 = frozenset({"amx_fp16", "avx512_fp16"})


def architecture_name(capability: Capability) -> str | None:
    """Return the NVIDIA architecture of a compute capability; None if it is unknown."""
    return _ARCHITECTURES_WITHIN.get(capability) or _ARCHITECTURES.get(capability[0])


def cuda_formats(capability: Capability, name: str) -> Formats:
    """Return the support of an NVIDIA GPU for each format.

    `name` distinguishes Turing chips without Tensor Cores (GTX 16xx and similar) from others of 7.5.
    """
    ampere = capability >= (8, 0)
    return {
        "fp16": _cuda_fp16(capability, name),
        "bf16": "native" if ampere else "emulated",
        "tf32": "native" if ampere else "no",
        "fp8": "native" if capability >= (8, 9) else "no",
    }


def _cuda_fp16(capability: Capability, name: str) -> Support:
    if capability == (7, 5) and _TURING_WITHOUT_TENSOR_CORES.search(name):
        return "unreliable"
    if capability >= (7, 0):
        return "native"
    if capability == (6, 1):
        return "slow"
    return "memory-only" if capability >= (6, 0) else "emulated"


def rocm_formats(architecture: str) -> Formats:
    """Return the support of an AMD GPU for each format, from its gfx name without features."""
    gfx = architecture.split(":")[0]
    matrix_cores = gfx.startswith(("gfx908", "gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"))
    return {
        "fp16": "memory-only" if gfx.startswith(("gfx7", "gfx8")) else "native",
        "bf16": "native" if matrix_cores else "emulated",
        "tf32": "native" if gfx.startswith(("gfx94", "gfx95")) else "no",
        "fp8": "native" if gfx.startswith(("gfx94", "gfx95", "gfx12")) else "no",
    }


def xpu_formats(*, matrix_units: bool) -> Formats:
    """Return the support of an Intel GPU for each format; integrated ones mostly lack matrix units (XMX)."""
    fp16: Support = "native" if matrix_units else "memory-only"
    return {"fp16": fp16, "bf16": "native" if matrix_units else "emulated", "tf32": "no", "fp8": "no"}


def mps_formats(*, bf16: bool) -> Formats:
    """Return the support of an Apple GPU for each format; `bf16`: macOS 14 or later."""
    return {"fp16": "native", "bf16": "native" if bf16 else "no", "tf32": "no", "fp8": "no"}


def cpu_formats(features: Collection[str]) -> Formats:
    """Return the support of a CPU for each format, from its feature flags in Linux's names.

    fp16 is slow with and without instructions for it: see `costs.cpu_costs`.
    """
    return {
        "fp16": "slow",
        "bf16": "native" if CPU_BF16.intersection(features) else "emulated",
        "tf32": "no",
        "fp8": "no",
    }


def has_code_for(capability: Capability, architectures: Sequence[str]) -> bool:
    """Whether a build for `architectures` (as in `torch.cuda.get_arch_list`) runs on a GPU.

    Machine code (`sm_86`) runs on the same major version with the same or a later minor one; PTX
    (`compute_80`) is compiled at load for any later one. A suffix `a` limits code to one chip, `f` to one
    family.
    """
    return any(_runs_on(capability, architecture) for architecture in architectures)


def _runs_on(capability: Capability, architecture: str) -> bool:
    parts = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", architecture)
    if parts is None:
        return False
    built = (int(parts[2]), int(parts[3]))
    if parts[4] == "a":
        return built == capability
    if parts[1] == "compute" and not parts[4]:
        return built <= capability
    return built[0] == capability[0] and built[1] <= capability[1]


# Known slowdowns of number formats on devices without fast units for them
# ------------------------------------------------------------------------
# Each is a factor of the time of a training step, with its source.


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
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


Costs = dict[str, Slowdown]

# ResNet-18 and a U-Net at 64 px, one thread, NCHW and NHWC; ResNet-50 and U-Nets on two
_CPU_FP16 = Slowdown(
    low=16, high=36, than="fp32", source="measured with torch 2.14 on a Xeon without AVX512-FP16"
)
_CPU_FP16_UNITS = Slowdown(
    low=44, high=44, than="bf16", source="CPU time measured with torch 2.13 on a Xeon with AVX512-FP16"
)
_CPU_BF16 = Slowdown(
    low=1.7, high=3.1, than="fp32", source="measured with torch 2.13 and 2.14 on Xeons without AVX512-BF16"
)
_PASCAL_FP16 = Slowdown(
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
