"""A benchmark measured in parts is one table."""

import json
import subprocess
import sys
import time

import pytest

from benchmarks import ablation, common


def row(name, against, rounds, **more):
    figures = {"samples_per_second": 1.0, "ratio": None, "verdict": None, "peak_bytes": 100, "failed": None}
    figures |= {"first_step_s": 1.0, "loss": 2.0, "loss_off_baseline": None}
    named = {"name": name, "title": name, "settings": {}, "against": against, "rounds": rounds}
    return {**named, **figures, **more}


def part(*rows, only=None):
    about = {"model": "resnet18", "device": "cpu", "device_name": "a processor", "seconds": 3.0}
    return {"only": only, **about, "rounds": 2, "variants": list(rows)}


def by_name(document):
    return {found["name"]: found for found in document["variants"]}


def test_a_ratio_is_taken_within_the_rounds_of_its_part():
    slow = part(row("baseline", None, [10.0, 20.0]), row("+fused", "baseline", [20.0, 40.0]))
    fast = part(row("baseline", None, [100.0]), row("+fused", "baseline", [200.0]))
    document = ablation.merged([slow, fast])
    rows = by_name(document)
    assert rows["baseline"]["rounds"] == [10.0, 20.0, 100.0]
    assert rows["baseline"]["ratio"] is None
    assert rows["+fused"]["samples_per_second"] == pytest.approx(260 / 3)  # as long spans each
    assert rows["+fused"]["ratio"] == pytest.approx({"value": 2.0, "low": 2.0, "high": 2.0})
    assert document["rounds"] == 3


def test_what_some_switches_come_to_together_is_not_everything():
    some = part(
        row("baseline", None, [10.0]),
        row("+bf16", "baseline", [5.0]),
        row("everything", "baseline", [5.0]),
        row("-bf16", "everything", [10.0]),
        only="bf16",
    )
    every = part(
        row("baseline", None, [10.0]),
        row("everything", "baseline", [30.0]),
        row("-bf16", "everything", [60.0]),
    )
    rows = by_name(ablation.merged([some, every]))
    assert set(rows) == {"baseline", "+bf16", "everything", "-bf16"}
    assert rows["everything"]["rounds"] == [30.0]
    assert rows["-bf16"]["ratio"]["value"] == pytest.approx(2.0)


def test_a_round_that_was_cut_short_counts_as_far_as_both_sides_were_measured():
    rows = by_name(
        ablation.merged(
            [part(row("baseline", None, [10.0, 10.0]), row("+fused", "baseline", [20.0])), part()]
        )
    )
    assert rows["+fused"]["ratio"]["value"] == pytest.approx(2.0)


def test_what_failed_once_and_was_measured_another_time_has_not_failed():
    failed = part(row("baseline", None, [10.0]), row("+fp16", "baseline", [], failed="no memory", loss=None))
    measured = part(row("baseline", None, [10.0]), row("+fp16", "baseline", [5.0]))
    assert by_name(ablation.merged([failed]))["+fp16"]["failed"] == "no memory"
    found = by_name(ablation.merged([measured, failed]))["+fp16"]
    assert found["failed"] is None
    assert found["loss"] == 2.0


def test_each_call_adds_its_rounds_and_leaves_the_machine(tmp_path, monkeypatch):
    asked = []

    def document_of(words, limit_s=None):
        asked.append((list(words), limit_s))
        return part(row("baseline", None, [10.0]), row("+fused", "baseline", [20.0]))

    monkeypatch.setattr(ablation, "document_of", document_of)
    monkeypatch.setattr(common, "RESULTS", tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["ablation", "bench", "unet", *words])
        ablation.main()
        return json.loads((tmp_path / "bench-unet.json").read_text())

    call("--rounds", "1", "--minutes", "2")
    document = call("--only", "fused")
    assert by_name(document)["+fused"]["rounds"] == [20.0, 20.0]
    assert document["machine"]["torch"]
    assert [limit for _, limit in asked] == [120.0, None]
    assert asked[1][0][-2:] == ["--only", "fused"]
    assert len(call("--anew")["parts"]) == 1


def test_a_command_that_takes_too_long_ends_with_what_it_has(tmp_path, monkeypatch):
    answers, ready = tmp_path / "mptui", tmp_path / "ready"
    trap = "trap 'echo {\\\"ended\\\": true}; exit 130' INT"
    answers.write_text(f"#!/bin/sh\n{trap}\ntouch {ready}\nwhile :; do sleep 0.05; done\n")
    answers.chmod(0o755)
    communicate = subprocess.Popen.communicate

    def once_it_listens(child, timeout=None):
        while not ready.exists():
            assert child.poll() is None
            time.sleep(0.01)
        return communicate(child, timeout=timeout)

    monkeypatch.setattr(sys, "executable", str(answers))
    monkeypatch.setattr(subprocess.Popen, "communicate", once_it_listens)
    assert ablation.document_of(["bench"], limit_s=0.1) == {"ended": True}


def test_a_command_that_fails_ends_with_its_own_code(monkeypatch):
    with pytest.raises(SystemExit) as ended:
        ablation.document_of(["bench", "--against", "no such claims"])
    assert ended.value.code == 2
