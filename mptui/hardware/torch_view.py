"""torch's view of the machine, and which builds of it an NVIDIA driver can run."""

import warnings
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any, Literal, TypeAlias

from mptui.hardware.formats import (
    Capability,
    Formats,
    architecture_name,
    cuda_formats,
    has_code_for,
    mps_formats,
    rocm_formats,
    xpu_formats,
)
from mptui.hardware.nvml import NvmlReport
from mptui.text import clean

# torch's view of the machine. torch is imported only when needed, as that takes seconds
# --------------------------------------------------------------------------------------

Kind = Literal["cuda", "rocm", "xpu", "mps", "cpu"]

_Properties: TypeAlias = Any  # torch's class differs between builds


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDevice:
    """An accelerator as seen by torch; `index` is torch's, `uuid` without prefix. Memory in bytes."""

    kind: Kind
    index: int
    name: str
    architecture: str | None
    capability: Capability | None = None
    uuid: str | None = None
    memory_total: int | None
    native: Formats
    built_for: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchView:
    """The build of torch and the accelerators it sees; `problem`: why it sees none, as a sentence.

    `cuda` and `hip`: versions it was built for; `architectures`: those with machine code or PTX. `refusal`:
    what CUDA says where it shows no device, as on a machine that has none.
    """

    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    architectures: list[str] = field(default_factory=list)
    devices: list[TorchDevice] = field(default_factory=list)
    problem: str | None = None
    refusal: str | None = None


@cache
def import_failure() -> str | None:
    """Import torch; return why it can't be imported, as a sentence, or None.

    It is tried once: after a failure, parts of torch are loaded, and another import fails since they are.
    """
    try:
        import torch  # noqa: F401
    except Exception as error:  # noqa: BLE001 - libraries, environment variables and plugins of torch raise any
        said = next(filter(None, (line.strip() for line in str(error).splitlines())), type(error).__name__)
        return f"torch can't be imported: {clean(said, 200)}"
    return None


def read_torch() -> TorchView:
    """Import torch and query its devices; failures are reported in `problem`."""
    problem = import_failure()
    if problem is not None:
        return TorchView(problem=problem)
    import torch

    devices: list[TorchDevice] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `problem` and `built_for` cover torch's warnings
        try:
            devices = [*_cuda_devices(torch), *_xpu_devices(torch), *_mps_devices(torch)]
        except RuntimeError as error:
            problem = f"torch can't start its devices: {clean(str(error).partition(chr(10))[0], 200)}"
    return TorchView(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        architectures=torch.cuda.get_arch_list(),
        devices=devices,
        problem=problem,
        refusal=_refusal(torch) if torch.version.cuda and not devices else None,
    )


def _refusal(torch: ModuleType) -> str | None:
    """Return the first line of what CUDA says when it can't start; None if it starts."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return clean(str(error).partition(chr(10))[0], 200)
    return None


def _cuda_devices(torch: ModuleType) -> list[TorchDevice]:
    if not torch.cuda.is_available():
        return []
    build = torch.cuda.get_arch_list()
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    if torch.version.hip:
        return [_rocm_device(index, device, build) for index, device in enumerate(found)]
    return [_cuda_device(index, device, build) for index, device in enumerate(found)]


def _cuda_device(index: int, found: _Properties, build: list[str]) -> TorchDevice:
    capability = (found.major, found.minor)
    return TorchDevice(
        kind="cuda",
        index=index,
        name=clean(found.name, 80),
        architecture=architecture_name(capability),
        capability=capability,
        uuid=str(found.uuid),
        memory_total=found.total_memory,
        native=cuda_formats(capability, found.name),
        built_for=has_code_for(capability, build),
    )


def _rocm_device(index: int, found: _Properties, build: list[str]) -> TorchDevice:
    gfx = found.gcnArchName.split(":")[0]
    return TorchDevice(
        kind="rocm",
        index=index,
        name=clean(found.name, 80),
        architecture=gfx,
        memory_total=found.total_memory,
        native=rocm_formats(gfx),
        built_for=gfx in build,
    )


def _xpu_devices(torch: ModuleType) -> list[TorchDevice]:
    if not torch.xpu.is_available():
        return []
    found = [torch.xpu.get_device_properties(index) for index in range(torch.xpu.device_count())]
    return [
        TorchDevice(
            kind="xpu",
            index=index,
            name=clean(device.name, 80),
            architecture=None,
            memory_total=device.total_memory,
            native=xpu_formats(matrix_units=device.has_subgroup_matrix_multiply_accumulate),
        )
        for index, device in enumerate(found)
    ]


def _mps_devices(torch: ModuleType) -> list[TorchDevice]:
    if not torch.backends.mps.is_available():
        return []
    return [
        TorchDevice(
            kind="mps",
            index=0,
            name="Apple GPU",
            architecture=None,
            memory_total=torch.mps.recommended_max_memory(),
            native=mps_formats(bf16=torch.backends.mps.is_macos_or_newer(14, 0)),
        )
    ]


# Which builds of torch an NVIDIA GPU and its driver can run, and what to do if the installed one is none
# -------------------------------------------------------------------------------------------------------

LEAST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""Major version of CUDA -> the least driver for builds for any of its minor versions.

https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
"""

