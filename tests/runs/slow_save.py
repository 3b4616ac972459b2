"""`mptui` with saves that never end once the run is asked to stop."""

from threading import Event

from mptui.cli.main import main
from mptui.engine.checkpoint.files import Snapshot
from mptui.engine.checkpoint.saver import Saver


def run() -> None:
    """Run `mptui`."""
    save = Saver.save

    def save_slowly(saver: Saver, snapshot: Snapshot, reason: str, *, wait: bool = False) -> None:
        if reason == "stop":
            Event().wait()
        save(saver, snapshot, reason, wait=wait)

    Saver.save = save_slowly  # type: ignore[method-assign, assignment]
    main()
