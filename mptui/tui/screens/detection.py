"""The first screen: the devices of this machine, the data, what Enter would train, the newest runs."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.content import Content
from textual.events import Paste
from textual.message import Message
from textual.widgets import Input, OptionList, Static

from mptui import text as fmt
from mptui.config.profiles import list_profiles
from mptui.runs.listing.rows import RunList, RunRow
from mptui.text import clean
from mptui.tui.keys import bindings
from mptui.tui.last import load_last
from mptui.tui.look import (
    DeviceReading,
    DeviceSamplers,
    MachineScan,
    Outlook,
    devices_of_system,
    scan_machine,
)
from mptui.tui.screens.page import WIDTHS, Page, TooSmall
from mptui.tui.widgets.basics import KeyBar, KeyedList, TopLine
from mptui.tui.widgets.device_card import CardDevice, DeviceCard, DeviceRow, DeviceTable
from mptui.tui.widgets.first_steps import FirstSteps
from mptui.tui.widgets.next_steps import NextSteps
from mptui.tui.widgets.run_list import RecentRuns
from mptui.tui.work import in_background

if TYPE_CHECKING:
    from mptui.hardware.devices import Device
    from mptui.runs.listing.difference import RunCurves
    from mptui.runs.view.run_view import RunView
    from mptui.tui.widgets.run_preview import RunPreview

READINGS_PER_SECOND = 2
TYPING_PAUSE_S = 0.3
"""Seconds without a key after which the data is looked at."""

WHAT = (
    "trains image networks in mixed precision and shows each run live",
    "trains image networks, shows each run live",
)
"""What this program is, in a line, and in a short one."""

_WIDTHS = [*WIDTHS, (130, "-beside")]
"""With the width from which the newest runs are beside the chosen device."""
_CARD_HEIGHTS = (7, 3)
"""Least heights of the chosen device on a screen, and on a short one."""
_MOST_ALONE, _MOST_CARD, _MOST_RUNS, _LEAST_RUNS = 11, 16, 14, 5
"""Lines of the only device, of the chosen one of several, and of the newest runs."""
_LEAST_BELOW = 3
"""Lines of the data, of what Enter does and of the chosen device, where devices take all others."""
_LEAST_CURVES = 12
"""Lines below all that from which the curves of a run are shown in them."""
_AROUND = 3
"""Lines of the screen that are not of its body: the first one, that of torch, and the keys."""


class DataField(Input):
    """The text field for the data of the first screen."""

    BINDINGS = bindings("place")

    async def action_choose(self) -> None:
        """Go on with the text."""
        await self.run_action("screen.choose")

    async def action_next(self, by: int) -> None:
        """Leave the field for the next part of the screen."""
        await self.run_action(f"screen.next({by})")


class DetectionScreen(Page):
    """Shows the devices, first from NVML, then from torch when it is imported.

    Several are a table, with the chosen one opened below it; a single one has gauges instead. The layout is
    that of the size of the terminal and of the number of devices alone. A large one has the curves of a run,
    or what a newcomer asks, where there is none.

    Args:
        keymap: The user's keys.
        scan: Detects the devices, with or without torch; can take seconds.
        runs: The runs of which the newest are shown; None: there are none.
        environ: Environment, for settings, profiles and the state folder.
        ascii_only: Draw in ASCII.
    """

    where = "detection"
    BINDINGS = bindings("detection")
    HORIZONTAL_BREAKPOINTS = _WIDTHS
    AUTO_FOCUS = ""

    class Chosen(Message):
        """A device, or several for one run, were chosen; the advice is for the tightest.

        Args:
            seen: The machine.
            devices: The devices.
            data: What was typed as the data; "": nothing.
            demo: Whether to train on the built-in images at once.
        """

        def __init__(
            self, seen: MachineScan, devices: "Sequence[Device]", data: str, *, demo: bool = False
        ) -> None:
            super().__init__()
            self.devices = devices
            self.advice = seen.advice_for(devices)
            self.data = data
            self.demo = demo

    class RunChosen(Message):
        """One of the newest runs was chosen."""

        def __init__(self, run: Path) -> None:
            super().__init__()
            self.run = run

    def __init__(
        self,
        *,
        keymap: Mapping[str, str] | None = None,
        scan: Callable[[bool], MachineScan] = scan_machine,
        runs: RunList | None = None,
        environ: Mapping[str, str] = os.environ,
        ascii_only: bool = False,
    ) -> None:
        super().__init__()
        self._ascii_only = ascii_only
        self._keymap = keymap or {}
        self._scan = scan
        self._runs = runs
        self._environ = environ
        self._rows: Sequence[RunRow] | None = None
        self._seen: MachineScan | None = None
        self._chosen = 0
        self._marked: set[str] = set()
        self._goes_on = False
        self._watch = DeviceSamplers()
        self._top = TopLine(about=WHAT)
        self._torch = Static(id="torch", markup=False)
        self._notes = Static(id="notes", markup=False)
        self._noted = Content("")
        self._table = DeviceTable(devices_of_system())
        self._table.display = self._table.expected > 1
        self._card = DeviceCard()
        self._data = DataField(
            placeholder="(paste or drop a folder; else built-in shapes)",
            compact=True,
            id="data",
        )
        self._data.border_title = "data"
        self._next = NextSteps(self._keymap, id="next")
        self._recent = RecentRuns(self._keymap, id="recent")
        self._below = Container(id="below")
        self._preview: RunPreview | None = None
        self._curves: RunCurves | None = None

    def compose(self) -> ComposeResult:
        """Lay out the frame; the devices follow after detection."""
        yield self._top
        with Vertical(id="body"):
            yield self._notes
            yield self._table
            with self._below:
                with Vertical(id="left"):
                    yield self._card
                    with Horizontal(id="line"):
                        yield Static("data", id="label", markup=False)
                        yield self._data
                    yield self._next
                yield self._recent
        yield self._torch
        yield KeyBar(self.where, self._keymap)
        yield TooSmall()

    def on_mount(self) -> None:
        """Detect the devices after the first frame."""
        self._data.value = load_last(self._environ)["data"]
        self._share_height()
        self._polls = self.set_interval(1 / READINGS_PER_SECOND, self.show_readings)
        self.call_after_refresh(self.action_look_again)
        self._show_runs()

    @work(exclusive=True, group="runs")
    async def _show_runs(self) -> None:
        """Show the newest runs once they are read."""
        self._rows = [] if self._runs is None else await in_background(self._runs.rows)
        if self.is_running:
            self._recent.show_newest(self._rows)
            self._show_first_steps()
            self._look_ahead()
            self._show_curves()

    @work(exclusive=True, group="first steps")
    async def _show_first_steps(self) -> None:
        """Tell a newcomer more below all else, where there is room; with the first run that goes."""
        shown = self.query(FirstSteps)
        if not self._recent.is_empty:
            shown.remove()
        elif not shown and self.has_class("-roomy"):
            profiles = await in_background(lambda: list_profiles(self._environ))
            if self.is_running:
                pairs = [(each.name, each.description) for each in profiles]
                await self.query_one("#body").mount(FirstSteps(pairs, self._keymap))

    @on(OptionList.OptionHighlighted)
    @work(exclusive=True, group="curves")
    async def _show_curves(self) -> None:
        """Draw the run under the cursor below all else, where there is room."""
        row = self._recent.chosen
        if row is None or not self.has_class("-roomy"):
            return

        def read() -> "RunView | None":
            from mptui.runs.listing.difference import RunCurves  # needs NumPy, and the first frame does not

            self._curves = self._curves or RunCurves()
            return self._curves.read([row.path]).get(row.path)

        view = await in_background(read)
        if view is None or not self.is_running:
            return
        if self._preview is None:
            from mptui.tui.widgets.run_preview import RunPreview

            self._preview = RunPreview(ascii_only=self._ascii_only)
            await self.query_one("#body").mount(self._preview)
        self._preview.show(row, view)

    @work(exclusive=True, group="outlook")
    async def _look_ahead(self, pause_s: float = 0.0) -> None:
        """Tell what Enter would train."""
        await asyncio.sleep(pause_s)
        seen, environ, rows = self._seen, self._environ, self._rows or ()
        if seen is None:
            return
        devices = self._meant(seen)
        last = load_last(environ) | {"data": self._data.value.strip()}

        def look() -> Outlook:
            from mptui.tui.outlook import outlook_of_start  # needs pydantic

            return outlook_of_start(seen.advice_for(devices).profile, devices, rows, last, environ)

        if (why := self._why_not(devices)) is not None:
            self._next.show(Outlook(fault=why))
            return
        found = await in_background(look)
        if self.is_running:
            self._next.show(found)

    def action_look_again(self) -> None:
        """Detect the devices: first without torch, which takes seconds to import."""
        self._torch.update(Content.styled("detecting devices …", "$quiet"))
        self._look_at_all()

    @work(exclusive=True)
    async def _look_at_all(self) -> None:
        self._take(await in_background(lambda: self._scan(False)))
        self._torch.update(Content.styled(f"importing torch …   {self._when()}", "$quiet"))
        seen = await in_background(lambda: self._scan(True))
        self._take(seen)
        self._torch.update(Content("   ").join([*_torch_words(seen), Content.styled(self._when(), "$quiet")]))

    def _when(self) -> str:
        return "" if self._seen is None else f"detected at {fmt.clock(self._seen.time, seconds=True)}"

    def _take(self, seen: MachineScan) -> None:
        """Show the devices; keep the chosen one if it still exists."""
        if not self.is_running:
            return  # the screen was closed
        before = self._seen.devices[self._chosen] if self._seen else None
        self._seen = seen
        self._chosen = _place_of(before, seen)
        self._marked &= {_identity(device) for device in seen.devices if device.usable}
        self._noted = Content("\n").join(Content(clean(note)) for note in seen.machine.notes)
        self._notes.update(self._noted)
        if self._data.suggester is None:
            from mptui.tui.selection import DataSuggester  # needs pydantic, as the scan does

            self._data.suggester = DataSuggester()
        self._offer()
        if self.is_active:  # else on_screen_resume does
            self._watch.follow(seen.devices)
        self._redraw()
        if self._goes_on:
            self._goes_on = False
            if self.is_active:  # else the person has gone elsewhere
                self.action_choose()

    def show_readings(self) -> None:
        """Show the latest samples, without waiting for a driver; the recommended device follows them."""
        if self._seen is None:
            return
        from mptui.hardware.devices import default_reason

        readings = [self._watch.latest(device) for device in self._seen.devices]
        default, now = _default_now(self._seen.devices, readings)
        pairs = zip(self._seen.devices, readings, strict=True)
        rows = [self._row(*pair, recommended=at == default) for at, pair in enumerate(pairs)]
        self._table.show(rows, self._chosen)
        self._card.show(readings[self._chosen], default_reason(now) if self._chosen == default else None)

    def _row(self, device: "Device", reading: DeviceReading, *, recommended: bool) -> DeviceRow:
        return DeviceRow(
            label=device.torch_name.removeprefix("cuda:"),
            name=device.name,
            sample=reading.sample,
            problem=reading.problem if device.kind != "cpu" else None,
            words="" if device.usable else "can't train",
            busy=reading.busy,
            is_gpu=device.kind != "cpu",
            recommended=recommended,
            marked=_identity(device) in self._marked,
        )

    def action_step(self, by: int) -> None:
        """Choose the previous or next device."""
        if self._seen is not None:
            self._choose(self._seen, self._chosen + by)

    @on(DeviceTable.Pressed)
    def _pressed(self, event: DeviceTable.Pressed) -> None:
        if self._seen is not None:
            self._choose(self._seen, event.number)  # of a device that may be gone
            if event.twice:
                self.action_choose()

    def _choose(self, seen: MachineScan, index: int) -> None:
        self._chosen = min(max(index, 0), len(seen.devices) - 1)
        self._redraw()

    def _redraw(self) -> None:
        """Show which device is chosen and which are marked."""
        seen = self._seen
        if seen is None:
            return
        device = seen.devices[self._chosen]
        alone = len(seen.devices) == 1
        self._table.display = not alone
        self._card.open(
            CardDevice(device, seen.advice[self._chosen], seen.machine),
            marked=_identity(device) in self._marked,
            alone=alone,
        )
        self.show_readings()
        self._say()
        self._share_height()
        self._look_ahead()

    def _share_height(self) -> None:
        """Give lines to the devices first, then to the data and what Enter does, the chosen one, the runs.

        Where all have no room, these give way in turn: what is noted of the machine, lesser lines of the
        chosen device, the newest runs, the sums, frame and title of the chosen device.
        """
        devices = len(self._seen.devices) if self._seen else self._table.expected
        short, beside = self.has_class("-short"), self.has_class("-beside")
        brief = short or (devices > 1 and not self.has_class("-high"))
        self.set_class(brief, "-brief")
        whole = self.app.size.height - _AROUND - (not brief)
        rows = 1 + devices if devices > 1 else 0
        if rows > whole - _LEAST_BELOW:
            rows = whole // 2  # they scroll
        room = whole - rows
        steps = 3 if not brief else 2 if room > 2 + _CARD_HEIGHTS[1] else 1
        own = steps + (1 if brief else 3)
        left = room - own
        noted = len(self._noted.wrap(max(1, self.app.size.width - 4))) if self._noted else 0
        wanted = _CARD_HEIGHTS[short] + _LEAST_RUNS + (devices > 2)  # with the sums of several GPUs
        is_noted = noted > 0 and (left - noted >= (wanted if left >= wanted else _CARD_HEIGHTS[1]))
        left -= noted if is_noted else 0
        self._notes.display = is_noted
        if self._table.display:
            heights = _CARD_HEIGHTS if beside else (_CARD_HEIGHTS[short] + _LEAST_RUNS, *_CARD_HEIGHTS)
            least = next((each for each in heights if each <= left), 1)
            left += rows - self._table.fit(left + rows - least)
        least = _CARD_HEIGHTS[short]
        has_runs = not beside and left >= least + _LEAST_RUNS
        runs = max(_LEAST_RUNS, min(left // 2, left - least)) if has_runs else 0
        card = max(1, min(left - runs, _MOST_CARD if devices > 1 else _MOST_ALONE))
        runs = min(left - card, _MOST_RUNS) if has_runs else 0
        self._card.set_class(card < _CARD_HEIGHTS[0], "-bare")
        self._card.styles.height = card
        self._next.styles.height = steps
        self._recent.display = beside or has_runs
        self._recent.styles.height = card + own if beside else runs
        is_roomy = beside and left - card >= _LEAST_CURVES
        self.set_class(is_roomy, "-roomy")
        self._below.styles.height = card + own if is_roomy else "1fr"

    def _say(self) -> None:
        """Tell which devices are marked."""
        from mptui.hardware.describe import short_names

        if self._seen is not None and (marked := self._marks(self._seen)):
            self._top.show_message(Content.assemble(("marked: ", "$quiet"), short_names(marked)))
        else:
            self._top.show_message(Content(""))

    def _marks(self, seen: MachineScan) -> "list[Device]":
        return [device for device in seen.devices if _identity(device) in self._marked]

    def _meant(self, seen: MachineScan) -> "Sequence[Device]":
        """Return the marked devices, else the chosen one."""
        return self._marks(seen) or [seen.devices[self._chosen]]

    def _why_not(self, devices: "Sequence[Device]") -> str | None:
        """Return why devices can't train; None if they can."""
        return next((clean(device.notes[0]) for device in devices if not device.usable), None)

    def on_resize(self) -> None:
        """Fit all into the new size."""
        self._share_height()
        self.call_after_refresh(self._show_curves)
        if self._rows is not None:
            self.call_after_refresh(self._show_first_steps)

    def action_mark(self) -> None:
        """Mark the chosen device, or unmark it: a run goes to all marked ones."""
        from mptui.hardware.devices import why_alone

        if self._seen is None:
            return
        device = self._seen.devices[self._chosen]
        if (reason := why_alone(device)) is not None:
            self.notify(clean(reason), title="can't be marked", severity="warning", markup=False)
            return
        self._marked ^= {_identity(device)}
        self._redraw()

    def action_choose(self) -> None:
        """Open the picker for the marked devices, else for the chosen one."""
        self._go(demo=False)

    def action_demo(self) -> None:
        """Train on the built-in images, at once."""
        self._go(demo=True)

    def _go(self, *, demo: bool) -> None:
        if self._seen is None:
            self._goes_on = not demo
            self._top.show_message(Content.styled("detecting devices, then the settings …", "$quiet"))
            return
        devices = self._meant(self._seen)
        if (why := self._why_not(devices)) is not None:
            self.notify(why, title="device can't train", severity="warning", markup=False)
            return
        self.post_message(self.Chosen(self._seen, devices, self._data.value.strip(), demo=demo))

    # -- data and newest runs

    def action_next(self, by: int) -> None:
        """Go from the devices to the data, the newest runs, and back to the devices."""
        lines = self._recent.query_one(OptionList)
        stops = [None, self._data, *([] if self._recent.is_empty or not self._recent.display else [lines])]
        now = stops.index(self.focused) if self.focused in stops else 0
        self.set_focus(stops[(now + by) % len(stops)])

    def on_descendant_focus(self) -> None:
        """Show the keys of what has the focus."""
        self._offer()

    def on_descendant_blur(self) -> None:
        """Show the keys of the devices again."""
        self._offer()

    def _offer(self) -> None:
        several = ("several",) if self._seen is not None and len(self._seen.devices) > 1 else ()
        when = (
            ("typing",)
            if self.focused is self._data
            else ("listed",)
            if self.focused
            else ("always", *several)
        )
        self.query_one(KeyBar).offer(*when)

    @on(Input.Changed, "#data")
    def _typed(self) -> None:
        self._look_ahead(TYPING_PAUSE_S)

    def on_paste(self, event: Paste) -> None:
        """Take a folder that is pasted, or dropped on the terminal, as the data."""
        if event.text.strip():
            self._data.value = event.text.strip().splitlines()[0]
            self._data.focus()

    @on(KeyedList.Opened)
    def action_open_run(self) -> None:
        """Open the run under the cursor."""
        if (row := self._recent.chosen) is not None:
            self.post_message(self.RunChosen(row.path))

    def back(self) -> None:
        """Go back to the devices."""
        if self.focused is not None:
            self.set_focus(None)
        else:
            super().back()

    def on_screen_suspend(self) -> None:
        """Stop sampling while another screen is shown."""
        self._polls.pause()
        self._watch.stop()

    def on_screen_resume(self) -> None:
        """Resume sampling; take up what was typed in the picker."""
        self._polls.resume()
        self._data.value = load_last(self._environ)["data"] or self._data.value
        self._show_runs()
        if self._seen is not None:
            self._watch.follow(self._seen.devices)

    def on_unmount(self) -> None:
        """End the samplers."""
        self._watch.stop()


