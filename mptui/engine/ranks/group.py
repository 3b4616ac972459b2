"""The group of processes (ranks) that train one network, by torch.distributed; who failed."""

import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor

from mptui import errors
from mptui.engine.micro_batches import is_memory_full
from mptui.engine.ranks.beats import Beats, StepTimes
from mptui.errors import ConfigError, MemoryExhaustedError, MptuiError, RankError
from mptui.processes.rank_place import RankPlace, check_own_devices
from mptui.registry.own_code import fault_of
from mptui.text import clean, clean_lines

# The failure of one rank, as the others raise it, and how it leaves them
# -----------------------------------------------------------------------

_LOST = ("gloo", "Connection closed by peer", "Connection reset by peer", "NCCL", "ProcessGroup", "TCPStore")
"""Words of torch's errors about a group whose processes have ended."""

ABORT_S = 5.0
"""Seconds that a rank which leaves at once waits for operations that gloo can't give up."""


class RetryError(Exception):
    """The step failed on another rank, and is to be repeated by all."""


class PeerOutOfMemoryError(RetryError, MemoryError):
    """The step did not fit in the memory of another rank."""


@dataclass(frozen=True, slots=True)
class RankFailure:
    """An error that ended the work of a rank: the class of an `MptuiError`, and its words."""

    rank: int
    kind: str
    message: str
    hint: str

    @classmethod
    def of(cls, error: BaseException, rank: int) -> "RankFailure":
        """Describe `error`; that of a bug is a `RankError`."""
        known = error if isinstance(error, MptuiError) else fault_of(error)
        if known is not None:
            return cls(rank, type(known).__name__, known.message, known.hint)
        words = clean_lines(f"{type(error).__name__}: {error}", 500)
        if is_memory_full(error):
            return cls(rank, MemoryExhaustedError.__name__, words, "use a smaller --batch-size")
        return cls(rank, RankError.__name__, words, "see the traceback of that rank")

    def error(self) -> MptuiError:
        """Return the error for another rank to raise."""
        kind = getattr(errors, self.kind, RankError)
        raised: MptuiError = kind(f"rank {self.rank}: {self.message}", hint=self.hint)
        return raised


@contextlib.contextmanager
def lost() -> Iterator[None]:
    """Raise torch's error about a process that has ended as a `RankError`."""
    try:
        yield
    except RuntimeError as error:
        if (raised := as_lost(error)) is None:
            raise
        raise raised from error


def as_lost(error: BaseException) -> RankError | None:
    """Convert torch's error about a process that has ended; None for other errors."""
    if not isinstance(error, RuntimeError) or not any(word in str(error) for word in _LOST):
        return None
    words = re.sub(r"^\[[^\]]*\] ?", "", str(error).strip().splitlines()[0]).partition(". ")[0]
    return RankError(
        f"another process of the run has ended or can't be reached: {clean(words, 200)}",
        hint="read what the other processes say, then go on from the last save: mptui resume RUN",
    )


def leave_at_once() -> None:
    """Leave the group of this process, and give up operations that don't end in some seconds."""
    # in this thread, the last reference to the group would wait for its operations
    leaving = threading.Thread(target=_abort, daemon=True)
    leaving.start()
    leaving.join(ABORT_S)


def _abort() -> None:
    with contextlib.suppress(RuntimeError):
        if dist.group.WORLD is not None:
            dist.group.WORLD.abort()  # nccl gives up its operations, gloo has no such thing
        dist.destroy_process_group()  # gloo's threads can abort a process that ends with a group


# The group of processes (ranks) that train one network, by torch.distributed
# ---------------------------------------------------------------------------
# There are two groups of the same ranks: that of the device (nccl on CUDA, gloo on a CPU) reduces tensors
# in the order of the device's work; that of the hosts (gloo) carries small values between steps, and no
# device waits for it.
#
# A rank that fails must not leave the others waiting. Therefore the hosts meet (`Ranks.sync_status`) before
# each collective operation on the device, and before small values are exchanged: there a failed rank says
# so, and all others raise its error. Only the sums of a step are not met for one by one: a rank that fails in
# a step makes up for them (`mptui.engine.ranks.sync`).

