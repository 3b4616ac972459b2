"""The first screen: the devices of this machine, their load, and recommended settings."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from textual import on, work
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from mptui import format as fmt
from mptui.runs.listing.run_rows import RunList
from mptui.text import clean
from mptui.tui.keys.bindings import bindings
from mptui.tui.screens.page import Page
from mptui.tui.setup.device_samplers import DeviceSamplers
from mptui.tui.setup.machine_scan import MachineScan, scan_machine
from mptui.tui.threads import in_background
from mptui.tui.widgets.keybar import KeyBar
from mptui.tui.widgets.runs.recent_runs import RecentRuns
from mptui.tui.widgets.setup.card import DeviceCard
from mptui.tui.widgets.small import TooSmall
from mptui.tui.widgets.topline import TopLine

if TYPE_CHECKING:
    from mptui.hardware.devices import Device

GAUGES_PER_SECOND = 2
WHOLE, BRIEF = 10, 4
"""Lines of a GPU's card: with all details, and of the others."""


class DetectionScreen(Page):
    """Shows the devices, first from NVML, then from torch when it is imported.

    Args:
        keymap: The user's keys.
        scan: Detects the devices, with or without torch; can take seconds.
        runs: The runs of which the newest are shown; None: no list.
    """

    where = "detection"
    BINDINGS = bindings("detection")
    CSS_PATH = "detection.tcss"

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
        self._scan, self._runs = scan, runs
        self._seen: MachineScan | None = None
        self._chosen = 0
        self._marked: set[str] = set()
        self._goes_on = False
        self._watch = DeviceSamplers()
        self._top, self._torch = TopLine(), Static(id="torch", markup=False)

    def compose(self) -> ComposeResult:
        """Lay out the frame; the cards follow after detection."""
        yield self._top
        yield VerticalScroll(id="cards", can_focus=False)
        yield self._torch
        yield RecentRuns(self._keymap, id="recent")
        yield KeyBar(self.where, self._keymap)
        yield TooSmall()

    def on_mount(self) -> None:
        """Detect the devices after the first frame."""
        self._gauges = self.set_interval(1 / GAUGES_PER_SECOND, self.show_gauges)
        self.call_after_refresh(self.action_look_again)
        self._show_runs()

    @work(exclusive=True, group="runs")
    async def _show_runs(self) -> None:
        """Show the newest runs once they are read."""
        if self._runs is not None:
            rows = await in_background(self._runs.rows)
            if self.is_running:
                self.query_one(RecentRuns).show(rows)
                self.call_after_refresh(self._redraw)

    def action_look_again(self) -> None:
        """Detect the devices: first without torch, which takes seconds to import."""
        self._top.say(Content.styled("detecting devices …", "$quiet"))
        self._look_at_all()

    @work(exclusive=True)
    async def _look_at_all(self) -> None:
        await self._take(await in_background(lambda: self._scan(False)))
        self._torch.update(Content.styled("importing torch …", "$quiet"))
        seen = await in_background(lambda: self._scan(True))
        await self._take(seen)
        self._torch.update(_torch_words(seen))

    async def _take(self, seen: MachineScan) -> None:
        """Show the devices; keep the chosen one if it still exists."""
        if not self.is_running:
            return  # the screen was closed
        from mptui.hardware.devices import default_reason

        before = self._seen.devices[self._chosen] if self._seen else None
        self._seen = seen
        self._chosen = _place_of(before, seen)
        self._marked &= {_identity(device) for device in seen.devices if device.usable}
        cards = self.query_one("#cards")
        async with cards.batch():
            await cards.remove_children()
            machine = seen.machine
            notes = filter(None, [*machine.notes, default_reason(seen.devices)])
            await cards.mount_all(
                [Static(clean(note), markup=False, classes="note") for note in notes]
                + [
                    DeviceCard(each, advice, machine)
                    for each, advice in zip(seen.devices, seen.advice, strict=True)
                ]
            )
        self._redraw()
        self._watch.follow(seen.devices)
        if self._goes_on:
            self._goes_on = False
            self.action_choose()

    def show_gauges(self) -> None:
        """Show the latest samples, without waiting for a driver."""
        for card in self.query(DeviceCard):
            card.show(*self._watch.latest(card.device))

    def action_step(self, by: int) -> None:
        """Choose the previous or next device."""
        if self._seen is not None:
            self._choose(min(max(self._chosen + by, 0), len(self._seen.devices) - 1))

    @on(DeviceCard.Pressed)
    def _pressed(self, event: DeviceCard.Pressed) -> None:
        self._choose(list(self.query(DeviceCard)).index(event.card))

    def _choose(self, index: int) -> None:
        self._chosen = index
        self._redraw()
        self.show_gauges()

    def _redraw(self) -> None:
        """Show which card is chosen and which are marked; many cards on a small screen are one line each."""
        if self._seen is None:
            return
        cards = list(self.query(DeviceCard))
        is_short = WHOLE + BRIEF * (len(cards) - 1) > self.query_one("#cards").size.height
        for number, card in enumerate(cards):
            is_chosen = number == self._chosen
            card.lay_out(
                chosen=is_chosen,
                marked=_identity(card.device) in self._marked,
                line=is_short and not is_chosen,
            )
            if is_chosen:
                self.call_after_refresh(card.scroll_visible, animate=False)
        self._top.say(self._about(self._seen))

    def _about(self, seen: MachineScan) -> Content:
        from mptui.hardware.describe import short_names

        if marked := self._marks(seen):
            return Content.assemble(("marked: ", "$quiet"), short_names(marked))
        return Content.styled(f"detected at {fmt.clock(seen.time, seconds=True)}", "$quiet")

    def _marks(self, seen: MachineScan) -> "list[Device]":
        return [device for device in seen.devices if _identity(device) in self._marked]

    def on_resize(self) -> None:
        """Fit the cards into the new height."""
        self.call_after_refresh(self._redraw)

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
            self._top.say(Content.styled("detecting devices, then the profiles …", "$quiet"))
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
        self._gauges.pause()
        self._watch.stop()

    def on_screen_resume(self) -> None:
        """Resume sampling."""
        self._gauges.resume()
        self._show_runs()
        if self._seen is not None:
            self._watch.follow(self._seen.devices)

    def on_unmount(self) -> None:
        """End the samplers."""
        self._watch.stop()


def _place_of(before: "Device | None", seen: MachineScan) -> int:
    """Return the position of the previously chosen device, else that of the default device."""
    from mptui.hardware.devices import default_device

    if before is not None:
        for index, device in enumerate(seen.devices):
            if device.usable and _identity(device) == _identity(before):
                return index
    return seen.devices.index(default_device(seen.devices))


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
