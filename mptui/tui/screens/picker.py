"""The second screen: the profile with its settings, the model, the data and the epochs."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.css.query import NoMatches
from textual.message import Message
from textual.widgets import Input, OptionList, Static

from mptui import format as fmt
from mptui.config.given import read_value
from mptui.config.keys import SETTINGS
from mptui.config.merge import Resolved
from mptui.config.profiles import list_profiles
from mptui.config.save import save_profile
from mptui.errors import MptuiError
from mptui.hardware.describe import short_names
from mptui.hardware.devices import Device, tightest
from mptui.runs.planning.plan import Request
from mptui.runs.planning.ranks import check_batch
from mptui.text import clean, clean_lines
from mptui.tui.dialogs.choices import Answer, DiscardDialog
from mptui.tui.dialogs.input import AskDialog
from mptui.tui.keys.bindings import bindings
from mptui.tui.screens.page import Page
from mptui.tui.setup.data_info import about_data
from mptui.tui.setup.explained import explained
from mptui.tui.setup.last_selection import load_last, save_last
from mptui.tui.setup.memory_fit import Fit, fits
from mptui.tui.setup.selection import Picked, Picks, every_profile, resolved, to_save, values
from mptui.tui.setup.suggesters import DataSuggester, ModelSuggester
from mptui.tui.threads import in_background
from mptui.tui.widgets.keybar import KeyBar
from mptui.tui.widgets.setup.outline import Outline
from mptui.tui.widgets.setup.setting_list import KeyedList, profile_options, value_options
from mptui.tui.widgets.setup.text_fields import Fields
from mptui.tui.widgets.small import TooSmall
from mptui.tui.widgets.topline import TopLine

TYPING_PAUSE_S = 0.3
"""Seconds without a key after which slow work starts."""


class PickerScreen(Page):
    """Chooses the settings of a run.

    Args:
        devices: The device to train on, or several of one kind for a run in several processes.
        keymap: The user's keys.
        environ: Environment, for settings, profiles and the state folder.
    """

    where = "picker"
    BINDINGS = bindings("picker")
    CSS_PATH = "picker.tcss"

    class Started(Message):
        """A run was requested."""

        def __init__(self, request: Request, group: Sequence[str] = ()) -> None:
            super().__init__()
            self.request, self.group = request, group

    def __init__(
        self,
        *devices: Device,
        profile: str = "",
        keymap: Mapping[str, str] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        super().__init__()
        self._devices, self._device = devices, tightest(devices)
        self._keymap, self._environ = keymap or {}, environ
        self._profiles = list_profiles(environ)
        last = load_last(environ)
        names = [info.name for info in self._profiles]
        first = next(name for name in (last["profile"], profile, *names) if name in names)
        own = last["epochs"] if first == last["profile"] else ""
        where = devices[0].torch_name
        where = where if len(devices) == 1 else where.partition(":")[0]
        self._picks = Picks(Picked(first, where, last["model"], last["data"], own))
        self._data_task: str | None = None
        self._about_data = ""
        self._resolved: Resolved | None = None
        self._fault = self._data_fault = ""
        self._fits: dict[str, Fit | str] = {}
        self._counting: object = None

    @property
    def picked(self) -> Picked:
        """The current selection."""
        return self._picks.now

    def compose(self) -> ComposeResult:
        """Lay out the lists, and the three fields below them."""
        yield TopLine()
        with Horizontal(id="body"):
            yield KeyedList(id="profiles")
            with Vertical(id="right"):
                yield Outline(id="words")
                yield KeyedList(id="values")
        yield Fields(self.picked, ModelSuggester(), DataSuggester())
        yield Static(id="note", markup=False)
        yield KeyBar(self.where, self._keymap)
        yield TooSmall()

    def on_mount(self) -> None:
        """Show the selection, and start slow work."""
        self.query_one("#profiles", KeyedList).border_title = "profiles"
        self._refresh_profiles()
        self._refresh()
        self._say_device()
        self._look_at_data()

    def on_screen_resume(self) -> None:
        """Count the memory that a run's start has left uncounted."""
        self._count_memory()

    def on_resize(self) -> None:
        """Adapt to the size."""
        self.call_after_refresh(self._refresh)

    # -- display

    def _say_device(self) -> None:
        device = self._device
        free = f"   {fmt.size(device.memory_free)} free" if device.memory_free is not None else ""
        free += " on each" if free and len(self._devices) > 1 else ""
        words = clean(f"{short_names(self._devices)}  {device.name}", 60)
        self.query_one(TopLine).say(Content.assemble(words, (free, "$quiet")))

    def _refresh_profiles(self) -> None:
        names = [info.name for info in self._profiles]
        _, faults = every_profile(self._profiles, self._picks, self._data_task, self._environ)
        too_much = {name for name, fit in self._fits.items() if not (isinstance(fit, Fit) and fit.fits)}
        profiles = self.query_one("#profiles", KeyedList)
        profiles.replace(profile_options(names, faults.keys() | too_much, self._picks.edited()))
        with profiles.prevent(OptionList.OptionHighlighted):
            profiles.highlighted = names.index(self.picked.profile)

    def _refresh(self) -> None:
        """Resolve the settings again, and show them."""
        try:
            self._resolved, self._fault = resolved(self.picked, self._data_task, self._environ), ""
            check_batch(len(self._devices), self._resolved.config.training)
        except MptuiError as error:
            self._resolved, self._fault = None, error.message
        listed = self.query_one("#values", KeyedList)
        edited = " · edited" if self.picked.edits else ""
        listed.border_title = Content(f"{clean(self.picked.profile, 40)}{edited}")
        if self._resolved is not None:
            # minus the padding of each line and the scroll bar
            listed.replace(value_options(values(self._resolved), listed.content_region.width - 3))
        else:
            listed.replace([])
        self._show_words()
        self._show_note()
        self._count_memory()

    def _show_words(self) -> None:
        words = self.query_one(Outline)
        if self._resolved is None:
            words.refuse(self._fault)
        else:
            fit = self._fits.get(self.picked.profile)
            words.show(self._resolved, self._device, fit, len(self._devices))

    def _show_note(self) -> None:
        faults = self._faults()
        self.query_one(Fields).show_faults(faults.keys() & {"model", "data"})
        key = self.query_one("#values", KeyedList).highlighted_id
        meaning = SETTINGS[key].field.description if key in SETTINGS else None
        focused = self.query_one("#values").has_focus
        note = meaning if focused and meaning else self._about_data
        if isinstance(self.focused, Input) and (fault := faults.get(str(self.focused.id))):
            note = f"✗ {fault}"
        style = "$text-warning" if note.startswith("✗") else "$quiet"
        self.query_one("#note", Static).update(Content.styled(clean(note, 300), style))

    # -- slow work

    def _count_memory(self) -> None:
        """Estimate the memory of each profile, if it can have changed."""
        counting = [self._picks.of(info.name) for info in self._profiles], self._data_task
        if counting != self._counting:
            self._fits, self._counting = {}, counting
            self._show_words()
            self._count(counting)

    @work(exclusive=True, group="memory")
    async def _count(self, counting: object) -> None:
        await asyncio.sleep(TYPING_PAUSE_S)
        runs, _ = every_profile(self._profiles, self._picks, self._data_task, self._environ)
        device, ranks = self._device, len(self._devices)
        try:
            counted = await in_background(
                lambda: fits(runs, device, ranks, lambda: counting == self._counting)
            )
        except ImportError:
            return  # the run reports it
        if counting != self._counting:
            return
        self._fits = counted
        with suppress(NoMatches):  # the screen was closed
            self._refresh_profiles()
            self._show_words()
            self._show_note()

    @work(exclusive=True, group="data")
    async def _look_at_data(self) -> None:
        """Show the task of the data, after typing has paused."""
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
            self._refresh_profiles()
            self._refresh()

    # -- selection

    @on(OptionList.OptionHighlighted, "#profiles")
    def _profile_under_cursor(self, event: OptionList.OptionHighlighted) -> None:
        self._choose(str(event.option.id))

    def _choose(self, name: str) -> None:
        if name != self.picked.profile:
            self._note_fields()
            self._picks.choose(name)
            self.query_one(Fields).show_epochs(self.picked.epochs)
            self._refresh()

    @on(OptionList.OptionHighlighted, "#values")
    def _value_under_cursor(self) -> None:
        self._show_note()

    def on_descendant_focus(self) -> None:
        """Show the information for the focused widget."""
        self._show_note()

    def action_profile(self, digit: int) -> None:
        """Choose the profile at this digit."""
        if digit <= len(self._profiles):
            self.query_one("#profiles", KeyedList).highlighted = digit - 1
            self._choose(self._profiles[digit - 1].name)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        if event.input.id == "data":
            self._data_fault = ""  # of other data
        self._take_in()
        if event.input.id == "data":
            self._look_at_data()

    def _take_in(self) -> None:
        """Read the fields: a key can arrive before the messages of earlier keys."""
        self._note_fields()
        self._choose(self.query_one("#profiles", KeyedList).highlighted_id or self.picked.profile)
        self._refresh()

    def _note_fields(self) -> None:
        self._picks.now = self.query_one(Fields).taken_in(self.picked)

    @on(Input.Submitted)
    def _typed_whole(self) -> None:
        self._refresh_profiles()
        self.query_one("#profiles").focus()

    def action_edit(self) -> None:
        """Edit the value under the cursor."""
        key = self.query_one("#values", KeyedList).highlighted_id
        if self._resolved is None or key not in SETTINGS:
            return
        self.query_one("#values").focus()
        setting = SETTINGS[key]
        value = next(each for each in values(self._resolved) if each.key == key)
        self.app.push_screen(
            AskDialog(
                key,
                explained(setting, value.value, value.source),
                value.value,
                check=lambda text: read_value(setting, text)[1],
                take=lambda text: self._edited(key, text),
                suggestions=setting.choices or setting.examples,
            )
        )

    def _edited(self, key: str, text: str) -> str | None:
        """Accept an edit if it is valid together with the other values."""
        value, fault = read_value(SETTINGS[key], text)
        if fault is not None:
            return fault
        edited = replace(self.picked, edits={**self.picked.edits, key: value})
        try:
            resolved(edited, self._data_task, self._environ)
        except MptuiError as error:
            return error.message
        self._picks.now = edited
        self._refresh_profiles()
        self._refresh()
        return None

    def action_save(self) -> None:
        """Save the settings as a profile of the user."""
        if self._resolved is None:
            self._complain("can't be saved", self._fault)
            return
        self.app.push_screen(
            AskDialog(
                "save as a profile",
                "Name of the profile. Model and data are not saved.",
                "",
                check=lambda _: None,
                take=self._saved,
            )
        )

    def _saved(self, name: str) -> str | None:
        try:
            config = to_save(self.picked, self._data_task, self._environ)
            path = save_profile(name, config, self.picked.description, self._environ)
        except MptuiError as error:
            return f"{error.message}: {error.hint}"
        self._profiles = list_profiles(self._environ)
        self._picks.saved_as(name)
        self.query_one(Fields).show_epochs(self.picked.epochs)
        self._refresh_profiles()
        self._refresh()
        self.notify(clean(str(path)), title="saved", markup=False)
        return None

    def action_start(self) -> None:
        """Start the run."""
        self._take_in()
        for name, fault in self._faults().items():
            self._complain("can't be started", fault)
            if name:
                self.query_one(f"#{name}").focus()
            return
        picked = self.picked
        self._picks.use()
        save_last(
            {"profile": picked.profile, "model": picked.model, "data": picked.data, "epochs": picked.epochs},
            self._environ,
        )
        numbers = ",".join(str(device.index) for device in self._devices)
        group = ("--device", numbers) if len(self._devices) > 1 else ()
        self._counting = None  # until the person is back: the run needs the processor
        self.post_message(self.Started(picked.request(self._environ), group))

    def _faults(self) -> dict[str, str]:
        """Return known reasons that the run can't start, by field, or "" for none of them."""
        faults = {"data": self._data_fault, "": self._fault}
        fit = self._fits.get(self.picked.profile)
        if isinstance(fit, str):
            faults["model" if fit.startswith("model.name") else ""] = fit
        return {field: fault for field, fault in faults.items() if fault}

    def _complain(self, title: str, fault: str) -> None:
        self.notify(clean_lines(fault, 300), title=title, severity="error", markup=False)

    def back(self) -> None:
        """Go from a text field to the profiles, and from the profiles to the devices."""
        if isinstance(self.focused, Input):
            self.query_one("#profiles").focus()
        else:
            self._unless_edits_are_lost(super().back)

    def leave(self) -> None:
        """Quit."""
        self._unless_edits_are_lost(super().leave)

    def _unless_edits_are_lost(self, go: Callable[[], None]) -> None:
        """Continue at once if all edits are in a file or a run, else ask first."""
        names = ", ".join(self._picks.unused())
        if not names:
            go()
            return

        def answered(answer: Answer | None) -> None:
            if answer == "discard":
                go()

        words = f"Unsaved edits (w: save): {names}"
        self.app.push_screen(DiscardDialog(self._keymap, "discard edits?", words), answered)
