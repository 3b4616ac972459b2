"""`--help` under headings in plain text: typer has Rich show them, which takes long to load."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from typer.core import TyperCommand, TyperGroup

_FEW = 20
"""Options that need no headings."""
_Row = tuple[str, str]


class _Formatter(Protocol):
    width: int

    def section(self, name: str) -> AbstractContextManager[None]: ...
    def write_dl(self, rows: Sequence[_Row]) -> None: ...


class HeadedCommand(TyperCommand):
    """A command with its options under headings, if they are many; those without one come first."""

    def format_options(self, ctx: Any, formatter: _Formatter) -> None:  # noqa: ANN401, D102 - typer's own
        headed: dict[str, list[_Row]] = {"Arguments": [], "Options": []}
        params = self.get_params(ctx)
        for param in params:
            panel = getattr(param, "rich_help_panel", None) if len(params) > _FEW else None
            of_kind = "Arguments" if param.param_type_name == "argument" else "Options"
            if (row := param.get_help_record(ctx)) is not None:
                name = row[0] if of_kind == "Options" else row[0].partition(" <")[0]  # without Python's type
                headed.setdefault(panel or of_kind, []).append((name, row[1]))
        _write(formatter, headed)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401 - typer's own
        """Return what follows the name in the usage: `RUN`, where typer has `{RUN}`."""
        return [piece.removesuffix("...").strip("{}") for piece in super().collect_usage_pieces(ctx)]


class HeadedGroup(TyperGroup):
    """A group with its commands under headings, before its options."""

    def format_options(self, ctx: Any, formatter: _Formatter) -> None:  # noqa: ANN401, D102 - typer's own
        headed: dict[str, list[_Row]] = {}
        shown = {name: each for name, each in self.commands.items() if not each.hidden}
        widest = max(map(len, shown))
        for name, each in shown.items():
            text = each.get_short_help_str(formatter.width - 6 - widest)
            panel = getattr(each, "rich_help_panel", None) or "Commands"
            headed.setdefault(panel, []).append((name.ljust(widest), text))
        rows = [row for param in self.get_params(ctx) if (row := param.get_help_record(ctx)) is not None]
        _write(formatter, headed | {"Options": rows})


def _write(formatter: _Formatter, headed: dict[str, list[_Row]]) -> None:
    for heading, rows in headed.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)
