"""What the picker learns of networks and data; it imports torch or waits for a disk, so in a thread."""

from mptui.config.given import data_flags
from mptui.config.schema import DataConfig, TaskName
from mptui.text import clean

_TOLD: dict[TaskName, str] = {
    "segmentation": "images with masks",
    "classification": "images in classes",
    "diffusion": "images alone",
}


def model_names() -> list[str]:
    """Every network that can be trained."""
    from mptui.models.zoo import names

    return names()


def about_data(where: str) -> tuple[TaskName | None, str]:
    """Tell the task that the data is for (None: either), and words about it.

    Raises:
        ConfigError: There is no set of that name.
        DataError: There is no such folder, or not with data.
    """
    from mptui.data.formats.open import task_of

    if not where:
        return None, "no data named: shapes, drawn by mptui itself"
    flags = data_flags(where, "")
    name, path = flags["data.name"][1], flags["data.path"][1]
    task = task_of(DataConfig(name=name, path=path))
    known = next((name for name in _TOLD if name == task), None)
    return known, f"✓ {clean(where, 200)}" + (f": {_TOLD[known]}" if known else "")
