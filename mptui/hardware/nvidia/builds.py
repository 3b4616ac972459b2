"""Which builds of torch an NVIDIA GPU and its driver can run, and what to do if the installed one is none."""

from mptui.hardware.formats import Capability
from mptui.hardware.nvidia.gpus import NvmlReport
from mptui.hardware.torch_view import TorchView

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
    if of_driver < _OLDEST_CUDA or (capability is not None and capability < _OLDEST_CARD):
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
