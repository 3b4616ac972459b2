"""A run that nobody will go on with: it is measured, and writes no checkpoint."""

from mptui.engine.checkpoint.async_saver import Saver
from mptui.engine.checkpoint.files import Snapshot
from mptui.runs.planning.build import PreparedRun
from mptui.runs.session.session import Session
from mptui.runs.store.directory import CHECKPOINTS


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

    def _check_space(self, prepared: PreparedRun) -> None:
        """There is nothing to make room for."""
