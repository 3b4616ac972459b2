"""Freezes torch's half a million objects: each out-of-memory error collects garbage."""

import gc

import pytest


@pytest.fixture(scope="package", autouse=True)
def _frozen():
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
