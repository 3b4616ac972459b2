"""Rows of the ring buffer arrive in order, each once, for any pattern of writes and reads."""

import math
import random

import pytest
import torch

from mptui.engine.reporting import reporter
from mptui.engine.reporting.reporter import COLUMNS, Meter
from tests.engine.small import CPU

CAPACITY = 512


@pytest.fixture(autouse=True)
def _small_ring(monkeypatch):
    monkeypatch.setattr(reporter, "CAPACITY", CAPACITY)


def write(meter, step, loss=None):
    values = (step if loss is None else loss, step * 2.0, step % 2, 1024.0, 0.5)
    meter.write(tuple(torch.tensor(float(v)) for v in values), (step, 1 + step // 100, step % 100, 8, 0))


def rows_of(arrived):
    return [row for part in arrived for row in part.rows]


def test_rows_come_out_in_order_each_once_as_the_ring_goes_round():
    meter, chance, rows = Meter(CPU), random.Random(0), []
    for step in range(3 * CAPACITY):
        write(meter, step)
        if meter.full or chance.random() < 0.016:
            meter.send({})
        if chance.random() < 0.008:
            rows += rows_of(meter.read())
    meter.send({})
    rows += rows_of(meter.read(wait=True))
    assert [row.step for row in rows] == list(range(3 * CAPACITY))
    assert [row.loss for row in rows] == [float(step) for step in range(3 * CAPACITY)]
    assert rows_of(meter.read(wait=True)) == []


def test_a_row_has_what_was_written():
    meter = Meter(CPU)
    write(meter, 205)
    meter.send({})
    (row,) = rows_of(meter.read())
    assert (row.step, row.epoch, row.epoch_step, row.samples) == (205, 3, 5, 8)
    assert (row.loss, row.grad_norm, row.refused, row.loss_scale, row.lr) == (205.0, 410.0, True, 1024.0, 0.5)
    assert len(COLUMNS) == 5


def test_rows_that_were_sent_do_not_change_any_more():
    meter = Meter(CPU)
    sums = {"count": torch.zeros(())}
    for step in range(CAPACITY):
        write(meter, step)
    meter.send(sums)
    sums["count"].fill_(7)
    for step in range(CAPACITY):
        write(meter, step, loss=-1.0)
    (part,) = meter.read()
    assert part.rows[0].loss == 0.0
    assert part.sums["count"] == 0


def test_it_is_full_when_the_next_row_has_no_place():
    meter = Meter(CPU)
    for step in range(CAPACITY):
        assert not meter.full
        write(meter, step)
    assert meter.full
    meter.send({})
    assert not meter.full


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_arrives_as_it_is(loss):
    meter = Meter(CPU)
    write(meter, 1, loss)
    meter.send({})
    (row,) = rows_of(meter.read())
    assert row.loss == loss or (math.isnan(loss) and math.isnan(row.loss))