T = TypeVar("T")

JOIN_TIMEOUT = timedelta(minutes=10)
"""Longest wait for the other ranks at the start."""

_LOOK_S = 0.1

HOST_TIMEOUT = timedelta(days=1)
"""Longest wait of a host for another: a disk that is full may hold rank 0 for hours. The end of a process
ends a wait at once."""

DEVICE_TIMEOUT = HOST_TIMEOUT + timedelta(hours=1)
"""Longest wait of a device for another, whose host may wait for a disk. Hosts, which can say so, give up
first; nccl would end a process after 10 minutes. A rank that is lost is found by `Beats`."""


class RankStatus(IntEnum):
    """How a rank comes to a meeting; the others act on the highest."""

    FINE = 0
    RETRY = 1
    """The step failed for a reason of its own kind, and is to be repeated."""
    NO_MEMORY = 2
    """The step did not fit in memory, and is to be repeated."""
    FAILED = 3


# What ranks agree on: numbers that each brings to each meeting, and rarely more
# ------------------------------------------------------------------------------

_MOST_NUMBERS = 16
"""Integers that a rank can bring to a meeting; all bring as many."""


class SyncPart:
    """One thing that all ranks do alike, by what each of them knows; see `Ranks.agree_on`."""

    size = 0
    """Integers of `numbers`."""

    def numbers(self) -> list[int]:
        """Return what this rank knows, for a meeting; zeros say nothing."""
        return [0] * self.size

    def on_numbers(self, rows: list[list[int]]) -> None:
        """Called at a meeting with the numbers of all ranks, in their order."""

    def news(self) -> object:
        """Return what this rank has to tell besides, which is told once; None: nothing."""
        return None

    def on_news(self, told: list[Any]) -> None:
        """Called with the news of the ranks that have some, in their order."""


class StepSync:
    """What ranks agree on each time they meet (`Ranks.sync_status`), which they do once in each step.

    Invariant: all ranks add the same parts in the same order, before they meet for the first of them. A
    rank that fails before it has added all brings zeros for the others, and no news.
    """

    def __init__(self) -> None:
        self._parts: dict[str, SyncPart] = {}
        self._news: list[object] = []

    def add(self, name: str, part: SyncPart) -> None:
        """Add a part; it takes the place of an earlier one of this name."""
        self._parts[name] = part
        assert sum(each.size for each in self._parts.values()) < _MOST_NUMBERS

    def numbers(self) -> list[int]:
        """Return the numbers of this rank, of one length on all: whether it has news, and those of each."""
        parts = self._parts.values()
        self._news = [each.news() for each in parts]
        has_news = any(news is not None for news in self._news)
        numbers = [int(has_news), *(number for each in parts for number in each.numbers())]
        return numbers + [0] * (_MOST_NUMBERS - len(numbers))

    def on_numbers(
        self, rows: list[list[int]], exchange: Callable[[list[object]], list[list[object]]]
    ) -> None:
        """Let all agree by the numbers of all ranks; news go through `exchange`, if a rank has some."""
        begin = 1
        for each in self._parts.values():
            each.on_numbers([row[begin : begin + each.size] for row in rows])
            begin += each.size
        if any(row[0] for row in rows):
            told = exchange(self._news)
            for place, each in enumerate(self._parts.values()):
                if news := [row[place] for row in told if place < len(row) and row[place] is not None]:
                    each.on_news(news)


