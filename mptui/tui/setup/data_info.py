"""Inspects data for the picker; it reads the disk, so it runs in a thread."""

from mptui.config.given import data_flags
from mptui.config.schema import DataConfig
from mptui.registry.own_code import is_own
from mptui.registry.tasks import task_for
from mptui.text import clean


def about_data(where: str) -> tuple[str | None, str]:
    """Return the task of the data (None: any), and a description.

    Raises:
        ConfigError: The set doesn't exist.
        DataError: The folder doesn't exist or has no data.
    """
    from mptui.data.formats.open import kind_of

    if not where:
        return None, "no data named: shapes"
    flags = data_flags(where, "")
    name, path = flags["data.name"][1], flags["data.path"][1]
    if is_own(name):
        return None, "✓ your own data, opened when the run starts"
    kind = kind_of(DataConfig(name=name, path=path))
    if kind is None:
        return None, f"✓ {clean(where, 200)}"
    return task_for(kind), f"✓ {clean(where, 200)}: {kind.value}"
