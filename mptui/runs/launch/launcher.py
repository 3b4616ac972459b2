"""Torch's elastic agent."""

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import (
    LogsDest,
    LogsSpecs,
    SignalException,
    SubprocessContext,
)
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from mptui.engine.checkpoint.pointers import target_of
from mptui.errors import MptuiError, RankError, error_of_code
from mptui.hardware.host import read_host
from mptui.processes.rank_place import RUN_ID, Group
from mptui.processes.waiting import AwakeClock, interruptible, still_waits
from mptui.runs.launch.losses import (
    SAVED,
    LostRank,
    cause_of,
    lost_rank,
    record_end,
    record_losses,
    record_stop,
)
from mptui.runs.store.directory import CHECKPOINTS, LAST, RANKS
from mptui.runs.store.index import read_run
from mptui.runs.store.lock import Claim
from mptui.text import clean, shell_word

# The launcher of the ranks on one node: torch's elastic agent, which tells how ranks end
# ---------------------------------------------------------------------------------------
# Source: torch.distributed.elastic.agent.server, whose LocalElasticAgent is made to be extended. It starts
# the ranks, restarts all of them when one fails, and meets the agents of other nodes at the rendezvous.

_BY_REQUEST = frozenset({-signal.SIGTERM, -signal.SIGINT, -signal.SIGUSR1})

STOPPED_S = 10.0
"""Seconds that a rank may be suspended before it is killed."""

_GAP_S = 2.0
"""Seconds between two looks at the ranks beyond which this process was suspended itself."""

ASKED_S = 30.0
"""Seconds that a rank has to end after another one is lost, before torch kills it."""


class RankLogs(LogsSpecs):
    """Files `3.log` with what rank 3 writes to stderr and `3.out` for stdout; those of its last start beside.

    Args:
        folder: Their folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self._folder = folder

    @property
    def root_log_dir(self) -> str:
        """The folder."""
        return str(self._folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the files of each local rank."""
        files = LogsDest(error_files=dict.fromkeys(envs, os.devnull))
        for local_rank, environ in envs.items():
            for ending, paths in (("log", files.stderrs), ("out", files.stdouts)):
                path = self._folder / f"{environ['RANK']}.{ending}"
                if os.path.lexists(path):
                    path.replace(path.with_suffix(f".before.{ending}"))
                paths[local_rank] = str(path)
        return files


