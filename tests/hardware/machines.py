"""Devices and machines for tests, without any hardware."""

from dataclasses import replace
from typing import Any

from mptui.hardware.devices import Device
from mptui.hardware.formats import (
    Formats,
    architecture_name,
    cpu_costs,
    cpu_formats,
    cuda_costs,
    cuda_formats,
    mps_formats,
    rocm_formats,
    xpu_formats,
)
from mptui.hardware.host import Host
from mptui.hardware.torch_view import Kind

GIB = 1024**3


def card(name: str, capability: tuple[int, int], gib: float = 24, **changes: Any) -> Device:
    return Device(
        kind="cuda",
        index=0,
        name=name,
        architecture=architecture_name(capability),
        capability=capability,
        memory_total=int(gib * GIB),
        native=cuda_formats(capability, name),
        costs=cuda_costs(capability),
        **changes,
    )


def other(kind: Kind, native: Formats, gib: float = 24) -> Device:
    return Device(
        kind=kind, index=0, name=kind, architecture=None, memory_total=int(gib * GIB), native=native
    )


def amd(gfx: str) -> Device:
    return other("rocm", rocm_formats(gfx))


def cpu(*features: str) -> Device:
    return replace(other("cpu", cpu_formats(features)), costs=cpu_costs(features))


XPU = other("xpu", xpu_formats(matrix_units=True))
INTEGRATED_XPU = other("xpu", xpu_formats(matrix_units=False))
MPS = other("mps", mps_formats(bf16=True))
OLD_MPS = other("mps", mps_formats(bf16=False))

H200 = card("NVIDIA H200", (9, 0), 140)
T4 = card("Tesla T4", (7, 5), 15)
GTX_1660 = card("NVIDIA GeForce GTX 1660 Ti", (7, 5), 6)
P100 = card("Tesla P100-PCIE-16GB", (6, 0), 16)
GTX_1080 = card("NVIDIA GeForce GTX 1080", (6, 1), 8)
V100 = card("Tesla V100-SXM2-16GB", (7, 0), 16)
RTX_3090 = card("NVIDIA GeForce RTX 3090", (8, 6), 24)
RTX_4090 = card("NVIDIA GeForce RTX 4090", (8, 9), 24)
B200 = card("NVIDIA B200", (10, 0), 180)
RTX_5090 = card("NVIDIA GeForce RTX 5090", (12, 0), 32)

HOST = Host(
    name="A CPU",
    cores_physical=8,
    cores_logical=16,
    cpus_usable=16,
    memory_total=64 * GIB,
    memory_free=60 * GIB,
    features=["avx2"],
)
