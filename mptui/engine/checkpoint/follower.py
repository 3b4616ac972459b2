"""The saver of a rank that is not the first: rank 0 alone writes checkpoints."""

from mptui.engine.checkpoint.async_saver import Saver
from mptui.engine.checkpoint.files import Snapshot


class Follower(Saver):
    """Writes nothing, and knows which step rank 0 has saved."""

    def went_back(self, step: int) -> None:
        """See `Saver.went_back`."""
        self._last_step = step

    def _begin(self, snapshot: Snapshot, reason: str, number: int) -> None:
        self._last_step = snapshot.step
