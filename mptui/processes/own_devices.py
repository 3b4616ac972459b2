"""Checks that no two ranks of a group train on the same GPU, before they join."""

import time
from collections import defaultdict
from typing import Any

from mptui.errors import ConfigError
from mptui.processes.rank_place import RankPlace

_LEAVE_S = 10.0
"""Longest wait of rank 0, whose process may hold the store, until the others have read what is wrong."""
_LOOK_S = 0.05


def check_own_devices(store: Any, place: RankPlace, uuid: str | None) -> None:  # noqa: ANN401 - a store of torch
    """Check that the device of each rank is that of no other one; for all ranks at the same time.

    Each knows its own device only: a launcher may show one GPU to each (`srun --gpus-per-task=1`), all of
    them as `cuda:0`, or the same one to all.

    Args:
        store: The store by which the ranks have met.
        place: The place of this rank.
        uuid: The device of this rank; None: it is not known, or may be shared as a CPU.

    Raises:
        ConfigError: Two ranks have the same device.
    """
    store.set(f"device/{place.rank}", uuid or "")
    if place.rank == 0:
        store.set(
            "devices", _shared([store.get(f"device/{rank}").decode() for rank in range(place.world_size)])
        )
    shared = store.get("devices").decode()
    if not shared:
        return
    left, until = store.add("left", 1), time.monotonic() + _LEAVE_S
    while place.rank == 0 and left < place.world_size and time.monotonic() < until:
        time.sleep(_LOOK_S)
        left = store.add("left", 0)
    raise ConfigError(
        f"{shared}: there are more processes than GPUs, or the launcher shows the same GPU to several",
        hint="start one process for each GPU: --nproc-per-node gpu; or show each its own: "
        "srun --gpus-per-task=1",
    )


def _shared(devices: list[str]) -> str:
    """Return which ranks have the same device, in words; "": none."""
    ranks = defaultdict(list)
    for rank, device in enumerate(devices):
        ranks[device].append(str(rank))
    ranks.pop("", None)
    return "; ".join(
        f"ranks {', '.join(each)} have the same GPU ({device})"
        for device, each in ranks.items()
        if len(each) > 1
    )
