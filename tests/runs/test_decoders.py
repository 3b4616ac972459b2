"""Who decodes the JPEG files of a run: measured on a CUDA device, said and kept; else the workers."""

import os
from dataclasses import fields, replace

import psutil
import pytest
import tomli
import torch

from mptui.data.decode import device_jpeg
from mptui.data.formats.open import open_dataset
from mptui.events import PhaseChanged, Warned
from mptui.hardware.devices import Device
from mptui.registry.samples import SampleKind
from mptui.runs.planning import autoselect, decoders
from mptui.runs.planning.autoselect import Decider
from mptui.runs.planning.plan import Request, plan_run
from mptui.runs.session.session import Session
from mptui.runs.store.directory import create_run, read_summary
from tests.data.images import photo
from tests.runs.test_decide import Card

LIMIT_S = 300.0


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path):
    for number in range(20):
        folder = tmp_path / "photos" / f"class-{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        photo(60, 45, number).save(folder / f"{number}.jpg", quality=90)
    return tmp_path / "photos"


def plan_of(photos, **changed):
    settings = {
        "model.name": "resnet18",
        "data.path": str(photos),
        "data.image_size": 32,
        "data.workers": 1,
        "data.cache": "off",
        "training.batch_size": 4,
        "training.epochs": 1000,
        "hardware.device": "cpu",
        "precision.mode": "fp32",
        "speed.channels_last": True,
        "speed.fused": True,
        **changed,
    }
    return plan_run(Request("stable", {k: ("test", v) for k, v in settings.items()}, (), os.environ))


def as_if_cuda(plan):
    """The plan of a GPU whose tensors happen to be the host's."""
    known = {field.name: getattr(plan.device, field.name) for field in fields(plan.device)}
    return replace(plan, device=HostAsCard(**{**known, "kind": "cuda", "name": "a card"}))


class HostAsCard(Device):
    @property
    def torch_name(self):
        return "cpu"


def decided(plan, folder, monkeypatch, *, step_s=1.0, emit=lambda event: None):
    monkeypatch.setattr(autoselect, "StepTimer", lambda *_: Steps(step_s))
    dataset = open_dataset(
        plan.config.data,
        kind=SampleKind.CLASS,
        side=32,
        seed=0,
        on_progress=lambda done, total: None,
        should_stop=lambda: False,
        on_warning=print,
    )
    return Decider(folder, False, emit, lambda: None).decide(plan, torch.nn.Identity(), dataset)


