"""A run that nobody will go on with: it is measured, and writes no checkpoint."""

from mptui.engine.checkpoint import Snapshot
from mptui.engine.saver import Saver
from mptui.runs.directory import CHECKPOINTS
from mptui.runs.prepare import Prepared
from mptui.runs.session import Session


class _Nowhere(Saver):
    """Takes what is to be saved, and lets it go."""

    def may_save(self) -> bool:
        return False

    def offer_best(self, snapshot: Snapshot) -> None:
        """Nothing is kept of it: a large network's would be gigabytes."""

    def save(self, snapshot: Snapshot, reason: str, *, wait: bool = False) -> None:
        """Nothing is written."""


class UnsavedSession(Session):
    """A session whose checkpoints take neither time nor room on the disk."""

    measures_costs = False

    def _saver(self) -> Saver:
        return _Nowhere(self.run / CHECKPOINTS, self.plan.config.checkpoint, self._emit)

    def _check_space(self, prepared: Prepared) -> None:
        """There is nothing to make room for."""
