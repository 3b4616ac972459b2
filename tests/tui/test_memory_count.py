"""The memory of a run is counted in a process of its own where torch is not imported yet."""

import os
import sys

import pytest

from mptui.config.resolve import to_toml
from mptui.config.schema import RunConfig
from mptui.errors import MptuiError
from mptui.runs.store.directory import CONFIG
from mptui.tui import memory_count
from tests.program import server
from tests.tui.events import demo_source, footprint_of


class Child:
    """As `subprocess.Popen` of a fresh interpreter, but forked from one that has imported torch."""

    def __init__(self, call, **_pipes):
        (stdin, self._asked), (self._answer, stdout) = os.pipe(), os.pipe()
        self._process = server().start(call, streams=(stdin, stdout, None), environ=dict(os.environ))
        os.close(stdin)
        os.close(stdout)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """All is closed after the answer."""

    def communicate(self, asked):
        with os.fdopen(self._asked, "w") as file:
            file.write(asked)
        with os.fdopen(self._answer) as file:
            answer = file.read()
        self.returncode = self._process.wait()
        return answer, None


@pytest.fixture
def no_torch_here(monkeypatch):
    monkeypatch.setattr(memory_count, "start", Child)
    monkeypatch.delitem(sys.modules, "torch")


def test_a_child_counts_as_the_ledger_does_and_once_for_the_same_settings(
    tmp_path, monkeypatch, no_torch_here
):
    config = RunConfig.model_validate(
        {"model": {"name": "resnet18"}, "data": {"image_size": 32}, "training": {"batch_size": 24}}
    )
    (tmp_path / CONFIG).write_text(to_toml(config))
    started = demo_source().view.started
    assert started is not None
    found = memory_count.count_memory(tmp_path, started, "bf16")
    monkeypatch.setattr(memory_count, "start", None)
    assert memory_count.count_memory(tmp_path, started, "bf16") == found
    monkeypatch.undo()
    counted = footprint_of(config, started)
    assert (found.batch_size, found.allocated) == (counted.batch_size, counted.allocated)
    assert sum(found.parts.values()) == counted.total


def test_a_child_says_why_a_network_can_not_be_counted(tmp_path, no_torch_here):
    (tmp_path / CONFIG).write_text('[model]\nname = "timm/regnetx_002"\n[data]\nimage_size = 32\n')
    started = demo_source().view.started
    assert started is not None
    with pytest.raises(MptuiError, match="timm/regnetx_002 can't be counted"):
        memory_count.count_memory(tmp_path, started, "fp32")
