"""`docs/speed.md`: made of the results there are, whichever they are."""

import importlib.util
import json
from pathlib import Path

import pytest

from benchmarks.page import page as made
from benchmarks.page.results import Section

DOCS = Path(__file__).parents[2] / "docs"
FASTER = {"median": 2.0, "min": 1.9, "max": 2.1}
SLOWER = {"median": 0.5, "min": 0.4, "max": 0.6}
LEVEL = {"median": 1.0, "min": 0.9, "max": 1.1}


def test_the_page_is_what_the_script_makes():
    spec = importlib.util.spec_from_file_location("make_speed", DOCS / "make_speed.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert (DOCS / "speed.md").read_text(encoding="utf-8") == script.page(), (
        "python docs/make_speed.py > docs/speed.md"
    )


@pytest.fixture
def page_of(tmp_path, monkeypatch):
    monkeypatch.setattr(made, "floors", lambda: Section("Floors"))

    def page(results, date="2026-01-02"):
        about = {"cpu": "a processor", "gpu": None, "threads": 2, "torch": "9", "python": "3", "date": date}
        for name, document in results.items():
            (tmp_path / f"{name}.json").write_text(json.dumps({"machine": about, **document}))
        return made.page(tmp_path)

    return page


def peers(name="resnet18", bare=LEVEL):
    case = {"model": name, "side": 8, "batch": 32, "precision": "fp32", "compile": "off", "device": "cpu"}
    measured = {
        "case": case,
        "images_per_second": {"mptui": [90.0, 100.0, 110.0], "bare": [100.0] * 3, "timm": [50.0] * 3},
        "ratios": {"bare": bare, "timm": FASTER},
        "floor": {"operations": 4e7, "bytes": 8000, "images_per_second": 400.0},
    }
    return {"rounds": 3, "clock": "wall", "ceilings": {}, "cases": {name: measured}}


def test_a_page_without_results_tells_what_waits(page_of):
    page = page_of({})
    assert "## Beside a bare loop" not in page
    assert "`python -m benchmarks.gpu`" in page


def test_peers_stand_in_one_table_with_what_is_asked_and_the_floor(page_of):
    page = page_of({"peers-resnet18": peers()})
    assert "| `mptui run` | 100 (90.0 to 110) |  |  |" in page
    assert "| bare loop | 100 (100 to 100) | 1.00 (0.900 to 1.10) | at least 0.99 |" in page
    assert "| floor | 400 | 0.250 |  |" in page
    assert "ahead of timm in every round; level with the bare loop" in page
    assert (
        "`python -m benchmarks.peers --only resnet18 --rounds 3` on a processor, 2 threads; torch 9" in page
    )


def test_the_page_begins_with_what_is_reached_and_what_is_missed(page_of):
    page = page_of({"peers-resnet18": peers(bare=SLOWER)})
    first = page.partition("## ")[0]
    assert (
        "Of 2 figures that are asked for, 1 are reached. Missed: ResNet-18: `mptui run` over a bare" in first
    )
    row = "| ResNet-18: `mptui run` over a bare loop | at least 0.99 | 0.500 (0.400 to 0.600) | **no** |"
    assert (
        f"{row} a processor, 2 threads | `python -m benchmarks.peers --only resnet18 --rounds 3` |" in first
    )
    assert (
        "**Missed**: ResNet-18: `mptui run` over a bare loop: 0.500 (0.400 to 0.600), where at least" in page
    )


def test_a_figure_that_a_round_misses_is_not_reached_in_every_round(page_of):
    assert "| 1.00 (0.900 to 1.10) | yes, not in every round |" in page_of({"peers-resnet18": peers()})


def test_a_part_gives_way_to_the_whole_that_was_taken_later(page_of):
    page_of({"peers-resnet18": peers()}, date="2026-01-01")
    assert page_of({"peers": peers()}).count("### ResNet-18") == 1
    assert page_of({"peers-resnet18": peers()}, date="2026-01-03").count("### ResNet-18") == 2


def test_what_has_a_result_does_not_wait_for_a_gpu(page_of):
    page = page_of({"peers-cuda": peers()})
    assert "`python -m benchmarks.peers --device cuda --rounds 3` on" in page
    assert "ResNet-50 at 224 and a U-Net at 512 beside Lightning" not in page


