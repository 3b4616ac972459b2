"""torch's view of the machine. torch is imported only when needed, as that takes seconds."""

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
from mptui.text import clean

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