class Agent(LocalElasticAgent):
    """The agent of this node; `stop`, `save` and `suspend` may be called by handlers of signals.

    Args:
        spec: The ranks of this node, and how often they may restart.
        logs: Where they write.
        meet: Calls what waits for other nodes; a signal may raise in it.
        may_restart: Returns whether another start may get further than one that this rank ended.
        on_loss: Called after all local ranks have ended because of one, with that one, others that were
            killed, and whether all will restart.
        on_start: Called with the number of this node before its ranks start.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs: RankLogs,
        meet: Callable[[Callable[[], None]], None],
        *,
        may_restart: Callable[[LostRank], bool],
        on_loss: Callable[[LostRank, Sequence[LostRank], bool], None],
        on_start: Callable[[int], None],
    ) -> None:
        super().__init__(spec, logs)
        self._meet = meet
        self._folder = Path(logs.root_log_dir)
        self._may_restart = may_restart
        self._on_loss = on_loss
        self._on_start = on_start
        self._stop: int | None = None
        self._asked: set[int] = set()
        self._save = self._suspend = self._in_rendezvous = False
        self._suspended: dict[int, float] = {}
        self._killed: dict[int, float] = {}
        self._clock = AwakeClock(_GAP_S)

    # -- signals, as for the mailbox of a run

    def stop(self, number: int | None) -> None:
        """Ask the ranks to save and stop; the next look at them does it.

        Raises:
            SignalException: No rank runs, and this waits for other nodes.
        """
        self._stop = number or signal.SIGTERM
        if self._in_rendezvous:
            raise SignalException("stopped", signal.Signals(self._stop))

    def save(self) -> None:
        """Ask the ranks for a checkpoint."""
        self._save = True

    def suspend(self) -> None:
        """Suspend the ranks and this process until it is continued: at the next look, at once without any."""
        self._suspend = True
        if self._in_rendezvous:
            self._suspend_with([])

    @property
    def stopped_by(self) -> int | None:
        """The signal that asked to stop."""
        return self._stop

    # -- what torch's agent calls

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self._in_rendezvous = True
        try:
            if self._stop is not None:
                self.stop(self._stop)
            self._meet(partial(super()._rendezvous, worker_group))
        finally:
            self._in_rendezvous = False

    def _start_workers(self, worker_group: WorkerGroup) -> "dict[int, int]":
        self._suspended.clear()
        self._asked.clear()
        self._on_start(worker_group.group_rank or 0)
        started: dict[int, int] = super()._start_workers(worker_group)
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        codes = self._codes()
        self._forward([pid for pid, code in codes.items() if code is None])
        self._end_suspended([pid for pid, code in codes.items() if code is None])
        if self._saved & set(codes.values()) and None in codes.values():
            return RunResult(state=WorkerState.HEALTHY)  # torch would kill those that still save
        since = time.monotonic()
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state == WorkerState.FAILED:
            ended_before = {pid for pid, code in codes.items() if code}
            self._account(result, ended_before, at_once=time.monotonic() - since < ASKED_S)
        return result

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, *timeout: int, **named: int) -> None:
        at_once = isinstance(sys.exc_info()[1], KeyboardInterrupt)  # the second SIGINT
        # with a timeout in later versions of torch than 2.10
        super()._shutdown(signal.SIGKILL if at_once else death_sig, *timeout, **named)

    # -- parts of a look at the ranks

    @property
    def _saved(self) -> frozenset[int]:
        """Exit codes of ranks that were asked to stop: an interpreter that ends has no handlers any more."""
        return SAVED if self._stop is None else SAVED | _BY_REQUEST

    def _codes(self) -> dict[int, int | None]:
        """Return the exit code of each local rank by PID, None while it runs."""
        assert isinstance(self._pcontext, SubprocessContext)
        processes = [handler.proc for handler in self._pcontext.subprocess_handlers.values()]
        return {process.pid: process.poll() for process in processes}

    def _suspend_with(self, alive: Sequence[int]) -> None:
        self._suspend = False
        _send(alive, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        _send(alive, signal.SIGCONT)

    def _forward(self, alive: Sequence[int]) -> None:
        if self._suspend:
            self._suspend_with(alive)
        if self._save:
            self._save = False
            _send(alive, signal.SIGUSR2)
        if self._stop is not None:
            self._remaining_restarts = 0
            _send([pid for pid in alive if pid not in self._asked], self._stop)
            self._asked.update(alive)

    def _end_suspended(self, alive: Sequence[int]) -> None:
        """Kill ranks that have been suspended for too long; the others wait for them."""
        now = self._clock()
        suspended = {pid for pid in alive if _is_suspended(pid)}
        self._suspended = {pid: self._suspended.get(pid, now) for pid in suspended}
        for pid, since in self._suspended.items():
            if now - since >= STOPPED_S and pid not in self._killed:
                self._killed[pid] = now - since
                _send([pid], signal.SIGKILL)

    def _account(self, result: RunResult, first: set[int], *, at_once: bool) -> None:
        """Tell which rank ended the others: of those in `first`, which ended before torch ended the rest.

        Args:
            result: How the ranks ended.
            first: Their processes; those that end because of another one can be faster than it.
            at_once: Whether torch had no need to kill the rest.
        """
        host = socket.gethostname()
        lost = [
            lost_rank(
                rank,
                host,
                failure.pid,
                failure.exitcode,
                stopped_s=self._killed.get(failure.pid),
                log=self._folder / f"{rank}.log",
            )
            for rank, failure in result.failures.items()
        ]
        own = [rank for rank in lost if rank.pid in first and rank.code != RankError.exit_code]
        cause = cause_of(own or lost)
        if self._stop is not None or not self._may_restart(cause):
            self._remaining_restarts = 0
        if cause.code not in self._saved - SAVED:
            not_by_torch = {rank.pid for rank in lost} if at_once else first
            killed = [rank for rank in lost if rank.was_killed and rank.pid in not_by_torch]
            others = [rank for rank in killed if rank is not cause]
            self._on_loss(cause, others, self._remaining_restarts > 0)


def _send(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)  # its end has not been waited for, so that the PID is still its own


def _is_suspended(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


# A run in a group of processes (ranks), which torch's elastic launcher starts and restarts
# -----------------------------------------------------------------------------------------
# The ranks are processes of `mptui` with the environment of torchrun: RANK, LOCAL_RANK, WORLD_SIZE,
# MASTER_ADDR and so on. Each start resumes the run, so that a restart goes on from the last save.

T = TypeVar("T")

_LOCAL = "127.0.0.1"
_LOOK_S = 0.2


def train_in_group(
    group: Group,
    command: Sequence[str],
    run: Path,
    attach: Callable[[Agent], None],
    *,
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
    agent = Agent(
        spec,
        RankLogs(run / RANKS),
        meet,
        may_restart=guard.may_restart,
        on_loss=guard.lost,
        on_start=guard.starting,
    )
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
        self._run = run
        self._restarts = group.max_restarts
        self._started = 0
        self._is_first = group.nodes == 1
        self._since = time.time()
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
            hint=f"see {self._run / cause.log}; to go on from the last save: "
            f"mptui resume {shell_word(self._run)}",
        )
