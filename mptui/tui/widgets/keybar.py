"""The bottom line: the keys of a screen, with the user's keymap applied; each can be clicked."""

from collections.abc import Mapping

from textual.content import Content
from textual.events import Click
from textual.widgets import Static

from mptui.tui.keys.bindings import Key, display, heard_on

_GAP = 2


class KeyBar(Static):
    """Keys with their words, as many as fit; the global ones (help, leave) are always shown.

    Where keys don't fit, the help is called `more`.
    """

    DEFAULT_CSS = "KeyBar { height: 1; padding: 0 1; text-wrap: nowrap; }"

    def __init__(self, where: str, keymap: Mapping[str, str]) -> None:
        super().__init__(markup=False)
        keys = [key for key in heard_on(where) if key.footer and key.id != f"app.{where}"]
        self._items = [(key, _item(key, keymap, key.footer)) for key in keys]
        self._more = {key.id: _item(key, keymap, "more") for key in keys if key.id == "app.help"}
        self._shown: list[tuple[Key, Content]] = []
        self._when = {"always", "going"}

    def offer(self, *when: str) -> None:
        """Show the keys of these states of a run, and the global ones."""
        if self._when != set(when):
            self._when = set(when)
            self.on_resize()

    def on_resize(self) -> None:
        """Choose the keys that fit."""
        when = {*self._when, "spare"}
        always = [item for item in self._items if item[0].where == "app" and item[0].when == "always"]
        own = [item for item in self._items if item not in always and item[0].when in when]
        while own and sum(content.cell_length + _GAP for _, content in own + always) - _GAP > self.size.width:
            own.pop()
            always = [(key, self._more.get(key.id, content)) for key, content in always]
        self._shown = own + always
        self.update(Content(" " * _GAP).join(content for _, content in self._shown), layout=False)

    async def on_click(self, event: Click) -> None:
        """Run the action of the key under the mouse."""
        end = 1
        for key, content in self._shown:
            start, end = end, end + content.cell_length + _GAP
            if start <= event.x < end - _GAP and "{n}" not in key.action:
                await self.run_action(key.action if key.where == "app" else f"screen.{key.action}")


def _item(key: Key, keymap: Mapping[str, str], word: str) -> Content:
    first = display(key, keymap).split(" / ")[0]
    return Content.assemble((first, "bold $footer-key-foreground"), (f" {word}", "$quiet"))
