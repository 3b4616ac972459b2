"""Names that several rooms share: precisions, targets of diffusion, samples, timm's networks."""

import re
from enum import Enum
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:  # `mptui --help` has no use for events
    from mptui.events import Event

# Names of timm's networks, read from its source: importing timm takes seconds
# ----------------------------------------------------------------------------

PREFIX = "timm/"
"""Start of the names of timm's networks in `model.name`."""

# https://huggingface.co/docs/timm/reference/models: `register_model` takes the name from the function
_REGISTERED = re.compile(rb"^@register_model\s+def (\w+)\(", re.MULTILINE)


@lru_cache(maxsize=1)
def timm_names() -> tuple[str, ...]:
    """Return the networks of the installed timm, as `model.name` has them; empty without timm."""
    found = find_spec("timm")
    if found is None or found.origin is None:
        return ()
    files = sorted(Path(found.origin).parent.glob("models/*.py"))
    return tuple(
        sorted(PREFIX + name.decode() for f in files for name in _REGISTERED.findall(f.read_bytes()))
    )


def architecture(name: str) -> str:
    """Return the name without that of weights: `timm/resnet50` of `timm/resnet50.a1_in1k`."""
    return name.partition(".")[0]


# What a diffusion model learns from: how noise grows with the timestep, and what is predicted
# --------------------------------------------------------------------------------------------

NoiseSchedule = Literal["cosine", "linear"]
"""cosine: of Nichol and Dhariwal (2021); linear: of Ho, Jain and Abbeel (2020)."""
Prediction = Literal["epsilon", "v"]
"""epsilon: the noise; v: sqrt(a) x noise - sqrt(1 - a) x image (Salimans and Ho 2022)."""
SamplingMethod = Literal["ddim", "ancestral"]
"""ddim: no noise after the first (Song, Meng and Ermon 2021); ancestral: at each step (Ho et al. 2020)."""


# What the rooms have to know of a precision beside its name
# ----------------------------------------------------------

SIXTEEN_BIT = {"fp16": "float16", "bf16": "bfloat16"}
"""The precisions that compute in 16 bits under autocast, by torch's name of the format."""

PRECISIONS = ("fp32", *SIXTEEN_BIT)
"""All of them."""

LOSS_SCALED = frozenset({"fp16"})
"""Those whose range is so much narrower than float32's that the loss is scaled."""

LONG_NAMES = {**{name: mode for mode, name in SIXTEEN_BIT.items()}, "float32": "fp32"}
"""Torch's names of the formats, which settings accept."""


# What a probe of numerics looks at, as a setting and a command name it
# --------------------------------------------------------------------

NumericsMode = Literal["off", "summary", "full"]
"""off: nothing; summary: samples of the values; full: all values."""


# What a dataset may hold, and how its images are resampled
# ---------------------------------------------------------

BUILT_IN = "shapes"
"""Name of the built-in set."""
Interpolation = Literal["bilinear", "bicubic"]
"""The filter that resamples images; both antialias."""


class SampleKind(Enum):
    """What a sample has beside its image. The values are what a person reads of such a set."""

    CLASS = "images in classes"
    """The number of its class."""
    MASK = "images with masks"
    """A mask with the class of each pixel."""
    IMAGE = "images alone"
    """Nothing: the images themselves are learnt, and batches of them come with noise."""


# What an experiment tracker does; `mptui.registry.trackers` lists them
# ---------------------------------------------------------------------

Kept = dict[str, Any]
"""What a tracker needs to go on later, as JSON: its own entries, and those that every tracker has.

`position`: it has the journal up to this byte. `id`: an ID for the run at the tracker, the same after each
resume.
"""


class Tracker(Protocol):
    """Receives the events of a run, in a thread of its own in a process of its own; may wait and fail."""

    def log(self, event: "Event", scalars: dict[str, float]) -> None:
        """Log the scalars of an event by name; most events have none."""

    def flush(self) -> Kept | None:
        """Store what was logged, and return the tracker's own entries.

        None if it is not certain yet that it is stored: after a kill, the events since the last certain ones
        come again.
        """

    def close(self) -> Kept | None:
        """Store what was logged as `flush` does, and close; the run may be resumed."""
