"""Base class of the picker: the selection of a run, and what is known of its memory and its data."""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from textual import work
from textual.css.query import NoMatches

from mptui.config.merge import Resolved
from mptui.config.profiles import list_profiles
from mptui.errors import MptuiError
from mptui.hardware.devices import Device, tightest
from mptui.hardware.torch_view import import_failure
from mptui.runs.planning.ranks import check_batch
from mptui.tui.screens.page import Page
from mptui.tui.setup.data_info import about_data
from mptui.tui.setup.data_preview import DataPreview, asked_of, preview
from mptui.tui.setup.last_selection import load_last
from mptui.tui.setup.memory_fit import Fit, fits
from mptui.tui.setup.selection import Picked, Picks, every_profile, resolved
from mptui.tui.threads import in_background

TYPING_PAUSE_S = 0.3
"""Seconds without a key after which slow work starts."""


class SelectionPage(Page):
    """Resolves a selection, and learns in the background what a run of it would meet.

    Args:
        devices: The device to train on, or several of one kind for a run in several processes.
        profile: The profile to begin with, if none was selected before.
        environ: Environment, for settings, profiles and the state folder.
    """

    def __init__(self, devices: Sequence[Device], profile: str, environ: Mapping[str, str]) -> None:
        super().__init__()
        self._devices, self._device = devices, tightest(devices)
        self._environ = environ
        self._profiles = list_profiles(environ)
        last = load_last(environ)
        names = [info.name for info in self._profiles]
        first = next(name for name in (last["profile"], profile, *names) if name in names)
        own = last["epochs"] if first == last["profile"] else ""
        where = devices[0].torch_name
        where = where if len(devices) == 1 else where.partition(":")[0]
        self._picks = Picks(Picked(first, where, last["model"], last["data"], own))
        self._resolved: Resolved | None = None
        self._fault = self._data_fault = ""
        self._data_task: str | None = None
        self._about_data = ""
        self._fits: dict[str, Fit | str] = {}
        self._counting: object = None
        self._counted = False
        self._every_of: object = None
        self._every: tuple[dict[str, Resolved], dict[str, str]] = {}, {}
        self._asked: dict[str, Any] | None = None
        self._preview: DataPreview | None = None

    @property
    def picked(self) -> Picked:
        """The current selection."""
        return self._picks.now

    @abstractmethod
    def show_selection(self) -> None:
        """Resolve the selection again, and show it."""

    @abstractmethod
    def show_learnt(self) -> None:
        """Show what is known now of memory and data."""

    def resolve(self) -> None:
        """Resolve the selection, and learn of it what can have changed."""
        try:
            self._resolved, self._fault = resolved(self.picked, self._data_task, self._environ), ""
            check_batch(len(self._devices), self._resolved.config.training)
        except MptuiError as error:
            self._resolved, self._fault = None, error.message
        self.learn()

    def learn(self) -> None:
        """Start the slow work whose outcome can have changed."""
        if self._resolved is not None and (asked := asked_of(self._resolved)) != self._asked:
            self._asked, self._preview = asked, None
            self._look_into_data(self._resolved, asked)
        classes = None if self._preview is None else self._preview.classes or None
        counting = self._selections(), classes
        if counting != self._counting:
            self._fits, self._counting, self._counted = {}, counting, False
            self._count(counting, classes)

    def every_profile(self) -> tuple[dict[str, Resolved], dict[str, str]]:
        """Resolve each profile, once for each selection: the valid ones, and the faults of the others."""
        if (selections := self._selections()) != self._every_of:
            self._every_of = selections
            self._every = every_profile(self._profiles, self._picks, self._data_task, self._environ)
        return self._every

    def _selections(self) -> tuple[list[Picked], str | None]:
        return [self._picks.of(info.name) for info in self._profiles], self._data_task

    def faults(self) -> dict[str, str]:
        """Return known reasons that the run can't start, by field, or "" for none of them."""
        faults = {"data": self._data_fault, "": self._fault}
        fit = self._fits.get(self.picked.profile)
        if isinstance(fit, str):
            faults["model" if fit.startswith("model.name") else ""] = fit
        return {field: fault for field, fault in faults.items() if fault}

    def rest(self) -> None:
        """End the slow work until the person is back, as a run needs the processor."""
        self._asked = self._counting = None

    def on_screen_resume(self) -> None:
        """Learn what a run's start has left unknown."""
        self.learn()

    def on_unmount(self) -> None:
        """End the slow work."""
        self.rest()

    @work(exclusive=True, group="memory")
    async def _count(self, counting: object, classes: int | None) -> None:
        """Estimate the memory of each profile, for data with this many classes (None: not known)."""
        await asyncio.sleep(TYPING_PAUSE_S)
        runs, _ = self.every_profile()
        device, ranks = self._device, len(self._devices)
        counted = await in_background(
            lambda: (
                {}  # the run reports a failure
                if import_failure()
                else fits(runs, device, ranks, classes, lambda: counting == self._counting)
            )
        )
        if counting == self._counting:
            self._fits, self._counted = counted, True
            with suppress(NoMatches):  # the screen was closed
                self.show_learnt()

    @work(exclusive=True, group="preview")
    async def _look_into_data(self, resolution: Resolved, asked: dict[str, Any]) -> None:
        """List the data, and read some of its pictures."""
        await asyncio.sleep(TYPING_PAUSE_S)
        device = self._device
        found = await in_background(lambda: preview(resolution, device, lambda: asked != self._asked))
        if asked == self._asked:
            self._preview = found
            self.learn()  # of the memory with its classes
            with suppress(NoMatches):  # the screen was closed
                self.show_learnt()

    @work(exclusive=True, group="data")
    async def look_at_data(self) -> None:
        """Learn the task of the data, after typing has paused."""
        await asyncio.sleep(TYPING_PAUSE_S)
        where = self.picked.data
        task: str | None
        fault = ""
        try:
            task, about = await in_background(lambda: about_data(where))
        except MptuiError as error:
            task, fault = None, error.message
            about = f"✗ {fault}"
        if where != self.picked.data:
            return
        self._data_task, self._about_data, self._data_fault = task, about, fault
        with suppress(NoMatches):  # the screen was closed
            self.show_selection()
