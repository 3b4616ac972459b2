"""Prepared sets for tests."""

from pathlib import Path

from mptui.config.schema import DataConfig
from mptui.data.open import files_of, open_dataset
from mptui.data.prepare import ConversionRequest, prepare_set
from mptui.data.transforms import default_resize
from mptui.registry.names import SampleKind
from mptui.registry.tasks import task_for
from tests.data.images import photo

SIDE = 32
RESIZE = 64
"""Default resize at this image size."""


def prepared(data, out, *, size=SIDE, quality=95, told=lambda line: None, **settings):
    config = DataConfig(path=str(data), **settings)
    name, kind, found = files_of(config, None, lambda *_: None, lambda: False)
    order = ConversionRequest(
        name, str(task_for(kind)), found, Path(out), size, default_resize(size), quality, config
    )
    return prepare_set(order, told, lambda done, total: None, lambda: False)


def opened(path, *, kind=SampleKind.CLASS, side=SIDE, seed=0, **settings):
    heard: list[str] = []
    dataset = open_dataset(
        DataConfig(path=str(path), **settings),
        kind=kind,
        side=side,
        seed=seed,
        on_progress=lambda done, total: None,
        should_stop=lambda: False,
        on_warning=heard.append,
    )
    assert heard == list(dataset.warnings)
    return dataset


def photos(root, counts):
    """Photos large enough to be shrunk."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            photo(150 + index, 100, seed=index).save(root / name / f"{index}.jpg", quality=95)
    return root