def test_a_result_that_no_section_knows_is_named(page_of):
    assert "doesn't show: `other.json`" in page_of({"other": {"figure": 1}})


def choices(right="3 of 3"):
    chosen = {"precision": "fp32", "layout": "last", "update": "fused"}
    seconds = {"fp32 last": 0.1, "fp32 first": 0.2, "update fused": 0.01, "update foreach": 0.0123}
    return {
        "side": 64,
        "trials": 3,
        "seconds": seconds,
        "chosen": [chosen] * 3,
        "right": dict.fromkeys(chosen, "3 of 3") | {"update": right},
        "last_over_first": {"fp32": FASTER, "bf16": LEVEL},
        "table": "fp32",
    }


def test_a_wrong_choice_is_told(page_of):
    page = page_of({"choices": {"resnet18": choices(), "resnet50": choices("1 of 3")}})
    assert "| ResNet-18 at 64 px | fp32, channels last, fused | 3 of 3 | 3 of 3 | 3 of 3 |" in page
    assert "| step in fp32, channels first | 200 | 200 |" in page
    assert "2.00 (1.90 to 2.10) and ResNet-50 at 64 px 2.00 (1.90 to 2.10) (asked: at least 1.1)" in page
    assert "| ResNet-18 at 64 px: wrong choices of `auto` | at most 0 % | 0 % | yes |" in page
    assert "| ResNet-50 at 64 px: wrong choices of `auto` | at most 0 % | 22 % | **no** |" in page


def test_compiling_tells_starts_and_steps(page_of):
    def run(start):
        return {"start_s": start, "validation_s": 1.5, "step_s": 0.125}

    measured = {name: [run(start)] * 3 for name, start in (("first", 30.0), ("again", 3.0), ("eager", 1.0))}
    ratios = {"second_start": SLOWER, "second_validation": SLOWER, "eager_over_compiled": FASTER}
    blocks = {
        "blocks_over_whole": {"first": SLOWER, "again": LEVEL},
        "blocks_over_whole_step": FASTER,
        "blocks_over_whole_memory": LEVEL,
        "eager_over_whole_step": FASTER,
        "gradient_error": {"whole": 1e-6, "blocks": 2e-6, "nested": 0.01},
    }
    page = page_of(
        {
            "compiling-resnet18": {"rounds": 3, "resnet18": {**measured, **ratios}},
            "compiling-blocks": {"rounds": 3, "vit": blocks},
        }
    )
    assert "| ResNet-18, nothing kept | 30.0 | 1.50 | 125 |" in page
    assert "2.00 (1.90 to 2.10) times as long as a compiled one: a gain, by 3 rounds" in page
    assert "| ViT-B/16 | 0.500 (0.400 to 0.600) | 1.00 (0.900 to 1.10) | 2.00 (1.90 to 2.10) |" in page
    assert "each step by blocks is a loss, and runs compile the whole" in page
    assert "1e-06 off eager ones (whole), 2e-06 (blocks), 0.01 (torch's nested regions)" in page
    assert "**Missed**: ResNet-18: a start with compiled code kept" in page


def switch(name, ratio, verdict, **more):
    figures = {"samples_per_second": 100.0, "peak_bytes": 2 << 30, "failed": None, "claim": None}
    over = None if ratio is None else {"median": ratio, "low": ratio - 0.1, "high": ratio + 0.1}
    return {
        "name": name,
        "title": name.replace("+", "+ "),
        **figures,
        "ratio": over,
        "verdict": verdict,
        **more,
    }


def test_each_switch_stands_beside_what_guides_promise(page_of):
    variants = [
        switch("baseline", None, None),
        switch("+bf16", 0.5, "slower", claim={"speed": 2.0, "memory": 0.5}, peak_bytes=1 << 30),
        switch("+fused", 1.0, "same"),
        switch("+fp16", None, None, samples_per_second=None, peak_bytes=None, failed="no result within 90 s"),
        switch("everything", 1.5, "faster", claim={"speed": 3.5, "memory": None}),
        switch("-fused", 0.9, "same"),
    ]
    bench = {"model": "resnet18", "device_name": "x", "rounds": 6, "seconds": 3.0, "variants": variants}
    page = page_of({"bench-resnet18": bench})
    assert "| bf16 | 100 | 0.500 (0.400 to 0.600) |  | 50 % | 2 times, 50 % memory |" in page
    assert "| fused | 100 | 1.00 (0.900 to 1.10), noise | 0.900 (0.800 to 1.00), noise | 100 % |  |" in page
    assert "| fp16 | no result within 90 s | – |  | – |  |" in page
    assert "Alone slower: bf16. Alone no more than noise: fused." in page
    assert "1.50 (1.40 to 1.60) times the baseline where guides promise 3.5" in page
    assert "`python -m benchmarks.ablation bench resnet18` on a processor" in page


