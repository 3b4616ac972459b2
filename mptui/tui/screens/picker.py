"""The second screen: the data, the model and the epochs, the profile with its settings."""

import asyncio
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.css.query import NoMatches
from textual.message import Message
from textual.widgets import Input, OptionList, Static

from mptui import text as fmt
from mptui.config.keys import SETTINGS
from mptui.config.profiles import list_profiles
from mptui.config.resolve import Resolved, read_value, save_profile
from mptui.config.schema import RunConfig
from mptui.errors import MptuiError
from mptui.hardware.describe import short_names
from mptui.hardware.devices import Device, tightest
from mptui.hardware.torch_view import import_failure
from mptui.registry.models import known_model
from mptui.runs.listing.rows import RunList, RunRow
from mptui.runs.planning.plan import Request, check_batch
from mptui.text import clean, clean_lines
from mptui.tui.data_preview import DataPreview, asked_of, preview
from mptui.tui.dialogs.questions import Answer, AskDialog, DiscardDialog, SettingDialog
from mptui.tui.keys import KEYS_WAIT, bindings
from mptui.tui.last import load_last, save_last
from mptui.tui.outlook import chosen_and_expected, with_choices
from mptui.tui.screens.page import Page, TooSmall
from mptui.tui.selection import (
    DataSuggester,
    Fit,
    ModelSuggester,
    Picked,
    Picks,
    about_data,
    data_of,
    every_profile,
    filling_batch,
    first_pick,
    fits,
    flags_of_group,
    in_a_paragraph,
    rate_rule,
    resolved,
    to_save,
    values,
)
from mptui.tui.widgets.basics import KeyBar, KeyedList, TopLine
from mptui.tui.widgets.settings import (
    NAMES,
    Cost,
    Fields,
    Outline,
    SampleStrip,
    SettingsPanel,
    profile_options,
)
from mptui.tui.work import in_background

# Base class of the picker: the selection of a run, and what is known of its memory and its data
# ----------------------------------------------------------------------------------------------

TYPING_PAUSE_S = 0.3
"""Seconds without a key after which slow work starts."""


