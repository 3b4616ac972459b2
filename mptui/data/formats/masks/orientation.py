"""Decides for a whole set whether masks follow the EXIF orientation of their photographs.

A camera stores a photograph turned and says so in EXIF. A mask is drawn over the photograph as it is stored,
or as it is shown; it has no EXIF itself. A photograph turned by a quarter that is no square shows which, by
the shape of its mask; one turned by a half, mirrored, or square does not, but its set does.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from mptui.data.decode.mask import AS_SHOWN, AS_STORED, EITHER, MaskSurvey
from mptui.errors import TwoReadingsError

Setting = Literal["auto", "upright", "stored"]


def masks_upright(surveys: Sequence[MaskSurvey], setting: Setting) -> tuple[bool | None, str]:
    """Decide how the masks of a set lie.

    Args:
        surveys: The survey of each mask.
        setting: `data.mask_orientation`.

    Returns:
        Whether masks are upright although photographs are stored turned, None if it makes no difference; and
        the decision as a phrase.

    Raises:
        DataError: The set shows neither, or both.
    """
    fits = Counter(survey.fit for survey in surveys)
    if setting != "auto":
        return setting == "upright", f"masks are {_PHRASE[setting == 'upright']}, by data.mask_orientation"
    shown, stored, either = fits[AS_SHOWN], fits[AS_STORED], fits[EITHER]
    if not shown + stored + either:
        return None, ""
    if bool(shown) != bool(stored):
        upright = bool(shown)
        return upright, f"masks are {_PHRASE[upright]}, as {shown + stored} of them show by their shape"
    if not either:
        return None, f"{shown} masks are {_PHRASE[True]}, {stored} are {_PHRASE[False]}, by their shapes"
    shapes = (
        f"the shape of {shown} masks says the first, of {stored} the second"
        if shown
        else "none of their shapes says which"
    )
    raise TwoReadingsError(
        f"{either} photographs are stored turned (EXIF), and {shapes}",
        {"upright": f"masks are {_PHRASE[True]}", "stored": f"masks are {_PHRASE[False]}"},
        hint="Choose with --set data.mask_orientation=upright or --set data.mask_orientation=stored.",
    )


def setting_of(phrase: str) -> Setting:
    """Return the setting that decides as a phrase of `masks_upright` says; auto: it says no one thing."""
    upright, stored = (_PHRASE[each] in phrase for each in (True, False))
    if upright == stored:
        return "auto"
    return "upright" if upright else "stored"


_PHRASE = {
    True: "drawn over the photograph as it is shown",
    False: "drawn over the photograph as it is stored, and are turned with it",
}
