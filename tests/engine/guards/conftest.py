"""Each out-of-memory collects garbage; torch's half a million objects are none."""

import gc

import pytest


@pytest.fixture(scope="package", autouse=True)
def _frozen():
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
