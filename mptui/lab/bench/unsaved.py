"""A session without checkpoints, for measured runs."""

from pathlib import Path

from mptui.engine.checkpoint.async_saver import Saver
from mptui.engine.checkpoint.files import Snapshot
from mptui.runs.planning.build import PreparedRun
from mptui.runs.session.session import Session
from mptui.runs.store.directory import CHECKPOINTS


class NoCheckpoints(Saver):
    """A saver that discards everything."""

    def may_save(self) -> bool:
        """Return False."""
        return False

    def offer_best(self, snapshot: Snapshot) -> None:
        """Discard the snapshot."""

    def save(self, snapshot: Snapshot, reason: str, *, wait: bool = False) -> None:
        """Write nothing."""


class UnsavedSession(Session):
    """A session that saves no checkpoints."""

    measures_costs = False

    def _saver(self, run: Path) -> Saver:
        return NoCheckpoints(run / CHECKPOINTS, lambda: self.plan.config.checkpoint, self._emit)

    def _check_space(self, prepared: PreparedRun) -> None:
        """Require no space."""
