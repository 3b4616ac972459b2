"""The doctor's checks of a run's configuration and data, on machines of several kinds."""

import re
import sysconfig
from dataclasses import replace

import pytest

from mptui.data.open import shapes
from mptui.data.types import Dataset, Problem
from mptui.hardware.devices import Machine
from mptui.hardware.torch_view import TorchView
from mptui.io.read_speed import ReadSpeed
from mptui.lab.doctor import data
from mptui.lab.doctor.data import check_data
from mptui.lab.doctor.examine import check_configuration
from mptui.lab.doctor.findings import exit_code
from mptui.registry.names import SampleKind
from mptui.runs.planning.plan import Request
from tests.data.images import class_folders
from tests.hardware.machines import HOST, RTX_3090, T4, cpu

TORCH = TorchView(version="2.12.0", cuda="13.0")


def machine(*devices):
    return Machine(host=HOST, driver=None, cuda=None, torch=TORCH, devices=[*devices, cpu()], notes=[])


def look(*sets, on=None, with_torch=True):
    """Return the plan, and advice and errors by name, of such settings on such a device."""
    request = Request(None, {}, ("model.name=resnet18", *sets))
    devices = [on] if on else []
    plan, found = check_configuration(request, machine(*devices), with_torch=with_torch)
    return plan, {f.name: f for f in found if f.state != "ok"}


def test_settings_that_suit_the_machine_are_in_order():
    plan, found = look(on=RTX_3090)
    assert plan is not None
    assert not found


@pytest.mark.parametrize(
    ("sets", "on", "name", "do"),
    [
        (["precision.mode=bf16"], T4, "precision.mode", "--precision fp16"),
        (["training.batch_size=30"], RTX_3090, "training.batch_size", "--batch-size 32"),
        (["training.batch_size=1"], None, "training.batch_size", "--batch-size 2"),
        (["data.workers=17"], None, "data.workers", "--workers 15"),
        (["guards.on_nan=ignore", "precision.mode=fp16"], None, "guards.on_nan", "guards.on_nan=rollback"),
        (["guards.detect_anomaly=true"], None, "guards", "guards."),
        (
            ["precision.mode=bf16", "training.clip_grad_norm=none"],
            None,
            "training.clip_grad_norm",
            "clip_grad_norm=1.0",
        ),
    ],
)
def test_what_does_not_suit_the_machine_is_advice(sets, on, name, do):
    plan, found = look(*sets, on=on)
    assert plan is not None
    assert found[name].state == "advice"
    assert do in found[name].do


def test_a_compiler_that_is_not_there_is_told_before_it_is_missed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    _, found = look("speed.compile=default")
    assert "a C compiler" in found["speed.compile"].what
    (tmp_path / "cc").touch(mode=0o755)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    _, found = look("speed.compile=default")
    assert "Python's headers" in found["speed.compile"].what
    (tmp_path / "Python.h").touch()
    assert "speed.compile" not in look("speed.compile=default")[1]


@pytest.mark.parametrize(
    ("sets", "word"),
    [
        (["training.epoch=3"], "training.epochs"),
        (["model.name=resnet81"], "resnet81"),
        (["hardware.device=cuda:7"], "cuda:7"),
        (["guards.detect_anomaly=true", "speed.compile=default"], "speed.compile"),
    ],
)
def test_a_conflict_is_an_error_of_the_configuration(sets, word):
    request = Request(None, {}, tuple(sets))
    plan, found = check_configuration(request, machine(), with_torch=True)
    assert plan is None
    assert exit_code(found) == 2
    assert word in found[0].what


def test_without_a_torch_that_works_the_values_alone_are_checked():
    assert look(with_torch=False) == (None, {})
    assert look("training.epoch=3", with_torch=False)[1]["values"].state == "error"


def test_broken_files_are_advice_within_the_budget_and_an_error_beyond_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    class_folders(tmp_path / "data", {"cat": 40, "dog": 2})
    (tmp_path / "data/cat/torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing more")
    sets = [f"data.path={str(tmp_path / 'data')!r}", "data.image_size=64"]
    seen = []
    plan, _ = look(*sets, "data.bad_sample_budget=0.5")
    found = check_data(plan, lambda done, total: seen.append((done, total)))
    by_name = {f.name: f for f in found}
    found = [f for f in found if f.name not in {"warning", "read speed"}]
    assert {f.state for f in found} == {"ok", "advice"}
    assert {"classes", "file", "image_size"} <= {f.name for f in found if f.state == "advice"}
    assert "torn.jpg" in by_name["file"].what
    assert "dog 2" in by_name["classes"].what or "dog 1" in by_name["classes"].what
    assert "--set data.image_size=32" in by_name["image_size"].do
    assert re.search(r"[\d,]+ MiB/s, [\d,]+ files/s, in random order", by_name["read speed"].what)
    assert seen[-1] == (43, 43)

    plan, _ = look(*sets, "data.bad_sample_budget=0")
    strict = check_data(plan, lambda done, total: None)
    assert exit_code(strict) == 3
    assert any("torn.jpg" in f.what for f in strict)


def test_data_that_is_not_there_is_an_error_of_the_data(tmp_path):
    request = Request(None, {}, (f"data.path={str(tmp_path / 'gone')!r}",))
    plan, found = check_configuration(request, machine(), with_torch=True)
    assert plan is None
    assert exit_code(found) == 3


def test_a_long_list_of_broken_files_is_cut(monkeypatch):
    plan, _ = look()
    problems = tuple(Problem(f"{index}.png", "truncated") for index in range(50))
    half = shapes(SampleKind.CLASS, 8, 32, 0).train
    dataset = Dataset("x", SampleKind.CLASS, ("a",), half, half, problems=problems, class_counts=[5])
    monkeypatch.setattr(data, "open_dataset", lambda *_, **__: replace(dataset))
    told = [f for f in check_data(plan, lambda done, total: None) if f.name == "file"]
    assert len(told) == 21
    assert "30 more" in told[-1].what


@pytest.mark.parametrize(
    ("speed", "state", "word"),
    [
        (ReadSpeed(200 << 20, 50, 1.0, 0.0), "ok", "from the disk"),
        (ReadSpeed(20 << 20, 5000, 1.0, 0.0), "ok", "from the disk"),
        (ReadSpeed(20 << 20, 50, 1.0, 0.0), "advice", "slow"),
        (ReadSpeed(20 << 20, 50, 1.0, 0.5), "ok", "50% of it from memory: the disk may be slower"),
        (ReadSpeed(20 << 20, 50, 1.0, None), "ok", "perhaps from memory"),
    ],
)
def test_a_disk_is_slow_only_if_it_was_the_disk_that_was_read(tmp_path, monkeypatch, speed, state, word):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(data, "measure_read_speed", lambda place: speed)
    class_folders(tmp_path / "data", {"cat": 5, "dog": 5})
    plan, _ = look(f"data.path={str(tmp_path / 'data')!r}")
    (found,) = (f for f in check_data(plan, lambda done, total: None) if f.name == "read speed")
    assert found.state == state
    assert word in found.what
