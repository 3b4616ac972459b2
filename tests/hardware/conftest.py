import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.hardware.fake_nvml import FakeGpu, FakeNvml


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FakeNvml]]:
    """Install GPUs in this machine: `driver(h200(), t4())`."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    installed: list[FakeNvml] = []

    def install(*gpus: FakeGpu) -> FakeNvml:
        nvml = FakeNvml(list(gpus))
        nvml.install(monkeypatch)
        installed.append(nvml)
        return nvml

    yield install
    for nvml in installed:
        nvml.release.set()
    # a thread that outlives its test would continue to query, and shut down, the next test's driver
    for thread in threading.enumerate():
        if thread.name in {"device-sampler", "nvml-report"}:
            _join(thread)


def _join(thread: threading.Thread) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with contextlib.suppress(RuntimeError):  # it is listed a moment before it can be joined
            thread.join(10)
            return