def _place_of(before: "Device | None", seen: MachineScan) -> int:
    """Return the position of the previously chosen device, else of the default one, else of the first."""
    from mptui.hardware.devices import default_device

    if before is not None:
        for index, device in enumerate(seen.devices):
            if device.usable and _identity(device) == _identity(before):
                return index
    default = default_device(seen.devices)
    return 0 if default is None else seen.devices.index(default)


def _default_now(
    devices: "Sequence[Device]", readings: Sequence[DeviceReading]
) -> tuple[int | None, "list[Device]"]:
    """Return the position of the default device, None if there is none, and the devices with their loads."""
    from mptui.hardware.devices import as_sampled, default_device

    pairs = zip(devices, readings, strict=True)
    now = [as_sampled(device, reading.settled, reading.problem) for device, reading in pairs]
    default = default_device(now)
    return None if default is None else now.index(default), now


def _identity(device: "Device") -> str:
    return (device.uuid or device.torch_name).removeprefix("GPU-")


def _torch_words(seen: MachineScan) -> list[Content]:
    """Describe torch and whether it sees the devices; nothing if it was not asked."""
    from mptui.hardware.describe import torch_line

    line = torch_line(seen.machine)
    if line is None:
        return []
    unusable = [device for device in seen.devices if not device.usable]
    sign = ("✗ ", "$text-warning") if unusable else ("✓ ", "$text-success")
    return [Content.assemble(sign, (clean(line), "$quiet"))]
