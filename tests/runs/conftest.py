import random

import pytest

from tests.decoders import forked_decoders

__all__ = ["forked_decoders"]


@pytest.fixture
def chance() -> random.Random:
    return random.Random(0)
