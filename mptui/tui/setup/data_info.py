"""What the picker learns of data; it waits for a disk, so in a thread."""

from mptui.config.given import data_flags
from mptui.config.schema import DataConfig
from mptui.registry.tasks import task_for
from mptui.text import clean


def about_data(where: str) -> tuple[str | None, str]:
    """Tell the task that the data is for (None: either), and words about it.

    Raises:
        ConfigError: There is no set of that name.
        DataError: There is no such folder, or not with data.
    """
    from mptui.data.formats.open import kind_of

    if not where:
        return None, "no data named: built-in shapes"
    flags = data_flags(where, "")
    name, path = flags["data.name"][1], flags["data.path"][1]
    kind = kind_of(DataConfig(name=name, path=path))
    if kind is None:
        return None, f"✓ {clean(where, 200)}"
    return task_for(kind), f"✓ {clean(where, 200)}: {kind.value}"
