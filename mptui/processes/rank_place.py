"""The processes (ranks) of a run: the group it is started in, and the place of one in it; without torch."""

import re
import time
from collections import defaultdict
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from mptui.errors import ConfigError

# The place of this process in a group that a launcher started: torchrun, or srun of SLURM
# ----------------------------------------------------------------------------------------

RUN_ID = "mptui"
"""Begin of TORCHELASTIC_RUN_ID in ranks that this program started itself."""

_PORTS = range(15_000, 35_000)
"""Ports for the rendezvous of a SLURM job step, below those that Linux hands out."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A process (rank) of a group of several.

    Attributes:
        rank: Number of the process in the group, from 0.
        local_rank: Number of the process on its node, from 0.
        world_size: Processes of the group; at least 2.
        local_world_size: Processes of the group on this node.
        node: Number of the node, from 0.
        nodes: Machines of the group.
        cpus: Processors that the launcher gives to this process; None: those of its node are shared.
        source: The variables that say so.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node: int = 0
    nodes: int = 1
    cpus: int | None = None
    source: str = field(default="RANK and WORLD_SIZE", compare=False)


# The group that a run is started in
# ----------------------------------

MOST_RESTARTS = 3
"""Restarts of a group unless asked otherwise; torchrun has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The processes (ranks) of a run.

    Attributes:
        processes: Their number on this node.
        nodes: Number of nodes.
        endpoint: `host:port` on one of the nodes, where all meet; "" on a single node.
        max_restarts: How often all ranks are started again after one is lost.
    """

    processes: int
    nodes: int = 1
    endpoint: str = ""
    max_restarts: int = MOST_RESTARTS

    @property
    def flags(self) -> list[str]:
        """The flags of a command that starts this group on a single node."""
        return ["--nproc-per-node", str(self.processes), "--max-restarts", str(self.max_restarts)]

    @property
    def first(self) -> RankPlace:
        """The place of the first process."""
        return RankPlace(0, 0, self.nodes * self.processes, self.processes)


# What the launcher says in variables
# -----------------------------------


def rank_place(environ: MutableMapping[str, str]) -> RankPlace | None:
    """Return the place of this process; None if a launcher started no other process of the group.

    For a job step of srun, this sets MASTER_ADDR and MASTER_PORT in `environ`, if they are not set: the first
    node of the job, and a port that follows from the job's number.
    """
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _by_torchrun(environ)
    # a batch script is one process for any number of tasks of its job; only a step of srun has this variable
    in_batch_script = environ.get("ENVIRONMENT") == "BATCH"
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or (None if in_batch_script else environ.get("SLURM_NTASKS"))
    if number_of(tasks, 1) < 2 or "SLURM_PROCID" not in environ:
        return None
    place = _by_srun(environ, number_of(tasks, 1))
    job, step = number_of(environ.get("SLURM_JOB_ID"), 0), number_of(environ.get("SLURM_STEP_ID"), 0)
    environ.setdefault("MASTER_ADDR", first_host(environ.get("SLURM_JOB_NODELIST", "")) or "127.0.0.1")
    environ.setdefault("MASTER_PORT", str(_PORTS[(job * 31 + step) % len(_PORTS)]))
    return place


def _by_torchrun(environ: Mapping[str, str]) -> RankPlace | None:
    world_size, rank = number_of(environ["WORLD_SIZE"], 1), number_of(environ["RANK"], 0)
    if world_size < 2:
        return None
    local_world_size = number_of(environ.get("LOCAL_WORLD_SIZE"), world_size)
    return RankPlace(
        rank=rank,
        local_rank=number_of(environ.get("LOCAL_RANK"), rank),
        world_size=world_size,
        local_world_size=local_world_size,
        node=number_of(environ.get("GROUP_RANK"), rank // local_world_size),
        nodes=number_of(environ.get("GROUP_WORLD_SIZE"), -(-world_size // local_world_size)),
    )


def _by_srun(environ: Mapping[str, str], world_size: int) -> RankPlace:
    rank, node = number_of(environ["SLURM_PROCID"], 0), number_of(environ.get("SLURM_NODEID"), 0)
    by_node = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_NTASKS_PER_NODE") or ""
    nodes = environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES")
    return RankPlace(
        rank=rank,
        local_rank=number_of(environ.get("SLURM_LOCALID"), rank),
        world_size=world_size,
        local_world_size=_of_node(by_node, node) or world_size,
        node=node,
        nodes=number_of(nodes, 1),
        cpus=number_of(environ.get("SLURM_CPUS_PER_TASK"), 0) or None,
        source="SLURM_PROCID and SLURM_STEP_NUM_TASKS",
    )


def first_host(nodes: str) -> str:
    """Return the first host of a list as SLURM writes it: `gpu[003-006,9],login1` is `gpu003`."""
    found = re.match(r"([^,\[]*)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", nodes.strip())
    return "" if found is None else "".join(part or "" for part in found.groups())


def _of_node(counts: str, node: int) -> int | None:
    """Return the entry of a node in counts as SLURM writes them: `2(x3),1` is 2, 2, 2 and 1."""
    for part in counts.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,9})\))?", part.strip())
        if found is None:
            return None
        count, times = int(found[1]), int(found[2] or 1)
        if node < times or "," not in counts:
            return count
        node -= times
    return None


def number_of(text: str | None, otherwise: int) -> int:
    """Return the number that a variable holds; `otherwise` if it holds none."""
    found = re.fullmatch(r"\d{1,9}", text or "")
    return otherwise if found is None else int(found[0])


def is_restart(environ: Mapping[str, str]) -> bool:
    """Whether torchrun or SLURM has started this command before: after a loss, or of a job queued again."""
    return any(number_of(environ.get(f"{name}_RESTART_COUNT"), 0) for name in ("TORCHELASTIC", "SLURM"))


def is_of_launcher(environ: Mapping[str, str]) -> bool:
    """Whether `mptui run` or `mptui resume` has started this process, and writes how the run ends."""
    return environ.get("TORCHELASTIC_RUN_ID", "").startswith(RUN_ID)


def restarts_left(environ: Mapping[str, str]) -> int:
    """Return how often torchrun starts this process again if it fails."""
    most, now = (environ.get(f"TORCHELASTIC_{name}", "") for name in ("MAX_RESTARTS", "RESTART_COUNT"))
    return int(most) - int(now) if most.isdecimal() and now.isdecimal() else 0


# Checks that the ranks of a group have devices of one kind, and no two the same GPU, before they join
# ----------------------------------------------------------------------------------------------------

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
    if place.rank == 0:
        while left < place.world_size and time.monotonic() < until:
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
