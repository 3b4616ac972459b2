"""What a newcomer asks: how data may lie, which profile suits, keys and words of a run, its use."""

from collections.abc import Mapping, Sequence

from textual.app import ComposeResult
from textual.containers import Grid
from textual.content import Content
from textual.widget import Widget

from mptui.text import clean
from mptui.tui.keys import KEYS, display
from mptui.tui.widgets.basics import fit

Pairs = Sequence[tuple[str, str]]
"""Names, each with what it means."""

NO_RUNS = "no runs yet: enter leads to the first. Data of your own may lie so:"

DATA: Pairs = (
    ("classes", "a folder for each: DATA/cat/1.jpg, DATA/dog/2.jpg"),
    ("split", "DATA/train/cat/1.jpg and DATA/val/cat/2.jpg"),
    ("masks", "DATA/images/1.jpg with DATA/masks/1.png, of the same name"),
    ("images", "only images: a diffusion network makes more of them"),
    ("packed", "Parquet, tar shards, or a list of files as CSV"),
    ("by name", "cifar10 and other sets of torchvision; built-in shapes"),
    ("check", "mptui data FOLDER says what a set is taken for"),
    ("more", "docs/data.md: each layout, what is refused, and why"),
)
"""How data may lie, the usual forms first."""

_WORDS: Pairs = (
    ("mp:", "mixed precision: bf16, fp16, or fp32 where it is off"),
    ("bound by", "what limits a step: compute, the data, copies to the device"),
    ("loss scale", "what losses are multiplied by in fp16, so that small gradients are kept"),
    ("skipped", "steps without an update, as a gradient was infinite: a few are usual in fp16"),
    ("grad norm", "the length of all gradients: it grows before a run diverges"),
    ("▲", "an alert: what is wrong, and what to do"),
    ("timeline", "below the first line: states, precision, what was saved"),
    ("more", "docs/glossary.md has the words of all screens and files"),
)
"""Words of the live screen."""

_AFTER: Pairs = (
    ("resume", "mptui resume RUN --epochs 20 trains it longer"),
    ("evaluate", "mptui evaluate RUN --data FOLDER has all metrics, and the worst samples"),
    ("predict", "mptui predict RUN FOLDER writes classes or masks"),
    ("export", "mptui export RUN --format onnx, with a model card"),
    ("report", "mptui report RUN is a page of curves and facts"),
    ("compare", "mptui runs lists all; c on their screen compares the marked ones"),
)
"""What a run is good for afterwards."""

_SHOWN = (
    *("live.pause", "live.profile", "live.checkpoint", "live.validate", "live.undo", "live.fork"),
    *("live.numerics", "live.memory", "live.pictures", "live.metrics", "live.settings"),
    *("live.detach", "live.stop", "app.help"),
)
_LABEL = 16
_BOTH_ROWS = 26
"""Lines from which there are two rows of boxes."""


def pair_lines(pairs: Pairs, width: int) -> list[Content]:
    """Return a line or more for each name with what it means, wrapped."""
    lines: list[Content] = []
    for name, words in pairs:
        wrapped = Content(words).wrap(max(1, width - _LABEL))
        names = [name, *[""] * (len(wrapped) - 1)]
        lines += (
            Content.assemble(fit(Content.styled(each, "$text-accent"), _LABEL), part)
            for each, part in zip(names, wrapped, strict=True)
        )
    return lines


class _Box(Widget):
    """A framed list of names with what they mean."""

    def __init__(self, title: str, pairs: Pairs) -> None:
        super().__init__()
        self.border_title = Content(title)
        self._pairs = pairs

    def render(self) -> Content:
        """Wrap the words in the width that there is."""
        width, height = self.content_size
        return Content("\n").join(pair_lines(self._pairs, width)[:height])


class FirstSteps(Grid):
    """Boxes of what a newcomer asks, beside each other, in the room of the first screen without runs.

    Args:
        profiles: The profiles, each with its description.
        keymap: The user's keys.
    """

    DEFAULT_CSS = """
    FirstSteps {
        height: 1fr;
        grid-size: 2;
        grid-gutter: 0 1;
        _Box { height: 1fr; border: round $frame; border-title-color: $quiet; padding: 0 1; }
    }
    """

    def __init__(self, profiles: Pairs, keymap: Mapping[str, str]) -> None:
        super().__init__()
        keys = {key.id: key for key in KEYS}
        watched = [(display(keys[name], keymap), keys[name].help) for name in _SHOWN]
        known = [(clean(name, _LABEL - 1), clean(words, 200)) for name, words in profiles]
        self._boxes = (
            _Box("profiles: what a run is for", known),
            _Box("keys while it trains", watched),
            _Box("what a run is good for", _AFTER),
            _Box("words on its screen", _WORDS),
        )

    def compose(self) -> ComposeResult:
        """Lay out the boxes."""
        yield from self._boxes

    def on_resize(self) -> None:
        """Leave out the second row where there is no room."""
        for box in self._boxes[2:]:
            box.display = self.size.height >= _BOTH_ROWS