def test_tuning_tells_what_was_tried_and_kept(page_of):
    over = {"median": 1.5, "low": None, "high": None}
    tried = [
        {"value": "true", "ratio": over, "failed": None},
        {"value": "max", "ratio": None, "failed": "no memory"},
    ]
    page = page_of(
        {
            "tune-resnet18": {
                "model": "resnet18",
                "findings": [{"name": "compile", "before": "off", "kept": "true", "tried": tried}],
                "untried": ["workers"],
                "ratio": {"median": 1.5, "low": 1.25, "high": 1.75},
                "ratio_rounds": 4,
                "seconds": 600.0,
                "runs": 20,
            }
        }
    )
    assert "| compile | off | true 1.50 (one round); max no memory | true |" in page
    assert "All of it is 1.50 (1.25 to 1.75) times as fast as the start, by 4 rounds." in page
    assert "There was no time for workers. It took 20 runs in 10.0 minutes." in page


def test_a_gpu_has_its_networks_its_memory_and_its_photos(page_of):
    measured = {
        "images_per_second": {"mptui bf16": [200.0], "mptui fp32": [100.0]},
        "floor": {"images_per_second": 400.0},
        "floor_share": SLOWER,
        "amp_over_tf32": FASTER,
        "amp_over_fp32": FASTER,
        "memory": {"peak_bytes": {"fp32": 2 << 30, "amp": 1 << 30}, "amp": {"share": 0.5}},
    }
    photos = {"images_per_second": {"mptui": [9.0], "plain script": [2.0]}, "over_plain_script": FASTER}
    page = page_of({"gpu": {"rounds": 1, "unet": measured, "photos": photos}})
    assert "| AMP as a share of the floor | 0.500 (0.400 to 0.600) | at least 0.55 |" in page
    assert "| amp | 1,024 | 50 % | at most 55 % |" in page
    assert "| U-Net: memory of amp as a share of FP32's | at most 55 % | 50 % | yes |" in page
    assert "**Missed**: Photos: everything together over a plain FP32 script" in page


def test_a_scan_tells_both_openings(page_of):
    told = {"files": 1200, "wall_s": 2.5, "cpu_s": 1.0, "children_cpu_s": 0.5, "bytes_a_file": 80.0}
    told["peak_bytes"] = 512 << 20
    scan = {"first": told, "second": told}
    page = page_of({"cache-scan": {"scan": scan}})
    assert "Opening a set of 1,200 files" in page
    assert "| second opening | 2.50 | 1.50 | 80.0 | 512 |" in page


def test_who_decodes_is_told_by_workers_and_by_runs(page_of):
    rates = {"cpu 1": [100.0], "device 1": [400.0]}
    both = {
        "images": 1000,
        "workers": [1],
        "images_per_second": rates,
        "cpu_ms": {"cpu 1": [4.0], "device 1": [0.5]},
        "device_over_cpu": {"1": {"median": 4.0, "min": 3.9, "max": 4.1}},
        "apart": {"mean": 1.25, "worst_photo": 3.0},
    }
    one = {"samples_per_second": 90.0, "data_wait_fraction": 0.5, "notes": []}
    chose = {"samples_per_second": 300.0, "data_wait_fraction": 0.0, "notes": ["JPEG on the device"]}
    runs = {"model": "resnet50", "rounds": {"cpu": [one], "auto": [chose]}, "auto_over_best": LEVEL}
    page = page_of({"decoding": {"input": both, "runs": runs}})
    assert "| 1 worker | 100 | 400 | 4.00 | 0.500 | 4.00 (3.90 to 4.10) |" in page
    assert "| `data.decode = auto` | 300 | 0 % | JPEG on the device |" in page
    assert "`auto` reaches 1.00 (0.900 to 1.10) of the better way" in page
    assert "`python -m benchmarks.decoding` |" not in page
