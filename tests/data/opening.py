"""Sets opened as a run opens them."""

from mptui.config.schema import DataConfig
from mptui.data.open import open_dataset
from mptui.registry.names import SampleKind


def opened(path=None, *, kind=SampleKind.CLASS, progress=None, should_stop=lambda: False, seed=0, **settings):
    heard: list[str] = []
    dataset = open_dataset(
        DataConfig(path=None if path is None else str(path), **settings),
        kind=kind,
        side=32,
        seed=seed,
        on_progress=lambda done, total: None if progress is None else progress.append((done, total)),
        should_stop=should_stop,
        on_warning=heard.append,
    )
    assert heard == list(dataset.warnings)
    return dataset


def opened_masks(root, **settings):
    data = DataConfig(path=str(root), bad_sample_budget=settings.pop("budget", 0.0), **settings)
    return open_dataset(
        data,
        kind=SampleKind.MASK,
        side=64,
        seed=0,
        on_progress=lambda done, total: None,
        should_stop=lambda: False,
        on_warning=lambda message: None,
    )
