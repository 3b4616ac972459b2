"""Names of timm's networks, read from its source: importing timm takes seconds."""

import re
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

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
