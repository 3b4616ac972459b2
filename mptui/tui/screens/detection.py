"""The first screen: the devices of this machine, their load, and recommended settings."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from mptui import text as fmt
from mptui.runs.listing.rows import RunList
from mptui.text import clean
from mptui.tui.keys import bindings
from mptui.tui.look import DeviceReading, DeviceSamplers, MachineScan, scan_machine
from mptui.tui.screens.page import WIDTHS, Page, TooSmall
from mptui.tui.widgets.basics import KeyBar, TopLine
from mptui.tui.widgets.device_card import CardDevice, DeviceCard, DeviceRow, DeviceTable
from mptui.tui.widgets.run_list import RecentRuns
from mptui.tui.work import in_background

if TYPE_CHECKING:
    from mptui.hardware.devices import Device

READINGS_PER_SECOND = 2
RUNS_HEIGHTS = (12, 5)
"""Heights of the newest runs below the devices, of which the first that fits is taken."""

_WIDTHS = [*WIDTHS, (130, "-beside")]
"""With the width from which the newest runs are beside the chosen device."""
_CARD_HEIGHTS = (7, 3)
"""Least heights of the chosen device on a screen, and on a short one."""


class DetectionScreen(Page):
    """Shows the devices, first from NVML, then from torch when it is imported.

    Several are a table, with the chosen one opened below it; a single one has gauges instead.

    Args:
        keymap: The user's keys.
        scan: Detects the devices, with or without torch; can take seconds.
        runs: The runs of which the newest are shown; None: no list.
    """

    where = "detection"
    BINDINGS = bindings("detection")
    CSS_PATH = "detection.tcss"
    HORIZONTAL_BREAKPOINTS = _WIDTHS

    class Chosen(Message):
        """A device, or several for one run, were chosen; the advice is for the tightest."""

        def __init__(self, seen: MachineScan, devices: "Sequence[Device]") -> None:
            from mptui.hardware.devices import tightest

            super().__init__()
            self.devices = devices
            self.advice = seen.advice[seen.devices.index(tightest(devices))]

    def __init__(
        self,
        *,
        keymap: Mapping[str, str] | None = None,
        scan: Callable[[bool], MachineScan] = scan_machine,
        runs: RunList | None = None,
    ) -> None:
        super().__init__()
        self._keymap = keymap or {}
        self._scan = scan
        self._runs = runs
        self._seen: MachineScan | None = None
        self._chosen = 0
        self._marked: set[str] = set()
        self._goes_on = False
        self._watch = DeviceSamplers()
        self._top = TopLine()
        self._torch = Static(id="torch", markup=False)
        self._notes = Static(id="notes", markup=False)
        self._noted = Content("")
        self._table = DeviceTable()
        self._card = DeviceCard()
        self._recent = RecentRuns(self._keymap, id="recent")

    def compose(self) -> ComposeResult:
        """Lay out the frame; the devices follow after detection."""
        yield self._top
        with Vertical(id="body"):
            yield self._notes
            yield self._table
            with Container(id="below"):
                yield self._card
                yield self._recent
        yield self._torch
        yield KeyBar(self.where, self._keymap)
        yield TooSmall()

    def on_mount(self) -> None:
        """Detect the devices after the first frame."""
        self._polls = self.set_interval(1 / READINGS_PER_SECOND, self.show_readings)
        self.call_after_refresh(self.action_look_again)
        self._show_runs()

    @work(exclusive=True, group="runs")
    async def _show_runs(self) -> None:
        """Show the newest runs once they are read."""
        if self._runs is not None:
            rows = await in_background(self._runs.rows)
            if self.is_running:
                self._recent.show(rows)
                self._fit()

    def action_look_again(self) -> None:
        """Detect the devices: first without torch, which takes seconds to import."""
        self._top.show_message(Content.styled("detecting devices …", "$quiet"))
        self._look_at_all()

    @work(exclusive=True)
    async def _look_at_all(self) -> None:
        self._take(await in_background(lambda: self._scan(False)))
        self._torch.update(Content.styled("importing torch …", "$quiet"))
        seen = await in_background(lambda: self._scan(True))
        self._take(seen)
        self._torch.update(_torch_words(seen))

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
        several = ("several",) if len(seen.devices) > 1 else ()
        self.query_one(KeyBar).offer("always", *several)
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
        self._top.show_message(self._about(seen))
        self._fit()

    def _fit(self) -> None:
        """Share the height now, and once sizes that have changed are known."""
        self._share_height()
        self.call_after_refresh(self._share_height)

    def _share_height(self) -> None:
        """Give lines to the devices first, then to the chosen one, then to the newest runs.

        Where all have no room, these give way in turn: histories and lesser lines of the chosen device, the
        sums, on a short screen what is noted of the machine, frame and title of the chosen device.
        """
        room = self.query_one("#body").content_size
        notes = len(self._noted.wrap(max(1, room.width - 2))) if self._noted else 0
        needed = 1 + len(self._seen.devices if self._seen else ()) + _CARD_HEIGHTS[1]
        self._notes.display = notes > 0 and (not self.has_class("-short") or needed + notes <= room.height)
        left = room.height - (notes if self._notes.display else 0)
        if self._table.display:
            left -= self._table.fit(left - _CARD_HEIGHTS[self.has_class("-short")])
        self._card.set_class(left < _CARD_HEIGHTS[0], "-bare")
        beside = self.has_class("-beside")
        spare = left - self._card.needed(room.width)
        height = next((each for each in RUNS_HEIGHTS if each <= spare), 0)
        self._recent.display = not self._recent.is_empty and (beside or height > 0)
        self._recent.styles.height = "1fr" if beside else height

    def _about(self, seen: MachineScan) -> Content:
        from mptui.hardware.describe import short_names

        if marked := self._marks(seen):
            return Content.assemble(("marked: ", "$quiet"), short_names(marked))
        return Content.styled(f"detected at {fmt.clock(seen.time, seconds=True)}", "$quiet")

    def _marks(self, seen: MachineScan) -> "list[Device]":
        return [device for device in seen.devices if _identity(device) in self._marked]

    def on_resize(self) -> None:
        """Fit the cards into the new height."""
        self._fit()

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
        if self._seen is None:
            self._goes_on = True
            self._top.show_message(Content.styled("detecting devices, then the profiles …", "$quiet"))
            return
        device = self._seen.devices[self._chosen]
        if marked := self._marks(self._seen):
            self.post_message(self.Chosen(self._seen, marked))
        elif device.usable:
            self.post_message(self.Chosen(self._seen, [device]))
        else:
            self.notify(clean(device.notes[0]), title="device can't train", severity="warning", markup=False)

    def on_screen_suspend(self) -> None:
        """Stop sampling while another screen is shown."""
        self._polls.pause()
        self._watch.stop()

    def on_screen_resume(self) -> None:
        """Resume sampling."""
        self._polls.resume()
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


def _torch_words(seen: MachineScan) -> Content:
    """Describe torch and whether it sees the devices."""
    from mptui.hardware.describe import torch_line

    line = torch_line(seen.machine)
    if line is None:
        return Content("")
    unusable = [device for device in seen.devices if not device.usable]
    sign = ("✗ ", "$text-warning") if unusable else ("✓ ", "$text-success")
    return Content.assemble(sign, (clean(line), "$quiet"))
