"""The devices of ranks are compared before they join; each rank is a thread with torch's store."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from mptui.errors import ConfigError
from mptui.processes.rank_place import RankPlace, check_own_devices


def faults(*devices):
    """Return what each rank is told, with a device of each rank as (kind, UUID)."""
    store, count = HashStore(), len(devices)
    store.set_timeout(timedelta(seconds=60))
    together = threading.Barrier(count)

    def check(rank):
        together.wait(60)
        try:
            check_own_devices(store, RankPlace(rank, rank, count, count), *devices[rank])
        except ConfigError as error:
            return f"{error.message} | {error.hint}"
        return ""

    with ThreadPoolExecutor(count) as ranks:
        return list(ranks.map(check, range(count)))


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ([("cuda", "GPU-a"), ("cuda", "GPU-b"), ("cuda", "GPU-a")], "ranks 0, 2 have the same GPU (GPU-a)"),
        (
            [("cuda", "GPU-a"), ("cpu", None), ("cuda", "GPU-b")],
            "different kinds, cuda: ranks 0, 2; cpu: ranks 1",
        ),
    ],
)
def test_all_ranks_are_told_what_is_wrong_with_their_devices(devices, words):
    told = faults(*devices)
    assert len(set(told)) == 1
    assert words in told[0]


@pytest.mark.parametrize(
    "devices",
    [
        [("cuda", "GPU-a"), ("cuda", "GPU-b")],
        [("cuda", "MIG-a"), ("cuda", "MIG-b")],
        [("cuda", None), ("cuda", None)],  # no UUIDs are known of other makers
        [("cpu", None), ("cpu", None)],
    ],
)
def test_ranks_with_devices_of_their_own_join(devices):
    assert faults(*devices) == ["", ""]
