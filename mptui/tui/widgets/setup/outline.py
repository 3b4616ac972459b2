"""Summary of the selected run: network, precision, batch and memory."""

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from mptui import format as fmt
from mptui.config.merge import Resolved
from mptui.hardware.devices import Device
from mptui.text import clean
from mptui.tui.setup.memory_fit import Fit
from mptui.tui.setup.selection import in_words
from mptui.tui.widgets.bars import bar
from mptui.tui.widgets.gauges import share

_LABEL = 11
_BAR = 24
_FAULT_LINES = 6
_WIDE = 90
_BRIEF = {"precision", "batch", "lr", "epochs"}


class Outline(Static):
    """The main values of the selected run, or why it is impossible."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(markup=False, id=id)

    def show(
        self,
        run: Resolved,
        device: Device,
        fit: Fit | str | None,
        *,
        ranks: int = 1,
        samples: int | None = None,
        brief: bool = False,
    ) -> None:
        """Show a run.

        Args:
            run: The run.
            device: The device of one process.
            fit: Its estimate, why there is none, or None: unknown yet.
            ranks: Number of processes.
            samples: Number of training samples; None: not known.
            brief: Show only what settings decide, a line each.
        """
        width = self.content_size.width
        words, memory = in_words(run, device, ranks, samples), _memory(fit, width)
        if brief:
            lines = [_line(*each) for each in words if each[0] in _BRIEF]
            short = [line.truncate(width, ellipsis=True) for line in (*lines, memory[0])]
            self.update(Content("\n").join(short))
            return
        network = [("network", *_network(fit))] if isinstance(fit, Fit) else []
        lines = [Content.styled(clean(run.config.description), "$text-accent")]
        lines += [line for each in (*network, *words) for line in _wrapped(_line(*each), width)]
        self.update(Content("\n").join([*lines, *memory]))

    def refuse(self, fault: str) -> None:
        """Show why the run is impossible."""
        lines = [Content.styled(clean(line), "$text-error") for line in fault.splitlines()[:_FAULT_LINES]]
        self.update(Content("\n").join(lines))


def _line(label: str, value: str, why: str) -> Content:
    return Content.assemble(
        (label.ljust(_LABEL), "$quiet"), (clean(value), "bold"), "  ", (clean(why), "$quiet")
    )


def _wrapped(line: Content, width: int) -> list[Content]:
    """Wrap what follows the label of a line below itself."""
    room = max(1, width - _LABEL)
    first, *others = line[_LABEL:].wrap(room)
    return [Content.assemble(line[:_LABEL], first), *(other.pad_left(_LABEL) for other in others)]


def _network(fit: Fit) -> tuple[str, str]:
    weights = fmt.short(float(f"{fit.parameters:.3g}"))
    return fit.network, f"{weights} weights, images of {fit.side} px"


def _memory(fit: Fit | str | None, width: int) -> list[Content]:
    label = ("memory".ljust(_LABEL), "$quiet")
    if fit is None:
        return [Content.assemble(label, ("counting …", "$quiet")), Content("")]
    if isinstance(fit, str):
        return [Content.assemble(label, (f"✗ {clean(fit.splitlines()[0])}", "$text-warning")), Content("")]
    style = "$quiet" if fit.free is None else "$text-success" if fit.fits else "$text-warning"
    total, gauge = fit.footprint.total, Content("")
    if width >= _WIDE:
        gauge = Content.assemble(bar(share(total, fit.free), _BAR, style), "  ")
    return [
        Content.assemble(label, gauge, (fit.figure, "bold"), "  ", (fit.words, style)),
        Content.styled(" " * _LABEL + _parts(fit, width - _LABEL), "$quiet"),
    ]


def _parts(fit: Fit, room: int) -> str:
    """All parts where there is room, else the two largest and the rest."""
    if len(text := _parts_text(fit.parts)) <= room:
        return text
    first, second, *others = sorted(fit.parts, key=lambda part: -part[1])
    return _parts_text([first, second, ("rest", sum(size for _, size in others))])


def _parts_text(parts: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{word} {size / (1 << 30):.2g}" for word, size in parts)
