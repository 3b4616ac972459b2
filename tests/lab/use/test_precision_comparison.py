"""A trained run in several precisions, on its own validation samples."""

import importlib.util
import itertools
import logging
from functools import partial
from logging.handlers import BufferingHandler
from types import SimpleNamespace

import pytest
import torch

from mptui.errors import ConfigError
from mptui.lab.use import forward_speed, precisions
from mptui.lab.use.evaluate import evaluate_run
from mptui.lab.use.precisions import compare_precisions, precision_names
from mptui.lab.use.trained import open_trained

slow = partial(pytest.param, marks=pytest.mark.slow)

has_torchao = importlib.util.find_spec("torchao") is not None


def ignore(*_):
    pass


@pytest.fixture(autouse=True)
def _each_pass_takes_a_second(monkeypatch):
    monkeypatch.setattr(forward_speed, "time", SimpleNamespace(perf_counter=itertools.count().__next__))


def rows_of(run, *names):
    trained = open_trained(run, flags={"data.workers": ("--workers", 0)}, note=ignore)
    before = {name: value.clone() for name, value in trained.model.state_dict().items()}
    found = compare_precisions(trained, {}, names, compiled=False, on_progress=ignore, note=ignore)
    after = trained.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert all(after[name].dtype == value.dtype for name, value in before.items())
    return trained, {row.precision: row for row in found.rows}


@pytest.mark.parametrize("run", ["classifier", slow("segmenter"), slow("generator")])
def test_each_precision_is_measured_on_the_validation_set(run, request):
    run = request.getfixturevalue(run)
    trained, rows = rows_of(run, "fp32", "fp16", "bf16")

    alone = evaluate_run(trained, {}, listed=0, on_progress=ignore, note=ignore).result
    assert trained.precision.name == "fp32"
    assert rows["fp32"].result.metrics == alone.metrics
    assert rows["fp32"].result.loss == alone.loss
    for row in rows.values():
        assert row.images_per_second > 0
        assert row.result.loss == pytest.approx(alone.loss, rel=0.1)
    assert rows["bf16"].result.loss != alone.loss
    assert rows["fp16"].weight_bytes == rows["bf16"].weight_bytes < 0.75 * rows["fp32"].weight_bytes


@pytest.mark.slow
def test_sixteen_bit_weights_give_the_results_of_autocast(segmenter):
    _, rows = rows_of(segmenter, "bf16")
    under_autocast = open_trained(segmenter, flags={"precision.mode": ("--precision", "bf16")}, note=ignore)
    alone = evaluate_run(under_autocast, {}, listed=0, on_progress=ignore, note=ignore).result
    assert under_autocast.precision.name == "bf16"
    assert (rows["bf16"].result.loss, rows["bf16"].result.metrics) == (alone.loss, alone.metrics)


@pytest.mark.skipif(not has_torchao, reason="torchao is not installed")
@pytest.mark.parametrize(
    "run",
    ["classifier", slow("segmenter"), slow("generator")],
)
def test_int8_has_a_quarter_of_the_weights_and_about_the_same_results(run, request, monkeypatch):
    trained, logged = request.getfixturevalue(run), BufferingHandler(1000)
    monkeypatch.setattr(logging.getLogger("torch.utils._pytree"), "handlers", [logged])
    _, rows = rows_of(trained, "int8", "fp32")
    assert not any("Enum" in record.getMessage() for record in logged.buffer)  # at torchao's import

    assert list(rows) == ["int8", "fp32"]
    exact, rounded = rows["fp32"], rows["int8"]
    assert rounded.result is not None, rounded.note
    assert rounded.result.loss == pytest.approx(exact.result.loss, rel=0.2)
    assert rounded.result.loss != exact.result.loss
    assert rounded.weight_bytes < 0.6 * exact.weight_bytes
    assert rounded.images_per_second is None
    assert "computed in fp32" in rounded.note


@pytest.mark.skipif(not has_torchao, reason="torchao is not installed")
def test_a_network_that_cant_be_rounded_is_a_row_with_the_reason(segmenter, monkeypatch):
    def refuse(model, calibration):
        raise RuntimeError("unsupported\nand more")

    monkeypatch.setattr(precisions, "rounded_to_int8", refuse)
    _, rows = rows_of(segmenter, "fp32", "int8")
    assert rows["int8"].result is None
    assert rows["int8"].note == "this network can't be rounded: unsupported"
    assert rows["fp32"].result is not None


def test_names_of_precisions(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert precision_names("bfloat16, fp32,bf16") == ["bf16", "fp32"]
    with pytest.raises(ConfigError, match="fp8"):
        precision_names("fp32,fp8")
    with pytest.raises(ConfigError, match="no such precision"):
        precision_names(",")
    with pytest.raises(ConfigError, match="torchao not installed") as refused:
        precision_names("all")
    assert "mptui[int8]" in refused.value.hint
