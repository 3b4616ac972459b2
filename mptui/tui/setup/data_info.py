"""What the picker learns of networks and data; it imports torch or waits for a disk, so in a thread."""

from mptui.config.given import data_flags
from mptui.config.schema import DataConfig, TaskName
from mptui.text import clean


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
    from mptui.data.formats.open import kind_of
    from mptui.tasks.samples import task_for

    if not where:
        return None, "no data named: shapes, drawn by mptui itself"
    flags = data_flags(where, "")
    name, path = flags["data.name"][1], flags["data.path"][1]
    kind = kind_of(DataConfig(name=name, path=path))
    return task_for(kind), f"✓ {clean(where, 200)}" + (f": {kind.value}" if kind else "")
