"""The reading that a run keeps of its data, applied to a set that is opened again."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mptui.config.schema import DataConfig
from mptui.data.core.reading import LeftOut
from mptui.data.core.types import IGNORE
from mptui.data.decode.mask import MAX_CLASSES, MaskCoding
from mptui.data.formats.build_reading import IGNORED, is_held_out
from mptui.data.formats.folder_format import Found
from mptui.data.formats.masks.orientation import setting_of

_LATER = "is of a validation half that this run did not have when it began"


@dataclass(frozen=True, slots=True)
class KeptReading:
    """What a run decided about its data when it began.

    Attributes:
        held_out: Whether it held out validation samples by its seed.
        coding: What the values or colours of its masks mean; None: it has none, or they are not recorded.
        orientation: How its masks lie to photographs stored turned, as `data.mask_orientation`; "auto": no
            photograph was.
    """

    held_out: bool
    coding: MaskCoding | None
    orientation: str

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "KeptReading":
        """Return the reading of a document of `reading_document`."""
        return cls(
            held_out=is_held_out(str(document.get("split"))),
            coding=_coding(document),
            orientation=setting_of(str(document.get("orientation", ""))),
        )

    def settings(self, data: DataConfig) -> DataConfig:
        """Return the data settings with what was decided of them."""
        if data.mask_orientation != "auto":
            return data
        return data.model_copy(update={"mask_orientation": self.orientation})

    def applied(self, found: Found) -> Found:
        """Return the files of a set as the run had split them, with its coding of the masks."""
        if found.masks is not None and self.coding is not None:
            found = replace(found, coding=self.coding)
        if not self.held_out or found.train_rows == len(found.images):
            return found
        later = tuple(found.images[row] for row in range(found.train_rows, len(found.images)))
        return replace(
            found,
            images=tuple(found.images[row] for row in range(found.train_rows)),
            labels=None if found.labels is None else found.labels[: found.train_rows],
            masks=None if found.masks is None else tuple(found.masks[row] for row in range(found.train_rows)),
            split="",
            left_out=(*found.left_out, LeftOut(_LATER, later)),
        )


def _coding(document: Mapping[str, Any]) -> MaskCoding | None:
    """Return the coding that phrases of `Reading.mask_code` describe; None if they describe none."""
    try:
        names = [str(each["name"]) for each in document["classes"]]
        number = {IGNORED: IGNORE, **{name: place for place, name in enumerate(names)}}
        indices: dict[int, int] = {}
        colours = set()
        for phrase in document["mask_code"]:
            codes, _, name = str(phrase).partition(": ")
            for code in codes.split(", "):
                colours.add(code.startswith("#"))
                first, _, last = code.partition("-")
                low = int(first[1:], 16) if code.startswith("#") else int(first)
                high = int(last or low)
                if high - low > MAX_CLASSES:
                    return None
                indices |= dict.fromkeys(range(low, high + 1), number[name])
    except (KeyError, TypeError, ValueError):
        return None
    if len(colours) != 1 or IGNORED in names:
        return None
    codes_in_order = tuple(sorted(indices))
    return MaskCoding(
        tuple(names), codes_in_order, tuple(indices[code] for code in codes_in_order), colours.pop()
    )
