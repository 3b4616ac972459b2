"""The first screen: the devices of this machine, their load, and recommended settings."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from textual import on, work
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from mptui import format as fmt
from mptui.text import clean
from mptui.tui.keys.bindings import bindings
from mptui.tui.screens.page import Page
from mptui.tui.setup.device_samplers import DeviceSamplers
from mptui.tui.setup.machine_scan import MachineScan, scan_machine
from mptui.tui.threads import in_background
from mptui.tui.widgets.keybar import KeyBar
from mptui.tui.widgets.setup.card import DeviceCard
from mptui.tui.widgets.small import TooSmall
from mptui.tui.widgets.topline import TopLine

if TYPE_CHECKING:
    from mptui.hardware.devices import Device

GAUGES_PER_SECOND = 2


class DetectionScreen(Page):
    """Shows the devices, first from NVML, then from torch when it is imported.

    Args:
        keymap: The user's keys.
        scan: Detects the devices, with or without torch; can take seconds.
    """

    where = "detection"
    BINDINGS = bindings("detection")
    CSS_PATH = "detection.tcss"

    class Chosen(Message):
        """A device was chosen."""

        def __init__(self, seen: MachineScan, index: int) -> None:
            super().__init__()
            self.seen = seen
            self.device, self.advice = seen.devices[index], seen.advice[index]

    def __init__(
        self, *, keymap: Mapping[str, str] | None = None, scan: Callable[[bool], MachineScan] = scan_machine
    ) -> None:
        super().__init__()
        self._keymap = keymap or {}
        self._scan = scan
        self._seen: MachineScan | None = None
        self._chosen = 0
        self._goes_on = False
        self._watch = DeviceSamplers()
        self._top, self._torch = TopLine(), Static(id="torch", markup=False)

    def compose(self) -> ComposeResult:
        """Lay out the frame; the cards follow after detection."""
        yield self._top
        yield VerticalScroll(id="cards", can_focus=False)
        yield self._torch
        yield KeyBar(self.where, self._keymap)
        yield TooSmall()

    def on_mount(self) -> None:
        """Detect the devices after the first frame."""
        self._gauges = self.set_interval(1 / GAUGES_PER_SECOND, self.show_gauges)
        self.call_after_refresh(self.action_look_again)

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
        self._mark()
        self._watch.follow(seen.devices)
        looked = Content.styled(f"detected at {fmt.clock(seen.time, seconds=True)}", "$quiet")
        self._top.say(looked)
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
        self._mark()
        self.show_gauges()

    def _mark(self) -> None:
        for number, card in enumerate(self.query(DeviceCard)):
            card.set_class(number == self._chosen, "-chosen")
            card.redraw()
            if number == self._chosen:
                self.call_after_refresh(card.scroll_visible, animate=False)

    def action_choose(self) -> None:
        """Open the picker for the chosen device."""
        if self._seen is None:
            self._goes_on = True
            self._top.say(Content.styled("detecting devices, then the profiles …", "$quiet"))
            return
        device = self._seen.devices[self._chosen]
        if device.usable:
            self.post_message(self.Chosen(self._seen, self._chosen))
        else:
            self.notify(clean(device.notes[0]), title="device can't train", severity="warning", markup=False)

    def on_screen_suspend(self) -> None:
        """Stop sampling while another screen is shown."""
        self._gauges.pause()
        self._watch.stop()

    def on_screen_resume(self) -> None:
        """Resume sampling."""
        self._gauges.resume()
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
