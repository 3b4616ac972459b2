"""Who decodes, measured: the commands run on a CPU, and what they leave is what the page shows."""

import pytest
import torch

from benchmarks import decoding
from tests.data.images import photo

CPU = torch.device("cpu")


@pytest.fixture
def photos(tmp_path):
    for number in range(12):
        folder = tmp_path / "photos" / f"class-{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        photo(300, 260, number).save(folder / f"{number}.jpg", quality=90)
    return tmp_path / "photos"


def test_both_ways_are_timed_in_processes_of_their_own(photos):
    for way in decoding.WAYS:
        found = decoding.in_a_process(photos, CPU, way, 1)
        assert found["images_per_second"] > 0
        assert found["cpu_ms"] > 0


def test_the_ratios_are_those_of_the_rounds(photos, monkeypatch):
    figures = {
        "cpu": {"images_per_second": 10.0, "cpu_ms": 4.0},
        "device": {"images_per_second": 30.0, "cpu_ms": 1.0},
    }
    monkeypatch.setattr(decoding, "in_a_process", lambda root, device, way, workers: figures[way])
    found = decoding.compare(photos, CPU, 2, [1])
    assert found["device_over_cpu"]["1"] == {"median": 3.0, "min": 3.0, "max": 3.0}
    assert found["cpu_time_saved"]["1"]["median"] == 4.0
    assert found["images_per_second"] == {"cpu 1": [10.0, 10.0], "device 1": [30.0, 30.0]}
    assert 0 < found["apart"]["mean"] <= found["apart"]["worst_photo"] < 4


def test_a_run_tells_its_rate_and_who_decoded(photos):
    found = decoding.trained(photos, CPU, "device", "resnet18", smoke=True)
    assert found["samples_per_second"] > 0
    assert 0 <= found["data_wait_fraction"] <= 1
    assert found["notes"] == []