class SelectionPage(Page):
    """Resolves a selection, and learns in the background what a run of it would meet.

    Args:
        devices: The device to train on, or several of one kind for a run in several processes.
        profile: The profile to begin with, if none was selected before.
        data: The data to begin with; None: the last that was selected.
        runs: The earlier runs, which tell how long one would take; None: there are none.
        environ: Environment, for settings, profiles and the state folder.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        profile: str,
        data: str | None,
        runs: RunList | None,
        environ: Mapping[str, str],
    ) -> None:
        super().__init__()
        self._runs = runs
        self._rows: Sequence[RunRow] | None = None
        self._time: tuple[str, str] | None = None
        self._reckoning: object = None
        self._devices = devices
        self._device = tightest(devices)
        self._environ = environ
        self._profiles = list_profiles(environ)
        last = load_last(environ) | ({} if data is None else {"data": data})
        self._picks = Picks(first_pick(self._profiles, profile, devices, last))
        self._resolved: Resolved | None = None
        self._whole: Resolved | None = None
        self._whole_of = ("", "")
        self._fault = self._data_fault = self._model_fault = ""
        self._looked_at: object = None
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

    @property
    def selection(self) -> Resolved | None:
        """The selected run, with what its data and device choose as soon as that is known; None: a fault."""
        is_of_these = self._whole_of == self._named
        if self._resolved is None or self._whole is None or not is_of_these:
            return self._resolved
        return with_choices(self._resolved, self._whole)

    @abstractmethod
    def show_selection(self) -> None:
        """Resolve the selection again, and show it."""

    @abstractmethod
    def show_learnt(self) -> None:
        """Show what is known now of memory and data."""

    def resolve(self) -> None:
        """Resolve the selection, and learn of it what can have changed."""
        try:
            self._resolved = resolved(self.picked, self._data_task, self._environ)
            self._fault = ""
            check_batch(len(self._devices), self._resolved.config.training)
        except MptuiError as error:
            self._resolved = None
            self._fault = error.message
        self.learn()

    def learn(self) -> None:
        """Start the slow work whose outcome can have changed."""
        if self._resolved is not None and (asked := asked_of(self._resolved)) != self._asked:
            self._asked = asked
            self._preview = None
            self._look_into_data(self._resolved, asked)
        samples = None if self._preview is None else self._preview.train
        reckoning = self.picked, self._data_task, samples
        if self._resolved is not None and reckoning != self._reckoning:
            self._reckoning = reckoning
            self._time = None
            self._reckon(reckoning, self._resolved, samples)
        classes = None if self._preview is None else self._preview.classes or None
        counting = self._selections(), classes
        if counting != self._counting:
            self._fits = {}
            self._counting = counting
            self._counted = False
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
        wrong_epochs = self.picked.fault_of_epochs
        faults = {
            "data": self._data_fault,
            "model": self._model_fault,
            "epochs": f"epochs: {wrong_epochs}" if wrong_epochs else "",
            "": self._fault,
        }
        fit = self._fits.get(self.picked.profile)
        if isinstance(fit, str):
            faults["model" if fit.startswith("model.name") else ""] = fit
        return {field: fault for field, fault in faults.items() if fault}

    def rest(self) -> None:
        """End the slow work until the person is back, as a run needs the processor."""
        self._asked = self._counting = self._reckoning = self._rows = None

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
                else fits(runs, device, ranks, classes, wanted=lambda: counting == self._counting)
            )
        )
        if counting == self._counting:
            self._fits = counted
            self._counted = True
            with suppress(NoMatches):  # the screen was closed
                self.show_learnt()

    @work(exclusive=True, group="time")
    async def _reckon(self, reckoning: object, resolution: Resolved, samples: int | None) -> None:
        """Learn what data and device choose for the selected run, and its time from earlier ones."""
        await asyncio.sleep(TYPING_PAUSE_S)
        runs, devices = self._runs, self._devices
        if self._rows is None:
            self._rows = [] if runs is None else await in_background(runs.rows)
        rows = self._rows
        found = await in_background(lambda: chosen_and_expected(resolution, devices, rows, samples))
        if reckoning == self._reckoning:
            self._whole, self._time = found
            self._whole_of = self._named
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

    @work(exclusive=True, group="names")
    async def look_at_names(self) -> None:
        """Learn of the data and the network that are named, after typing has paused."""
        await asyncio.sleep(TYPING_PAUSE_S)
        await self.looked_at_names()

    async def looked_at_names(self) -> bool:
        """Learn whether there are such data, for which task, and such a network; False: others are typed."""
        if self._looked_at == (named := self._names):
            return True
        picked, environ = self.picked, self._environ
        found = await in_background(lambda: (named_data(picked, environ), fault_of_model(picked.model)))
        if named != self._names:
            return False
        (self._data_task, self._about_data, self._data_fault), self._model_fault = found
        # what is not there can be, the next time
        self._looked_at = None if self._data_fault or self._model_fault else named
        with suppress(NoMatches):  # the screen was closed
            self.show_selection()
        return True

    @property
    def _named(self) -> tuple[str, str]:
        return self.picked.data, self.picked.model

    @property
    def _names(self) -> tuple[str, str, str]:
        """What names data and network: beside an empty field, the profile can."""
        return *self._named, "" if self.picked.data else self.picked.profile


def named_data(picked: Picked, environ: Mapping[str, str]) -> tuple[str | None, str, str]:
    """Return the task of the data of a selection (None: any), a description, and what is wrong with them."""
    try:
        return *about_data(*data_of(picked, environ)), ""
    except MptuiError as error:
        return None, f"✗ {error.message}", error.message


def fault_of_model(name: str) -> str:
    """Return what is wrong with the name of a network; "": nothing, or none is named."""
    try:
        if name:
            known_model(name)
    except MptuiError as error:
        return f"{error.message}: {error.hint}"
    return ""


# The second screen: the profile with its settings, the model, the data and the epochs
# ------------------------------------------------------------------------------------

BATCH = "training.batch_size"


class PickerScreen(SelectionPage):
    """Chooses the settings of a run.

    Args:
        devices: The device to train on, or several of one kind for a run in several processes.
        profile: The profile to begin with, if none was selected before.
        data: The data to begin with; None: the last that was selected.
        runs: The earlier runs, which tell how long one would take; None: there are none.
        keymap: The user's keys.
        environ: Environment, for settings, profiles and the state folder.
        ascii_only: Draw in ASCII.
    """

    where = "picker"
    BINDINGS = bindings("picker")

    class Started(Message):
        """A run was requested."""

        def __init__(self, request: Request, group: Sequence[str] = ()) -> None:
            super().__init__()
            self.request = request
            self.group = group

    def __init__(
        self,
        *devices: Device,
        profile: str = "",
        data: str | None = None,
        runs: RunList | None = None,
        keymap: Mapping[str, str] | None = None,
        environ: Mapping[str, str] = os.environ,
        ascii_only: bool = False,
    ) -> None:
        super().__init__(devices, profile, data, runs, environ)
        self._keymap = keymap or {}
        self._ascii_only = ascii_only
        self._filling = ""

    def compose(self) -> ComposeResult:
        """Lay out the lists, and the three fields below them."""
        yield TopLine()
        yield Fields(self.picked, DataSuggester(), ModelSuggester())
        yield Static(id="about", markup=False)
        yield Cost(id="cost")
        with Horizontal(id="body"):
            yield KeyedList(id="profiles")
            with Vertical(id="right"):
                yield Outline(id="words")
                yield SettingsPanel(brief=True)
                yield SampleStrip(ascii_only=self._ascii_only, id="pictures")
        yield Static(id="note", markup=False)
        yield KeyBar(self.where, self._keymap)
        yield TooSmall()

    def on_mount(self) -> None:
        """Show the selection, and start slow work."""
        self.query_one("#profiles", KeyedList).border_title = "profiles"
        self.query_one("#profiles", KeyedList).focus()
        self._show_another()
        self._say_device()
        self.look_at_names()

    def on_resize(self) -> None:
        """Adapt to the size."""
        self.call_after_refresh(self._show_texts)

    # -- display

    def _say_device(self) -> None:
        device = self._device
        free = f"   {fmt.size(device.memory_free)} free" if device.memory_free is not None else ""
        free += " on each" if free and len(self._devices) > 1 else ""
        words = clean(f"{short_names(self._devices)}  {device.name}", 60)
        self.query_one(TopLine).show_message(Content.assemble(words, (free, "$quiet")))

    def _refresh_profiles(self) -> None:
        names = [info.name for info in self._profiles]
        _, faults = self.every_profile()
        too_much = {name for name, fit in self._fits.items() if not (isinstance(fit, Fit) and fit.fits)}
        profiles = self.query_one("#profiles", KeyedList)
        edited = [self.picked.profile] if self.picked.edits else []
        # the cursor stays: a key can move it before the message of that arrives
        profiles.replace(profile_options(names, faults.keys() | too_much, edited))

    def show_selection(self) -> None:
        """Resolve the selection again, and show it."""
        self._refresh_profiles()
        self._refresh()

    def _show_another(self) -> None:
        """Show the selection of a profile that was chosen without the cursor."""
        self.show_selection()
        profiles = self.query_one("#profiles", KeyedList)
        with profiles.prevent(OptionList.OptionHighlighted):
            profiles.highlighted = [info.name for info in self._profiles].index(self.picked.profile)

    def show_learnt(self) -> None:
        """Show what is known now of memory and data, and what they choose."""
        self._refresh_profiles()
        self._show_settings()
        self._show_texts()
        if self._counted and self._filling == self.picked.profile:
            self.action_fill()

    def _refresh(self) -> None:
        """Resolve the settings again, and show them."""
        self.resolve()
        self._show_settings()
        if self._resolved is not None and not self.picked.epochs:
            self.query_one(Fields).show_default(self._resolved.config.training.epochs)
        self._show_texts()

    def _show_settings(self) -> None:
        edited = " · edited" if self.picked.edits else ""
        title = f"{clean(self.picked.profile, 40)}{edited}"
        self.query_one(SettingsPanel).show(title, [] if self.selection is None else values(self.selection))

    def _show_texts(self) -> None:
        self._show_words()
        self._show_note()

    def _show_words(self) -> None:
        words, found = self.query_one(Outline), self._preview
        pictures = () if found is None else found.pictures
        self.set_class(bool(pictures), "-pictured")
        self.query_one(SampleStrip).show(pictures)
        fit = self._fits.get(self.picked.profile)
        self.query_one(Cost).show(self._time, fit)
        if self.selection is None:
            words.refuse(self._fault)
        else:
            words.show(
                self.selection,
                self._device,
                fit,
                self._time,
                ranks=len(self._devices),
                samples=None if found is None else found.train,
                brief=self.has_class("-settings") and not self.has_class("-high"),
            )

    @on(SettingsPanel.Moved)
    def _show_note(self) -> None:
        faults = self.faults()
        self.query_one(Fields).show_faults(faults.keys() & set(NAMES))
        setting = self.query_one(SettingsPanel).chosen
        meaning = "no such setting" if setting is None else in_a_paragraph(setting)
        self.query_one("#note", Static).update(Content.styled(clean(meaning, 600), "$quiet"))
        wrong = sorted(faults.keys() & set(NAMES), key=lambda name: name != getattr(self.focused, "id", ""))
        note = f"✗ {faults[wrong[0]]}" if wrong else self._data_words()
        style = "$text-warning" if note.startswith(("✗", "!")) else "$quiet"
        lines = [note] if wrong else self._all_of_data(note)
        text = "\n".join(clean(line, 600) for line in lines)
        self.query_one("#about", Static).update(Content.styled(text, style))

    def _data_words(self) -> str:
        """Describe the data in a line: without a name that has no room, which is in its field."""
        about, found = self._about_data, self._preview
        if found is None or self._data_fault:
            return about
        if found.findings:
            return f"! {found.words} · {found.findings[0]}"
        whole = f"{about} · {found.words}"
        return f"✓ {found.words}" if self.picked.data and len(whole) > self.size.width - 4 else whole

    def _all_of_data(self, note: str) -> list[str]:
        """Return all that is known of the data while its field is chosen, else `note`."""
        found = self._preview
        if found is None or self.focused is not self.query_one("#data"):
            return [note]
        return [*(f"! {each}" for each in found.findings), *found.lines] if found.lines else [note]

    # -- selection

    @on(OptionList.OptionHighlighted, "#profiles")
    def _choose_under_cursor(self) -> None:
        self._choose(self.query_one("#profiles", KeyedList).highlighted_id or self.picked.profile)

    def _choose(self, name: str) -> None:
        if name != self.picked.profile:
            self._note_fields()
            self._filling = ""
            self._picks.choose(name)
            if self.picked.edits:
                self._refresh_profiles()  # they are of the chosen profile now
            self._refresh()
            if not self.picked.data:
                self.look_at_names()

    def on_descendant_focus(self) -> None:
        """Make room for what the focused widget is about, and explain it."""
        within = self.query_one(SettingsPanel) in (self.focused or self).ancestors
        if within != self.has_class("-settings"):
            self.set_class(within, "-settings")
            self.call_after_refresh(self._show_words)
        self.set_class(self.focused is self.query_one("#data"), "-data")
        self.query_one(KeyBar).offer("typing" if isinstance(self.focused, Input) else "always")
        self._show_note()

    def action_next(self, by: int) -> None:
        """Go to the next field in the order in which people fill them in."""
        stops = [self.query_one(f"#{name}") for name in ("profiles", *NAMES, "values")]
        now = stops.index(self.focused) if self.focused in stops else -1
        stops[(now + by) % len(stops)].focus()

    def action_profile(self, digit: int) -> None:
        """Choose the profile at this digit."""
        if digit <= len(self._profiles):
            self.query_one("#profiles", KeyedList).highlighted = digit - 1
            self._choose(self._profiles[digit - 1].name)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        if event.input.id == "data":
            self._data_fault = ""  # of other data
        elif event.input.id == "model":
            self._model_fault = ""
        self._take_in()
        self.look_at_names()

    def _take_in(self) -> None:
        """Read the fields: a key can arrive before the messages of earlier keys."""
        self._note_fields()
        self._choose_under_cursor()
        self._refresh()

    def _note_fields(self) -> None:
        self._picks.now = self.query_one(Fields).taken_in(self.picked)

    def action_filter(self) -> None:
        """Ask for words of a setting."""
        self.query_one(SettingsPanel).search()

    def action_all(self) -> None:
        """Show all settings, or the usual and the changed ones."""
        self.query_one(SettingsPanel).toggle_all()

    def action_changed(self) -> None:
        """Show only changed settings, or all."""
        self.query_one(SettingsPanel).toggle_changed()

    def action_fill(self) -> None:
        """Set the largest batch that fits into the free memory, once that is counted."""
        self._take_in()
        name, self._filling = self.picked.profile, ""
        fit = self._fits.get(name)
        if self.selection is None:
            self._complain("can't be filled", self._fault)
        elif not self._counted:
            self._filling = name
            self.notify("the memory is still being counted; the batch follows", markup=False)
        elif not isinstance(fit, Fit):
            self._complain("can't be filled", fit or "the memory of this network is not counted")
        else:
            self._fill(fit, self.selection.config)

    def _fill(self, fit: Fit, config: RunConfig) -> None:
        samples = None if self._preview is None else self._preview.train
        batch, why = filling_batch(fit, config.memory, samples)
        if not batch or (fault := self._edited(BATCH, str(batch))) is not None:
            self._complain("can't be filled", why if not batch else str(fault))
            return
        assert self._resolved is not None, "the edit was accepted"
        now = self._resolved.config.training
        words = f"batch {config.training.batch_size:,} → {now.batch_size:,}: {why}"
        self.notify(f"{words}\n{rate_rule(config.training, now)}", title="filled", markup=False)

    def by_name(self) -> Iterable[tuple[str, str, Callable[[], None]]]:
        """Return the profiles and the settings."""
        for number, info in enumerate(self._profiles, 1):
            yield (
                f"profile {clean(info.name, 40)}",
                clean(info.description),
                partial(self.action_profile, number),
            )
        for value in () if self.selection is None else values(self.selection):
            go = partial(self.query_one(SettingsPanel).go_to, value.key)
            yield f"setting {value.key}", SETTINGS[value.key].help, go

    @on(KeyedList.Opened, "#values")
    def _opened(self) -> None:
        self.action_edit()

    def action_edit(self) -> None:
        """Edit the value under the cursor."""
        self._take_in()
        value = self.query_one(SettingsPanel).chosen
        if value is None:
            return
        self.query_one("#values").focus()
        self.app.push_screen(SettingDialog(value, value.source, self._edited))

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
        self.show_selection()
        return None

    def action_save(self) -> None:
        """Save the settings as a profile of the user."""
        self._take_in()
        if self._resolved is None:
            self._complain("can't be saved", self._fault)
            return
        self.app.push_screen(
            AskDialog(
                "save as a profile",
                "Name of the profile. Model and data are not saved.",
                "",
                check=lambda _: None,
                on_answer=self._saved,
            )
        )

    def _saved(self, name: str) -> str | None:
        try:
            how = to_save(self.picked, self._data_task, self._environ)
            path = save_profile(
                name, how.config, self.picked.description, task=how.task, environ=self._environ
            )
        except MptuiError as error:
            return f"{error.message}: {error.hint}"
        self._profiles = list_profiles(self._environ)
        self._picks.saved_as(name)
        self.query_one(Fields).show_epochs(self.picked.epochs)
        self._show_another()
        self.notify(clean(str(path)), title="saved", markup=False)
        return None

    @work(exclusive=True, group=f"{KEYS_WAIT}: start")
    async def action_start(self) -> None:
        """Start the run, if the data and the network are there; a fault stays at its field."""
        self._take_in()
        if await self.looked_at_names():
            self._start()

    def _start(self) -> None:
        for name, fault in self.faults().items():
            self._complain("can't be started", fault)
            if name:
                self.query_one(f"#{name}").focus()
            return
        picked, resolution = self.picked, self._resolved
        assert resolution is not None, "else there are faults"
        self._picks.use()
        self._keep_typed()
        self.rest()
        request = picked.request(resolution, self._environ)
        self.post_message(self.Started(request, flags_of_group(self._devices)))

    def _keep_typed(self) -> None:
        """Keep the selection for whoever comes back, or starts the program again."""
        picked = self.picked
        save_last(
            {"profile": picked.profile, "model": picked.model, "data": picked.data, "epochs": picked.epochs},
            self._environ,
        )

    def _complain(self, title: str, fault: str) -> None:
        self.notify(clean_lines(fault, 300), title=title, severity="error", markup=False)

    def back(self) -> None:
        """Go from a text field to the profiles, end the search, and go to the devices."""
        if self.focused in self.query_one(Fields).children:
            self.query_one("#profiles").focus()
        elif not self.query_one(SettingsPanel).end_search():
            self._unless_edits_are_lost(super().back)

    def leave(self) -> None:
        """Quit."""
        self._unless_edits_are_lost(super().leave)

    def _unless_edits_are_lost(self, go: Callable[[], None]) -> None:
        """Continue at once if all edits are in a file or a run, else ask first."""

        def leave() -> None:
            self._note_fields()
            self._keep_typed()
            go()

        if not self._picks.has_unused:
            leave()
            return

        def answered(answer: Answer | None) -> None:
            if answer == "discard":
                leave()

        words = f"Unsaved edits (w: save): {', '.join(self.picked.edits)}"
        self.app.push_screen(DiscardDialog(self._keymap, "discard edits?", words), answered)