class Ranks:
    """This rank and its group; alone, all methods return at once and change nothing.

    Invariant: all ranks make the same operations of a group in the same order. What decides whether one is
    made is a value that all have (a setting, or what they agreed on), never one of this rank.

    Args:
        rank: Number of this process in the group, from 0.
        world_size: Processes of the group.
        device_group: Reduces tensors on the device; None for a single process.
        host_group: Carries values between the hosts; None for a single process.
        nodes: Machines of the group.

    Attributes:
        sync: What all ranks agree on at each meeting.
        failure: The failure that ends the run, once all ranks know of it.
        beats: The signs of life of the ranks; None for a single process.
        steps: On rank 0, the latest measured steps: the times of each rank.
    """

    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        device_group: dist.ProcessGroup | None = None,
        host_group: dist.ProcessGroup | None = None,
        *,
        nodes: int = 1,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.nodes = nodes
        self.device_group = device_group
        self.host_group = host_group
        self.sync = StepSync()
        self.failure: RankFailure | None = None
        self.beats: Beats | None = None
        self.steps: tuple[tuple[StepTimes, ...], ...] = ()
        self._own_failure: RankFailure | None = None
        self._arrivals = 0

    @classmethod
    def alone(cls) -> "Ranks":
        """Return the group of a single process."""
        return cls()

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes the run directory and the terminal."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is no other rank."""
        return self.world_size == 1

    @property
    def per_node(self) -> int:
        """Processes on a node; the most, if they differ."""
        return -(-self.world_size // self.nodes)

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum `tensor` on the device over all ranks, in place; on CUDA the host does not wait."""
        if self.device_group is not None:
            self.arrive()
            with lost():
                dist.all_reduce(tensor, group=self.device_group)
        return tensor

    def sum_all_(self, tensors: Iterable[torch.Tensor]) -> None:
        """Sum each of `tensors` as `sum_`, all at the same time."""
        if self.device_group is None:
            return
        with lost():
            works = [dist.all_reduce(each, group=self.device_group, async_op=True) for each in tensors]
            for work in works:
                self.arrive()
                assert work is not None, "it is asynchronous"
                work.wait()

    def sync_status(self, status: RankStatus = RankStatus.FINE, value: int = 0) -> list[int]:
        """Wait for the hosts of all ranks; return the `value` of each, in the order of the ranks.

        Raises:
            RetryError: Another rank has to repeat the step.
            MptuiError: Another rank has failed, with the error of its class, or can't be reached.
        """
        if self.host_group is None:
            return [value]
        self.arrive()
        own = torch.tensor([status, value, *self.sync.numbers()])
        table = [torch.empty_like(own) for _ in range(self.world_size)]
        with lost():
            dist.all_gather(table, own, group=self.host_group)
        rows = [row.tolist() for row in table]
        worst = max(row[0] for row in rows)
        if worst == RankStatus.FAILED and self.failure is None:
            self.failure = next(failure for failure in self.exchange(self._own_failure) if failure)
        self.sync.on_numbers([row[2:] for row in rows], self.exchange)
        is_of_another = worst == RankStatus.FAILED and status != RankStatus.FAILED
        if is_of_another and self.failure is not None:
            raise self.failure.error()
        if status == RankStatus.FINE and worst == RankStatus.NO_MEMORY:
            raise PeerOutOfMemoryError("out of memory on another rank")
        if status == RankStatus.FINE and worst == RankStatus.RETRY:
            raise RetryError
        return [row[1] for row in rows]

    def agree_on(self, name: str, part: SyncPart) -> None:
        """Bring `part` to each meeting from the next on; it takes the place of one of this name."""
        if not self.is_alone:
            self.sync.add(name, part)

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks at their next meeting that `error` ends the run; once."""
        is_known = self.failure is not None or isinstance(error, RankError)
        if is_known or self.host_group is None:
            return
        self._own_failure = RankFailure.of(error, self.rank)
        self.sync_status(RankStatus.FAILED)

    def continue_run(self) -> None:
        """Forget a failure that all ranks know of, and from which they go on together."""
        self.failure = self._own_failure = None

    def end_alone(self, failure: RankFailure) -> None:
        """Note a failure of which the others don't hear in a meeting: they find that this process ended."""
        self.failure = failure
        if self.beats is not None:
            self.beats.post_failure(json.dumps(asdict(failure)))

    def reason(self, error: MptuiError) -> MptuiError:
        """Return the error of which another rank has left word, if that is the reason for `error`."""
        if not isinstance(error, RankError) or self.beats is None:
            return error
        posted = self.beats.posted_failure()
        return error if posted is None else RankFailure(**json.loads(posted)).error()

    def gather(self, value: T) -> list[T]:
        """Return the small `value` of each rank, in the order of the ranks, by way of the hosts."""
        self.sync_status()
        return self.exchange(value)

    def broadcast(self, value: T) -> T:
        """Return the small `value` of rank 0 on all ranks, by way of the hosts."""
        if self.host_group is None:
            return value
        self.sync_status()
        values = [value]
        with lost():
            dist.broadcast_object_list(values, src=0, group=self.host_group)
        return values[0]

    def broadcast_buffers(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace `tensors` on the device by those of rank 0."""
        if self.device_group is None:
            return
        self.sync_status()
        with lost():
            for tensor in tensors:
                dist.broadcast(tensor, src=0, group=self.device_group)

    def exchange(self, value: T) -> list[T]:
        """Return the `value` of each rank, where all ranks have just met."""
        if self.host_group is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        with lost():
            dist.all_gather_object(values, value, group=self.host_group)
        return values

    def beat(self) -> None:
        """Show the others from now on that this rank lives, and how many collectives it has come to."""
        self.beats = Beats(self.rank, self.world_size, lambda: self._arrivals)

    def arrive(self) -> None:
        """Count a collective, to tell the ranks that others wait for."""
        self._arrivals += 1

    def late(self) -> list[str]:
        """Return a sentence for each rank that this one waits for."""
        return [] if self.beats is None else self.beats.late()

    def end_beats(self) -> None:
        """Give no more signs of life, nor listen for any: no silence ends this rank as it writes its end."""
        if self.beats is not None:
            self.beats.close()
            self.beats = None

    def close(self, *, at_once: bool = False) -> None:
        """Leave the group; the other ranks find out at their next exchange.

        Args:
            at_once: Give up the operations under way, which may never end: torch would wait for them.
        """
        self.end_beats()
        if self.device_group is None:
            return
        self.device_group = self.host_group = None
        if at_once:
            leave_at_once()
        else:
            dist.destroy_process_group()


ALONE = Ranks.alone()
"""The group of a single process."""


class Arrivals:
    """How many ranks have come to where they meet; read by another thread than that which waits for them.

    Args:
        place: The place of this process.
    """

    def __init__(self, place: RankPlace) -> None:
        self.place = place
        self.count = 0
        self.address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        self.fault = ""

    def __str__(self) -> str:
        place, fault = self.place, f" ({self.fault})" if self.fault else ""
        if not self.count:
            return f"waiting for rank 0 at {self.address}{fault} (from {place.source})"
        missing = place.world_size - self.count
        return f"waiting for {missing} of {place.world_size} ranks at {self.address} (from {place.source})"


def join(
    place: RankPlace | None, device: torch.device, arrivals: Arrivals | None = None, uuid: str | None = None
) -> Ranks:
    """Join the group of `place`, by the address in MASTER_ADDR and MASTER_PORT; waits for all its ranks.

    Args:
        place: The place of this process; None: it is alone.
        device: The device that this rank trains on.
        arrivals: Is told how many ranks have come.
        uuid: What tells that device from all others; None: it is not known.

    Raises:
        ConfigError: The address is not set, or the devices of two ranks can't train together.
        RankError: The other ranks can't be reached, or don't come in `JOIN_TIMEOUT`.
    """
    if place is None:
        return Ranks.alone()
    if "MASTER_ADDR" not in os.environ or not os.environ.get("MASTER_PORT", "").isdecimal():
        raise ConfigError(
            f"this is rank {place.rank} of {place.world_size}, but MASTER_ADDR and MASTER_PORT are not set",
            hint=f"start the processes by --nproc-per-node, torchrun or srun; or {_unset(place)}",
        )
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    store = _meeting_place(arrivals or Arrivals(place))
    with lost():
        check_own_devices(store, place, device.type, uuid)
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            store=store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=DEVICE_TIMEOUT,
            device_id=device if cuda else None,
        )
        host_group = dist.new_group(backend="gloo", timeout=HOST_TIMEOUT)
    ranks = Ranks(
        place.rank,
        place.world_size,
        dist.group.WORLD,
        cast(dist.ProcessGroup, host_group),
        nodes=place.nodes,
    )
    ranks.beat()
    return ranks


def _meeting_place(arrivals: Arrivals) -> Any:  # noqa: ANN401 - a store of torch, whose types it does not export
    """Return the store by which the ranks find each other, once all have come to it.

    torch waits for them in the constructor of its store, where nobody learns who is missing.

    Raises:
        RankError: They don't come in `JOIN_TIMEOUT`, or another program uses the port.
    """
    place, until = arrivals.place, time.monotonic() + JOIN_TIMEOUT.total_seconds()
    of_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    _wait_for_host(host, arrivals, until)
    try:
        opened = dist.TCPStore(  # type: ignore[attr-defined]
            host,
            port,
            place.world_size,
            is_master=place.rank == 0 and not of_launcher,
            timeout=JOIN_TIMEOUT,
            wait_for_workers=False,
            multi_tenant=True,
        )
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"mptui/{attempt}", opened)  # type: ignore[attr-defined]
        arrivals.count = store.add("came", 1)
        while arrivals.count < place.world_size and time.monotonic() < until:
            time.sleep(_LOOK_S)
            arrivals.count = store.add("came", 0)
    except RuntimeError as error:
        arrivals.fault = clean(str(error).strip().splitlines()[0], 200)
        if "EADDRINUSE" in str(error):
            arrivals.fault = "another program uses this port"
        raise _nobody_came(arrivals) from error
    if arrivals.count < place.world_size:
        raise _nobody_came(arrivals)
    return store


def _wait_for_host(host: str, arrivals: Arrivals, until: float) -> None:
    """Wait until the name of a host is known: that of a job's first node may become so a little later."""
    while True:
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            arrivals.fault = f"{host}: {error.strerror}"
            if time.monotonic() >= until:
                raise _nobody_came(arrivals) from error
            time.sleep(1.0)
        else:
            arrivals.fault = ""
            return


def _nobody_came(arrivals: Arrivals) -> RankError:
    return RankError(
        f"rank {arrivals.place.rank} could not join its group: {str(arrivals).replace('waiting', 'waited')}"
        + (f": {arrivals.fault}" if arrivals.fault and arrivals.count else ""),
        hint=f"start the other ranks within {JOIN_TIMEOUT.total_seconds() / 60:.0f} minutes with the same "
        f"MASTER_ADDR and MASTER_PORT; or, to train in this process alone, {_unset(arrivals.place)}",
    )


def _unset(place: RankPlace) -> str:
    return f"unset {place.source}"


# The parts of sharded weights: each rank holds and updates its own rows of every weight (FSDP2)
# ----------------------------------------------------------------------------------------------
# A sharded network has its parameters as `DTensor`s, and so have the state dictionaries of network,
# optimizer and average. The optimizer itself, the average and the norm see plain tensors, the shards of
# this rank: their kernels are those of a network that is whole. Without sharding, each function here
# returns what it is given.


def shard_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank holds; of a parameter the same object each time."""
    # to_local() makes a new view of a parameter each time; an optimizer knows its weights by their identity
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def as_shard(own: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return `own`, which belongs to this rank's shard of a parameter, as a part of the whole tensor.

    What has one value for all of a parameter (0-dim) is returned as it is.
    """
    if not isinstance(parameter, DTensor) or own.ndim == 0:
        return own
    return DTensor.from_local(
        own.detach(),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return all of a tensor; all ranks take part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def as_shards(
    tensors: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return tensors of a checkpoint as the state of sharded parameters has them, on their device.

    Args:
        tensors: Whole tensors or the shards of this rank, named as a parameter or `KEY/PARAMETER`; others
            are returned as they are.
        parameters: The parameters by name.
    """
    found = dict(tensors)
    for name, value in tensors.items():
        parameter = parameters.get(name.rpartition("/")[2])
        if not isinstance(parameter, DTensor) or value.ndim != parameter.ndim:
            continue
        if value.shape == shard_of(parameter).shape:
            found[name] = as_shard(value, parameter)
        elif value.shape == parameter.shape:
            mesh, placements = parameter.device_mesh, parameter.placements
            found[name] = distribute_tensor(value, mesh, placements, src_data_rank=None)  # each has it all
    return found
