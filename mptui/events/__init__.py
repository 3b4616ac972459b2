"""Every event that a run can emit: all that a screen, a file or a tracker knows of the run.

An event is a frozen dataclass. `codec.py` converts it to JSON and back; `mptui.runs.view.events` says what
the screens, the console, the summary and the trackers make of it.
"""

from mptui.events.control import Advice, CommandAnswered, PresetSwitched
from mptui.events.event import SCHEMA_VERSION, Event
from mptui.events.lifecycle import PHASES, Paused, PhaseChanged, Progress, Resumed, RunFinished, RunStarted
from mptui.events.mixed_precision import (
    NUMERICS_BUDGET,
    LossScale,
    Numerics,
    NumericsLayer,
    PrecisionChanged,
    StepSkipped,
)
from mptui.events.rank_rows import RankRow, RanksSampled
from mptui.events.recovery import Alert, Diagnosed, Recovered, Warned
from mptui.events.training import (
    HARMFUL_THROTTLING,
    CheckpointSaved,
    DeviceProcess,
    DeviceSample,
    EpochFinished,
    EpochStarted,
    ImagesGenerated,
    LayersThawed,
    MemorySample,
    Step,
    Validated,
)

__all__ = [
    "HARMFUL_THROTTLING",
    "NUMERICS_BUDGET",
    "PHASES",
    "SCHEMA_VERSION",
    "Advice",
    "Alert",
    "CheckpointSaved",
    "CommandAnswered",
    "DeviceProcess",
    "DeviceSample",
    "Diagnosed",
    "EpochFinished",
    "EpochStarted",
    "Event",
    "ImagesGenerated",
    "LayersThawed",
    "LossScale",
    "MemorySample",
    "Numerics",
    "NumericsLayer",
    "Paused",
    "PhaseChanged",
    "PrecisionChanged",
    "PresetSwitched",
    "Progress",
    "RankRow",
    "RanksSampled",
    "Recovered",
    "Resumed",
    "RunFinished",
    "RunStarted",
    "Step",
    "StepSkipped",
    "Validated",
    "Warned",
]
