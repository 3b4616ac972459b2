"""Fixtures of all tests: isolation from the user's settings."""

import asyncio
import functools
import gc
import os
import sys

import pytest
import typer.main
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mptui.registry import own_code
from tests import decoders, gpus, program
from tests.made.drawn import drawn_once

__all__ = ["drawn_once"]

pytest_plugins = ["pytester", "tests.cpu_time"]
pytest.register_assert_rewrite("mptui.testing")

# before torch is imported: tensors of tests are small, and threads that wait for each other burn processors
os.environ["OMP_NUM_THREADS"] = "1"
# no CUDA before the first test: a process that has asked it for its GPUs can't be forked to use one
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
# cuBLAS takes it at its first use in a process, which may be that of a test before a deterministic one
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

_TIERS = ("screen", "program", "slow", "chaos", "gpu")
_NAMED_SHELL = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"
"""Environment variable by which typer has other flags for completion."""
_MANY_MODULES = 100
_OBJECTS_BEFORE_A_SEARCH = (10_000, 20, 10)
"""Thresholds of the search for garbage, which takes an eighth of the time of a screen by those of Python."""
_LONG_S = 3600
"""Timeout of long tests, in seconds; all others have `timeout` of pyproject.toml."""


# a busy machine fails nobody, and a test fails for what was changed, not by the day
settings.register_profile(
    "mptui", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("mptui")


class Frozen:
    """Number of modules whose objects are left out."""

    modules = 0


# modules are no garbage, and to look through their million objects takes seconds: not at the exit, either
gc.disable()


def pytest_collection_finish(session):
    from tests import small_cnn  # torch takes seconds, and the process that hands out tests needs none

    small_cnn.register()  # before processes are forked
    program.import_for(session.items)
    if any(
        hasattr(item.function, "hypothesis") for item in session.items if isinstance(item, pytest.Function)
    ):
        _read_unicode_tables()
    gc.freeze()
    gc.set_threshold(*_OBJECTS_BEFORE_A_SEARCH)
    gc.enable()
    Frozen.modules = len(sys.modules)


@settings(max_examples=1, database=None)
@given(st.text())
def _read_unicode_tables(_text):
    """Let hypothesis write its tables of characters: that takes 2 s in a clean clone, of no test."""


@pytest.fixture(autouse=True)
def _no_search_in_modules():
    """Leaves out of each search for garbage what a test has imported, too: the compiler, torchvision."""
    yield
    if len(sys.modules) > Frozen.modules + _MANY_MODULES:
        gc.collect()
        gc.freeze()
        Frozen.modules = len(sys.modules)


def pytest_collection_modifyitems(items):
    for item in items:
        if asyncio.iscoroutinefunction(item.obj):  # it waits for an app
            item.add_marker("screen")
        if not any(item.get_closest_marker(tier) for tier in _TIERS):
            item.add_marker("unit")
        if item.get_closest_marker("chaos"):
            item.add_marker(pytest.mark.timeout(_LONG_S))


@pytest.hookimpl(tryfirst=True)  # before xdist counts the processes
def pytest_cmdline_main(config):
    if gpus.asked_for(config.option.markexpr):  # two processes on a GPU would share its memory and its time
        config.option.numprocesses = 0


def pytest_ignore_collect(collection_path, config):
    """Reads no files without tests for a GPU if those are asked for, nor what such files import."""
    if gpus.asked_for(config.option.markexpr) and not gpus.are_tested_in(collection_path):
        return True
    return None


def pytest_runtest_setup(item):
    if mark := item.get_closest_marker("gpu"):
        gpus.skip_what_it_lacks(
            item.callspec.params.values() if hasattr(item, "callspec") else (), *mark.args
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before the log and warnings are caught
def pytest_runtestloop(session):
    if session.items:
        program.keep_spare()
    return (yield)


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("MPTUI_")]:
            patch.delenv(name)
        patch.setenv("MPTUI_CONFIG_DIR", str(tmp_path_factory.mktemp("config")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        yield
    program.close_server()
    decoders.close_server()


@pytest.fixture(scope="session", autouse=True)
def _commands_are_built_once():
    """Keeps the command line, which typer builds at each call in 50 ms; a program calls it once."""
    build = typer.main.get_command
    built = functools.cache(lambda app, _named_shell: build(app))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", lambda app: built(app, os.environ.get(_NAMED_SHELL)))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_syncs():
    """Skips fsync: no test cuts the power, and a killed process loses no written data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def _no_switches_from_before():
    """Restores torch's global switches after each test, and gives the GPU's memory back."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.autograd.set_detect_anomaly(False)
        if torch.are_deterministic_algorithms_enabled():
            torch.use_deterministic_algorithms(False)  # imports the compiler, of 2 s
        if torch.cuda.is_initialized():  # what one test has freed, the programs of the next can take
            torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def _no_code_from_before(_no_switches_from_before, monkeypatch):
    """Restores what counts as the code of the person, whose faults are theirs, not those of mptui.

    A test's patches end before torch's switches are restored: it may have put another thing in torch's place.
    """
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(own_code, "_folders", own_code._folders.copy())
    monkeypatch.setattr(own_code, "_given", own_code._given.copy())