class Steps(Card):
    """A card whose steps take so many seconds."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def step(self, precision, *, channels_last):
        return self._takes(self.seconds)


@pytest.mark.parametrize(
    ("workers_s", "device_s", "step_s", "taken", "why"),
    [
        (1.0, 0.1, 0.2, "device", "3.33x JPEG decoded by the workers here"),
        (0.4, 0.1, 0.5, "cpu", "1.20x JPEG decoded on the device here"),  # they keep up
        (0.6, 0.05, 0.5, "cpu", "JPEG decoded on the device gains only 1.09x here"),
    ],
)
def test_the_device_decodes_where_that_is_clearly_faster(
    photos, tmp_path, monkeypatch, workers_s, device_s, step_s, taken, why
):
    def reading(self, loader, epoch):
        return device_s if isinstance(loader._transfer, device_jpeg.Decoding) else workers_s

    monkeypatch.setattr(decoders.Readings, "_reading", reading)
    plan = decided(as_if_cuda(plan_of(photos)), tmp_path, monkeypatch, step_s=step_s)
    assert plan.config.data.decode == taken
    assert plan.resolved.sources["data.decode"].startswith(f"chosen: {why}")
    assert any(why in note for note in plan.notes)


def test_it_is_measured_with_the_files_once_and_no_worker_stays(photos, tmp_path, monkeypatch):
    plan = as_if_cuda(plan_of(photos))
    told: list[PhaseChanged] = []
    others = set(psutil.Process().children())
    first = decided(plan, tmp_path, monkeypatch, step_s=0.0, emit=told.append)
    assert first.config.data.decode in {"cpu", "device"}
    assert {event.detail for event in told} == {
        "measuring JPEG decoded by the workers",
        "measuring JPEG decoded on the device",
    }
    left = set(psutil.Process().children()) - others
    assert not [child for child in left if child.status() != psutil.STATUS_ZOMBIE]
    monkeypatch.setattr(decoders.Readings, "timer", lambda *_: pytest.fail("measured again"))
    assert decided(plan, tmp_path, monkeypatch).config.data.decode == first.config.data.decode


@pytest.mark.parametrize(
    "why",
    [
        {"data.decode": "cpu"},
        {"data.cache": "device"},
        {"training.deterministic": True},
        {"training.epochs": 3},
        {"data.path": None, "data.name": "shapes", "data.samples": 16},
    ],
    ids=str,
)
def test_where_nothing_is_to_be_decided_nothing_is_measured(photos, tmp_path, monkeypatch, why):
    monkeypatch.setattr(decoders.Readings, "timer", lambda *_: pytest.fail("measured"))
    monkeypatch.setattr(decoders, "why_not", lambda *_: pytest.fail("tried"))
    plan = as_if_cuda(plan_of(photos, **why))
    found = decided(plan, tmp_path, monkeypatch)
    assert found.config.data.decode == plan.config.data.decode


def test_on_a_processor_nothing_is_measured_and_workers_decode(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(decoders.Readings, "timer", lambda *_: pytest.fail("measured"))
    plan = decided(plan_of(photos), tmp_path, monkeypatch)
    assert plan.config.data.decode == "auto"


def test_a_device_that_can_not_decode_is_out(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(decoders, "why_not", lambda device: "no nvJPEG")
    plan = decided(as_if_cuda(plan_of(photos)), tmp_path, monkeypatch)
    assert plan.config.data.decode == "cpu"
    assert "the only one that could take a step here" in plan.resolved.sources["data.decode"]


def run_to_the_end(tmp_path, plan):
    path = create_run(tmp_path, "test", "resnet18", None)
    session = Session(plan, path)
    heard = session.listen()
    session.start()
    assert session.wait(LIMIT_S)
    assert session.result.exit_code == 0
    warned = [
        event.message for event in heard.drain() if isinstance(event, Warned) and event.code == "decode"
    ]
    return path, warned, tomli.loads((path / "run.toml").read_text())["data"]["decode"]


def test_a_run_trains_to_the_same_figures_whoever_decodes(photos, tmp_path, monkeypatch):
    calls: list[int] = []
    plain = device_jpeg.decoded

    def counted(files, device):
        calls.append(len(files))
        return plain(files, device)

    monkeypatch.setattr(device_jpeg, "decoded", counted)
    losses = {}
    for decode in ("cpu", "device"):
        plan = plan_of(photos, **{"data.decode": decode, "training.epochs": 2, "training.lr": 0.001})
        path, warned, kept = run_to_the_end(tmp_path, plan)
        assert (warned, kept) == ([], decode)
        assert bool(calls) == (decode == "device")
        losses[decode] = read_summary(path)["final"]["train_loss"]
    assert losses["device"] == pytest.approx(losses["cpu"], rel=0.05)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"data.path": None, "data.name": "shapes", "data.samples": 16}, "the set has no files"),
        ({"data.cache": "ram"}, "data.cache = ram keeps what the workers decode"),
    ],
)
def test_where_the_device_can_not_decode_it_is_said_and_workers_do(photos, tmp_path, changed, why):
    plan = plan_of(photos, **{"data.decode": "device", "training.epochs": 1, **changed})
    _, warned, kept = run_to_the_end(tmp_path, plan)
    assert warned == [f"data.decode = device: {why}; the workers decode"]
    assert kept == "cpu"
