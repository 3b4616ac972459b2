"""A run in a group of processes (ranks), which torch's elastic launcher starts and restarts.

The ranks are processes of `mptui` with the environment of torchrun: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR
and so on. Each start resumes the run, so that a restart goes on from the last save.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from mptui.engine.checkpoint.pointers import target_of
from mptui.errors import MptuiError, RankError, error_of_code
from mptui.hardware.host import read_host
from mptui.processes.interruptible import interruptible, still_waits
from mptui.processes.rank_place import RUN_ID
from mptui.runs.launch.account import record_end, record_losses, record_stop
from mptui.runs.launch.agent import Agent, RankLogs
from mptui.runs.launch.group_options import Group
from mptui.runs.launch.losses import SAVED, LostRank
from mptui.runs.store.claim import Claim
from mptui.runs.store.directory import CHECKPOINTS, LAST, RANKS
from mptui.runs.store.index import read_run
from mptui.text import clean

T = TypeVar("T")

_LOCAL = "127.0.0.1"
_LOOK_S = 0.2


def train_in_group(
    group: Group,
    command: Sequence[str],
    run: Path,
    attach: Callable[[Agent], None],
    told_wait: Callable[[Callable[[], str]], Callable[[], None]],
    on_start: Callable[[], None] = lambda: None,
) -> int:
    """Train in a group until it ends; return the exit code.

    Args:
        group: The ranks of this node, and how it meets other nodes.
        command: Command line of a rank, after the interpreter.
        run: The run directory.
        attach: Called with the agent, to which signals go from then on.
        told_wait: Returns what to call again and again in a wait, given the words about it.
        on_start: Called before each start of the ranks, when the nodes have met.

    Raises:
        RankError: The nodes of the group did not meet.
        MptuiError: The group failed; the journal has the reason.
    """
    guard = _Guard(run, group, on_start)
    words = f"waiting for {group.nodes} nodes to meet at {group.endpoint} (from --nnodes and --rdzv-endpoint)"
    if group.nodes == 1:
        words = "waiting for the processes of this machine to meet"
    meet = partial(_met, group, lambda: told_wait(lambda: words))
    spec = meet(lambda: _spec(group, command))
    agent = Agent(spec, RankLogs(run / RANKS), meet, guard.may_restart, guard.lost, guard.starting)
    attach(agent)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"  # the others have handlers of ours
    # of torch's shared store, a restarted rank reads the addresses of the ranks before (pytorch issue 135712)
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    threads = max(1, read_host().cpus_usable // group.processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    with contextlib.closing(guard):  # it holds the run until its end is told
        try:
            result = agent.run()
        except SignalException as stopped:
            return guard.stopped(stopped.sigval)
        finally:
            if not still_waits():
                with contextlib.suppress(Exception):  # other nodes may be gone
                    agent.get_worker_group().spec.rdzv_handler.shutdown()
        if not result.is_failed():
            return 0
        return guard.code_of_end() if agent.stopped_by is None else guard.stopped(agent.stopped_by)


def _met(group: Group, look: Callable[[], Callable[[], None]], call: Callable[[], T]) -> T:
    """Call what waits for other nodes, so that signals end the wait.

    Raises:
        RankError: The nodes did not meet.
    """
    try:
        return interruptible(call, look())
    except RendezvousError as error:
        cause = str(error.__cause__ or error).strip().splitlines()[0]
        raise RankError(
            f"the {group.nodes} nodes of the group did not meet at {group.endpoint}: {clean(cause, 200)}",
            hint="start mptui with the same --nnodes and --rdzv-endpoint on all nodes within 10 minutes; "
            "the endpoint is a free port of one of them",
        ) from error


def _spec(group: Group, command: Sequence[str]) -> WorkerSpec:
    several = group.nodes > 1
    meeting = RendezvousParameters(
        backend="c10d",
        endpoint=group.endpoint if several else f"{_LOCAL}:0",
        run_id=f"{RUN_ID}-{group.endpoint or os.getpid()}",
        min_nodes=group.nodes,
        max_nodes=group.nodes,
        local_addr=None if several else _LOCAL,
    )
    return WorkerSpec(
        role="rank",
        local_world_size=group.processes,
        entrypoint=sys.executable,
        args=tuple(command),
        rdzv_handler=get_rendezvous_handler(meeting),
        max_restarts=group.max_restarts,
        monitor_interval=_LOOK_S,
        local_addr=None if several else _LOCAL,
    )


class _Guard:
    """Records what happens to the ranks of a run.

    Args:
        run: The run directory.
        group: The ranks.
        on_start: Called before each start of the ranks.
    """

    def __init__(self, run: Path, group: Group, on_start: Callable[[], None]) -> None:
        self._on_start = on_start
        self._run, self._restarts, self._started = run, group.max_restarts, 0
        self._is_first, self._since = group.nodes == 1, time.time()
        self._claim: Claim | None = None
        self._cause: LostRank | None = None
        self._bugs: set[Path | None] = set()

    def starting(self, node: int) -> None:
        """Hold the group's lock on the first node, so that the run counts as running between two starts."""
        self._on_start()
        self._started += 1
        self._is_first = not node
        if self._claim is not None and node:
            self.close()
        elif self._claim is None and not node:
            self._claim = Claim(self._run / RANKS)

    def may_restart(self, cause: LostRank) -> bool:
        """Return whether another start may get further.

        It doesn't after a person's mistake, nor after a bug that has ended a start from the same save before.
        """
        if cause.code in SAVED or cause.is_refusal:
            return False
        if cause.code != 1:
            return True
        saved = None
        with contextlib.suppress(OSError):
            saved = target_of(self._run / CHECKPOINTS, LAST)
        is_new = saved not in self._bugs
        self._bugs.add(saved)
        return is_new

    def lost(self, cause: LostRank, others: Sequence[LostRank], restarts: bool) -> None:
        """Record that a rank ended the group, and that others were killed meanwhile."""
        self._cause = cause
        if cause.code in SAVED or cause.is_refusal:
            return  # it has told the reason itself
        then = f"; restart {self._started} of {self._restarts} from the last save" if restarts else ""
        messages = [f"{cause.text}{then}", *(rank.text for rank in others)]
        print(*messages, sep="\n", file=sys.stderr, flush=True)  # noqa: T201 - the log of the launcher
        record_losses(self._run, messages, restarts=restarts)

    def close(self) -> None:
        """Release the lock."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def stopped(self, signal: int) -> int:
        """Record that a signal has stopped the run, unless rank 0 has; return the exit code."""
        if self._is_first and not self._end_is_told():
            record_stop(self._run, 128 + signal)
        return 128 + signal

    def _end_is_told(self) -> bool:
        """Whether the journal ends with an end of the run that this launcher has started."""
        try:
            finished = read_run(self._run).finished
        except OSError:
            return False
        return finished is not None and finished.time >= self._since

    def code_of_end(self) -> int:
        """Return the exit code of a group that ended because of a rank.

        Raises:
            MptuiError: The rank did not record the reason.
        """
        cause = self._cause
        assert cause is not None, "the agent tells each loss"
        if cause.code in SAVED:
            return cause.code
        if cause.is_refusal and self._end_is_told():
            return cause.code
        error = self._too_many(cause)
        if cause.is_refusal:  # before the run began
            error = cause.error or error_of_code(cause.code)(cause.text, hint="")
        record_end(self._run, error)
        raise error

    def _too_many(self, cause: LostRank) -> MptuiError:
        restarts = self._started - 1
        after = f" after {restarts} restart{'s' * (restarts > 1)}" if restarts else ""
        why = ""
        if cause.code == 1 and restarts < self._restarts:
            why = " (again, without a save in between)"
        return MptuiError(
            f"the group of processes ended{after}: {cause.text}{why}",
            hint=f"see {self._run / cause.log}; to go on from the last save: mptui resume {self._run.name}",
        )
