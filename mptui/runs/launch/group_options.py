"""The processes that a run is started in; without torch, for the command line."""

from dataclasses import dataclass

from mptui.processes.rank_place import RankPlace

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
