"""GPUs by name, to plan for one that this machine doesn't have. Imports no torch."""

import difflib
import re
from dataclasses import dataclass

from mptui.errors import ConfigError
from mptui.hardware.devices import Device
from mptui.hardware.formats import Capability, architecture_name, cuda_formats

_GIB = 1 << 30
_UNITS = {"gib": _GIB, "gb": 10**9, "mib": 1 << 20}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(gib|gb|mib)")
_RECENT: Capability = (8, 0)
"""Compute capability that a card given by its size alone is taken for: 16 bits and TF32 are native."""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU: its name, its compute capability, and its memory in GiB as torch reports it."""

    title: str
    capability: Capability
    gib: float


CARDS = {
    "t4": Card("T4", (7, 5), 14.6),
    "v100": Card("V100 16 GB", (7, 0), 15.8),
    "v100-32gb": Card("V100 32 GB", (7, 0), 31.7),
    "rtx2080ti": Card("RTX 2080 Ti", (7, 5), 10.7),
    "rtx3090": Card("RTX 3090", (8, 6), 23.6),
    "rtx4090": Card("RTX 4090", (8, 9), 23.6),
    "rtx5090": Card("RTX 5090", (12, 0), 31.3),
    "a10g": Card("A10G", (8, 6), 22.0),
    "l4": Card("L4", (8, 9), 22.0),
    "l40s": Card("L40S", (8, 9), 44.4),
    "a100-40gb": Card("A100 40 GB", (8, 0), 39.4),
    "a100": Card("A100 80 GB", (8, 0), 79.1),
    "h100": Card("H100 80 GB", (9, 0), 79.1),
    "h200": Card("H200", (9, 0), 139.8),
}
"""Less than on the box: the driver, and ECC on some, keep a part. The figures are those of torch's messages
when memory is full ("has a total capacity of")."""


def card_device(text: str) -> Device:
    """Return the device that `--card` names: one of `CARDS`, or a size such as 24GiB, with nothing on it.

    Raises:
        ConfigError: There is no such card.
    """
    wanted = text.strip().lower().replace(" ", "").replace("_", "-")
    card = CARDS.get(wanted)
    if card is None and (size := _SIZE.fullmatch(wanted)):
        gib = float(size[1]) * _UNITS[size[2]] / _GIB
        card = Card(f"a GPU of {gib:g} GiB", _RECENT, gib)
    if card is None or not card.gib:
        near = difflib.get_close_matches(wanted, CARDS, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"--card {text}: unknown", hint=f"{meant}there are {', '.join(CARDS)}, or a size: 24GiB"
        )
    total = int(card.gib * _GIB)
    return Device(
        kind="cuda",
        index=0,
        name=card.title,
        architecture=architecture_name(card.capability),
        capability=card.capability,
        memory_total=total,
        memory_free=total,
        native=cuda_formats(card.capability, card.title),
    )
