"""The processor time of tests is measured, told and limited as tests/cpu_time.py says."""

from tests import cpu_time

UNUSED = "xdist", "asyncio", "hypothesispytest", "unraisableexception"
TESTS = """
import time
import pytest

def burn():
    start = time.process_time()
    while time.process_time() - start < 0.06:
        pass

@pytest.fixture(scope="module")
def made():
    burn()

@pytest.fixture(scope="session")
def opened():
    yield
    burn()

def test_of_a_module(made):
    import slow_module

def test_quick():
    pass

@pytest.mark.unit
def test_unit():
    burn()

@pytest.mark.screen
def test_screen():
    burn()

def test_last(opened):
    pass
"""


def test_a_dear_unit_test_is_told_and_fails_and_what_others_share_is_not_charged_to_it(pytester, monkeypatch):
    pytester.makepyfile(test_it=TESTS, slow_module="import test_it; test_it.burn()")

    with monkeypatch.context() as patch:
        patch.setattr(cpu_time, "METER", cpu_time.Meter())  # this test has its own
        patch.setattr(cpu_time, "REPORTED_S", 0.05)
        patch.setattr(cpu_time, "REFUSED_S", 0.05)
        patch.setattr(cpu_time, "slowness", lambda: 1.0)
        result = pytester.runpytest_inprocess("-p", "tests.cpu_time", *(f"-pno:{name}" for name in UNUSED))

    result.assert_outcomes(passed=4, failed=1)
    text = result.stdout.str()
    assert "s of processor time: a unit test takes less than 0.05 s" in text
    table = text.partition("= processor time =")[2]
    names = "test_of_a_module", "test_quick", "test_unit", "test_screen", "fixture made", "test_last"
    assert [name for name in names if name in table.partition("all;")[0]] == [
        "test_unit",
        "test_screen",
        "fixture made",
    ]
    assert "s the 3 of 0.05 s or more" in table


def test_a_unit_test_on_a_slow_machine_may_take_as_many_times_longer(pytester, monkeypatch):
    pytester.makepyfile(test_it=TESTS, slow_module="")

    with monkeypatch.context() as patch:
        patch.setattr(cpu_time, "METER", cpu_time.Meter())
        patch.setattr(cpu_time, "REFUSED_S", 0.05)
        patch.setattr(cpu_time, "PACE_S", cpu_time.PACE_S / 100)
        result = pytester.runpytest_inprocess("-p", "tests.cpu_time", *(f"-pno:{name}" for name in UNUSED))

    result.assert_outcomes(passed=5)