_OLDEST_CUDA = 12
"""The least major version of CUDA that the supported versions of torch are built for."""
_OLDEST_CARD = (5, 0)
_TURING = (7, 5)
"""Cards before this one have code in builds for CUDA 12.6, but not in those for CUDA 13."""
_BLACKWELL = (10, 0)
"""The first cards that builds for CUDA 12.6 have no code for."""


_LOOK = "see python -c 'import torch; torch.cuda.init()'"
_REMEDIES = {
    "system not yet initialized": "start the service nvidia-fabricmanager, in the version of the driver",
}
"""Words of CUDA's errors -> remedy; the first is that of machines with NVSwitch."""


def fitting_build(capability: Capability | None, cuda: tuple[int, int] | None) -> str | None:
    """Return the tag (`cu126`) of a build of torch for a GPU whose driver has `cuda`; None: there is none."""
    of_driver = cuda[0] if cuda else _OLDEST_CUDA
    is_too_old = capability is not None and capability < _OLDEST_CARD
    if is_too_old or of_driver < _OLDEST_CUDA:
        return None
    if capability is not None and capability < _TURING:
        return "cu126"
    if of_driver > _OLDEST_CUDA:
        return "cu130"
    return "cu128" if capability is not None and capability >= _BLACKWELL else "cu126"


def why_unlisted(report: NvmlReport, torch: TorchView, capability: Capability | None) -> str:
    """Return why torch does not list a GPU that its driver shows, and the remedy after a colon."""
    if torch.version is None:
        return str(torch.problem)
    install = _install(capability, report.cuda)
    if torch.cuda is None:
        return f"torch {torch.version} is a build without CUDA: {install or _update(_OLDEST_CUDA)}."
    needed = int(torch.cuda.partition(".")[0])
    if report.cuda is not None and report.cuda[0] < needed:
        driver_cuda = f"{report.cuda[0]}.{report.cuda[1]}"
        remedy = _update(needed) if install is None else f"{_update(needed)}, or {install}"
        return (
            f"the driver ({report.driver}, CUDA {driver_cuda}) is too old for torch {torch.version}, "
            f"built for CUDA {torch.cuda}: {remedy}."
        )
    said = torch.problem or torch.refusal or ""
    words = f" ({said.replace(': ', ', ')})" if said else ""
    remedy = next((each for sign, each in _REMEDIES.items() if sign in said), _LOOK)
    return f"torch {torch.version} can't start CUDA{words}: {remedy}."


def why_no_code(
    architecture: str | None, capability: Capability | None, torch: TorchView, cuda: tuple[int, int] | None
) -> str:
    """Return the sentence for a card that torch lists and has no code for, with the remedy after a colon."""
    card = f"sm_{capability[0]}{capability[1]}" if capability else architecture
    built = ", ".join(torch.architectures) or "none"
    what = f"torch {torch.version} has no code for {card} (it has {built})"
    if capability is None:
        return f"{what}: install a build of torch that has it."
    if capability < _OLDEST_CARD:
        return f"{what}: no build of torch has it any more, use a newer card."
    return f"{what}: {_install(capability, cuda) or _update(_OLDEST_CUDA)}."


def _update(cuda: int) -> str:
    least = LEAST_DRIVERS.get(cuda)
    return f"update the driver to {least} or newer" if least else "update the driver"


def _install(capability: Capability | None, cuda: tuple[int, int] | None) -> str | None:
    """Return how to install the build that fits, for uv and for pip."""
    tag = fitting_build(capability, cuda)
    if tag is None:
        return None
    return (
        f"install torch for {tag}, with uv pip install --reinstall --torch-backend={tag} torch torchvision, "
        f"or as https://pytorch.org/get-started says for CUDA {tag[2:-1]}.{tag[-1]}"
    )
