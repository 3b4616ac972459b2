"""The launcher of the ranks on one node: torch's elastic agent, which tells how ranks end.

Source: torch.distributed.elastic.agent.server, whose LocalElasticAgent is made to be extended. It starts the
ranks, restarts all of them when one fails, and meets the agents of other nodes at the rendezvous.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import psutil
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import (
    LogsDest,
    LogsSpecs,
    SignalException,
    SubprocessContext,
)

from mptui.errors import RankError
from mptui.processes.awake_clock import AwakeClock
from mptui.runs.launch.losses import SAVED, LostRank, cause_of, lost_rank

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
        may_restart: Callable[[LostRank], bool],
        on_loss: Callable[[LostRank, Sequence[LostRank], bool], None],
        on_start: Callable[[int], None],
    ) -> None:
        super().__init__(spec, logs)
        self._meet = meet
        self._folder, self._may_restart = Path(logs.root_log_dir), may_restart
        self._on_loss, self._on_start = on_loss, on_start
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

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        at_once = isinstance(sys.exc_info()[1], KeyboardInterrupt)  # the second SIGINT
        super()._shutdown(signal.SIGKILL if at_once else death_sig, timeout)

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
                self._killed.get(failure.pid),
                self._folder / f"{rank}.log",
            )
            for rank, failure in result.failures.items()
        ]
        own = [rank for rank in lost if rank.pid in first and rank.code != RankError.exit_code]
        cause = cause_of(own or lost)
        if self._stop is not None or not self._may_restart(cause):
            self._remaining_restarts = 0
        if cause.code not in self._saved - SAVED:
            killed = [rank for rank in lost if rank.was_killed and (at_once or rank.pid in first)]
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
