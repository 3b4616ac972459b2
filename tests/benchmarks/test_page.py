"""`docs/speed.md`: made of the results there are, whatever their shape."""

import importlib.util
import json
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def make_speed():
    spec = importlib.util.spec_from_file_location("make_speed", DOCS / "make_speed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_script_makes(make_speed):
    assert (DOCS / "speed.md").read_text(encoding="utf-8") == make_speed.page(), (
        "python docs/make_speed.py > docs/speed.md"
    )


@pytest.fixture
def page_of(make_speed, tmp_path, monkeypatch):
    monkeypatch.setattr(make_speed, "RESULTS", tmp_path)

    def page(**results):
        for name, document in results.items():
            about = {
                "cpu": "a processor",
                "gpu": None,
                "threads": 2,
                "date": "2026-01-02",
                **document.pop("machine", {}),
            }
            (tmp_path / f"{name}.json").write_text(json.dumps({"machine": about, **document}))
        return make_speed.page()

    return page


def test_a_result_of_an_unknown_shape_is_a_table(page_of):
    page = page_of(
        saving={
            "blocks": {"seconds": [3.0, 1.0, 2.0], "whole": True},
            "speed": {"ratio": {"median": 1.25, "min": 1.0, "max": 1.5}, "asked": 1.2},
            "memory": {"grown_bytes": 12345, "asked_at_most": 20000},
        }
    )
    assert "`python -m benchmarks.saving` on a processor, 2 threads" in page
    assert "| blocks · seconds | 2 (1 to 3) |  |" in page
    assert "| blocks · whole | yes |  |" in page
    assert "| speed · ratio | 1.250 (1.000 to 1.500) | 1.2 |" in page
    assert "| memory · grown bytes | 12,345 |  |" in page
    assert "| memory · asked |  | at most 20,000 |" in page


def peers(date="2026-01-02"):
    return {
        "machine": {"date": date},
        "rounds": 3,
        "clock": "wall",
        "ceilings": {"operations_s": 1e11, "bytes_s": 2e10},
        "cases": {
            "tiny": {
                "case": {"model": "tiny", "side": 8, "batch": 32, "precision": "fp32", "compile": "off"},
                "images_per_second": {"mptui": [90.0, 100.0, 110.0], "bare": [100.0, 100.0, 100.0]},
                "ratios": {"bare": {"median": 1.0, "min": 0.9, "max": 1.1, "asked": 0.99}},
                "floor": {"operations": 4e7, "bytes": 8000, "images_per_second": 400.0},
            }
        },
    }


def test_peers_stand_beside_the_floor(page_of):
    page = page_of(peers=peers())
    assert "| mptui | 100 (90 to 110) |  |  |" in page
    assert "| bare | 100 (100 to 100) | 1.000 (0.900 to 1.100) | 0.99 |" in page
    assert "so 400 images a second at those ceilings; `mptui run` reaches 0.25 of it." in page


def test_a_part_gives_way_to_the_whole_that_was_taken_later(page_of):
    names = {"peers": peers("2026-01-02"), "peers-tiny": peers("2026-01-01")}
    assert "## peers-tiny" not in page_of(**names)
    assert "## peers-tiny" in page_of(**{"peers-tiny": peers("2026-01-03")})


def test_what_has_no_result_waits_for_a_gpu(page_of):
    assert "python -m benchmarks.gpu" in page_of(peers=peers())
    assert "python -m benchmarks.peers --device cuda" not in page_of(**{"peers-cuda": peers()})
