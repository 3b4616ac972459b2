"""`mptui run` over noise, with a time stamp at each request for a batch: a child of `benchmarks.sides`.

python -m benchmarks.timed_run CASE FIGURES run --json …   # the rest is mptui's own command line
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from benchmarks.subjects import TINY, Case, Stamps, dataset, tiny_network
from mptui.data.batch import Window
from mptui.data.loader import Loader
from mptui.runs.planning import build, find_data


class Requests(Protocol):
    """What is told of each request for a batch, and has figures at the end."""

    figures: dict[str, Any]

    def request(self) -> None: ...


def _stamp(stamps: Requests) -> None:
    """Patches training loaders to record each request for a batch."""
    windows = Loader.windows

    def stamped(loader: Loader, epoch: int, accumulate: int, start_sample: int = 0) -> Iterator[Window]:
        given = windows(loader, epoch, accumulate, start_sample)
        return _told(given, stamps) if loader.order.train else given

    Loader.windows = stamped  # type: ignore[method-assign, assignment]


def _told(windows: Iterator[Window], stamps: Requests) -> Iterator[Window]:
    while True:
        stamps.request()
        window = next(windows, None)
        if window is None:
            return
        yield window


def main(measure: Callable[[Case], Requests] = Stamps) -> None:
    """Trains and writes the figures of `measure`."""
    case, figures = Case(**json.loads(sys.argv[1])), Path(sys.argv[2])
    del sys.argv[1:3]
    stamps = measure(case)
    _stamp(stamps)

    def opened(*_args: Any, **_options: Any) -> Any:  # noqa: ANN401 - stands in for open_dataset
        return dataset(case)

    def built(*_args: Any, **_options: Any) -> Any:  # noqa: ANN401 - stands in for build
        return tiny_network()

    if not case.folder:
        find_data.open_dataset = opened  # type: ignore[attr-defined]
    if case.model == TINY:
        build.build = built  # type: ignore[attr-defined]
    from mptui.cli.main import main as command

    try:
        command()
    finally:
        figures.write_text(json.dumps(stamps.figures))


if __name__ == "__main__":
    main()
