"""What a layout tells the widgets of a screen."""

from textual.widgets import Static

from mptui.tui.screens.page import Page


class Measured(Static):
    """Knows the size that it was told."""

    told = None

    def on_resize(self):
        """Note the size."""
        self.told = self.size


async def test_a_new_widget_is_told_its_size_if_another_was_looked_up_before_the_layout(stage):
    async with stage.show(Page()) as (app, pilot):
        first, second = Measured("1"), Measured("2")
        await app.screen.mount(first)
        await pilot.pause()
        await app.screen.mount(second)
        compositor = app.screen._compositor
        compositor._full_map_invalidated = True  # as by a frame that has a widget which is new
        assert second in compositor.full_map  # as by a search for the widget under the mouse
        await pilot.pause()
        assert first.told == second.told == second.size
