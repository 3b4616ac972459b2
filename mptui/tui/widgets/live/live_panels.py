"""The panels in the right column of the live screen, from top to bottom."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from textual.content import Content

from mptui.runs.view.run_view import RunView
from mptui.tui.widgets.live.device import DevicePanel, device_line
from mptui.tui.widgets.live.image_panel import ImagesPanel
from mptui.tui.widgets.live.precision import PrecisionPanel, precision_line
from mptui.tui.widgets.live.step import StepPanel, step_line
from mptui.tui.widgets.panel import Panel


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelSpec:
    """A panel of the live screen. Its class sets its height, and `lines` its content.

    Attributes:
        build: Builds the panel, given `ascii_only`.
        folded: Returns the parts of its line on a narrow screen, given the view and `ascii_only`; the last
            parts are omitted if they don't fit. None: the panel has no such line.
        page: Its page on a screen of fewer than 24 rows.
    """

    build: Callable[[bool], Panel]
    folded: Callable[[RunView, bool], list[Content]] | None
    page: Literal[2, 3] = 3


PANELS: dict[str, PanelSpec] = {
    "precision": PanelSpec(build=PrecisionPanel, folded=precision_line, page=2),
    "device": PanelSpec(build=lambda _: DevicePanel(), folded=lambda view, _: device_line(view)),
    "step": PanelSpec(build=lambda _: StepPanel(), folded=lambda view, _: step_line(view)),
    "images": PanelSpec(build=ImagesPanel, folded=None),
}
"""Name (also the widget's id) -> panel."""


def build_panels(ascii_only: bool) -> list[Panel]:
    """Build all panels, each with its name as id and the CSS class of its page."""
    panels = []
    for name, spec in PANELS.items():
        panel = spec.build(ascii_only)
        panel.id = name
        panel.add_class(f"-of-page-{spec.page}", update=False)
        panels.append(panel)
    return panels
