"""Checks that the ranks of a group have devices of one kind, and no two the same GPU, before they join."""

import time
from collections import defaultdict
from typing import Any

from mptui.errors import ConfigError
from mptui.processes.rank_place import RankPlace

_LEAVE_S = 10.0
"""Longest wait of rank 0, whose process may hold the store, until the others have read what is wrong."""
_LOOK_S = 0.05


def check_own_devices(
    store: Any,  # noqa: ANN401 - of torch, whose types it does not export
    place: RankPlace,
    kind: str,
    uuid: str | None,
) -> None:
    """Check that the devices of all ranks are of one kind, and each that of no other; all learn it at once.

    Each knows its own device only: a launcher may show one GPU to each (`srun --gpus-per-task=1`), all of
    them as `cuda:0`, or the same one to all; and a node may lack the GPU that the others have.

    Args:
        store: The store by which the ranks have met.
        place: The place of this rank.
        kind: The kind of its device, as torch names it.
        uuid: What tells that device from others; None: it is not known, or may be shared as a CPU.

    Raises:
        ConfigError: Two ranks have the same device, or devices of different kinds.
    """
    store.set(f"device/{place.rank}", f"{kind} {uuid or ''}")
    if place.rank == 0:
        devices = [store.get(f"device/{rank}").decode() for rank in range(place.world_size)]
        store.set("devices", _fault(devices))
    message, _, hint = store.get("devices").decode().partition("\n")
    if not message:
        return
    left, until = store.add("left", 1), time.monotonic() + _LEAVE_S
    while place.rank == 0 and left < place.world_size and time.monotonic() < until:
        time.sleep(_LOOK_S)
        left = store.add("left", 0)
    raise ConfigError(message, hint=hint)


def _fault(devices: list[str]) -> str:
    """Return what is wrong with the devices of the ranks, and what to do in a second line; "": nothing."""
    ranks, kinds = defaultdict(list), defaultdict(list)
    for rank, device in enumerate(devices):
        kind, _, uuid = device.partition(" ")
        kinds[kind].append(str(rank))
        if uuid:
            ranks[uuid].append(str(rank))
    shared = [
        f"ranks {', '.join(each)} have the same GPU ({uuid})" for uuid, each in ranks.items() if each[1:]
    ]
    if shared:
        return (
            f"{'; '.join(shared)}: there are more processes than GPUs, or the launcher shows the same GPU to "
            "several\nstart one process for each GPU: --nproc-per-node gpu; or show each its own: "
            "srun --gpus-per-task=1"
        )
    if len(kinds) > 1:
        words = "; ".join(f"{kind}: ranks {', '.join(each)}" for kind, each in kinds.items())
        return (
            f"the ranks have devices of different kinds, {words}\n"
            "see why on their nodes: mptui detect; or train all on one kind: --device cpu"
        )
    return ""
