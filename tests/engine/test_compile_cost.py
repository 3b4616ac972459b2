"""Compile costs and gains are cached, and decide later runs."""

import time

import pytest
import torch

from mptui.engine.checkpoint import snapshots
from mptui.engine.compile import AGAIN, PROBE_STEPS, CachedResult
from mptui.events import PhaseChanged
from mptui.runs.view.specs import expected_time
from tests.engine.compilers import compiler_for, failing, probe
from tests.engine.small import CPU, build_trainer, config, end, of

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def kept():
    return lambda: CachedResult("compile", {"model": "net"})


@pytest.fixture
def clock(monkeypatch):
    """Sets the time."""

    class Clock:
        now = 0.0

    monkeypatch.setattr(time, "perf_counter", lambda: Clock.now)
    return Clock


@pytest.mark.usefixtures("with_compiler")
def test_a_compile_is_estimated_by_what_it_cost_here_before(kept, clock):
    def compiles_in(seconds, network):
        cached = (
            CachedResult("compile", {"model": network}),
            CachedResult("compile-start", {"mode": "default"}),
        )
        compiler = compiler_for(CPU, 1, forced=True, kept=cached[0], any_network=cached[1])[0]
        expected = compiler.cost.start_s, compiler.cost.known_from
        compiler.begin()
        clock.now += seconds
        compiler.end()
        return expected

    assert compiles_in(300.0, "net") == (110.0, "by estimate")
    assert compiles_in(9.0, "net") == (pytest.approx(AGAIN * 300.0), "by the first time")
    assert compiles_in(8.0, "net") == (9.0, "the last time")
    assert compiles_in(200.0, "other") == (300.0, "as the last network")  # a start with cached code is none
    assert compiles_in(7.0, "third") == (200.0, "as the last network")


@pytest.mark.usefixtures("with_compiler")
def test_a_run_is_told_what_compiling_is_expected_to_cost_and_from_what(tmp_path):
    """The first run of a network on a machine, the second, and that of another network."""
    told = []
    for batch_size in (8, 8, 4):
        settings = config(training={"epochs": 1, "batch_size": batch_size}, speed={"compile": "default"})
        model = failing(None, after=10**9)
        trainer, events = build_trainer(settings, tmp_path, model=model, force_compile=True)
        trainer.train()
        end(trainer)
        told += [e for e in of(events, PhaseChanged) if e.phase == "compiling" and e.expected_s is not None]
    assert [event.known_from for event in told] == ["by estimate", "by the first time", "as the last network"]
    assert told[0].expected_s == 110.0
    assert told[2].expected_s is not None
    assert told[2].expected_s < 60.0
    assert "about 1 min 50 s by estimate" in expected_time(told[0])


@pytest.mark.usefixtures("with_compiler")
def test_what_is_not_compiled_says_what_its_cost_is_known_from():
    compiler, _, told = compiler_for(torch.device("cuda"), 100, mode="max-autotune")
    probe(compiler, 0.1)
    assert "about 300 s (by estimate)" in told[0][1]


@pytest.mark.usefixtures("with_compiler")
def test_a_run_that_is_long_enough_for_kept_code_is_compiled(kept):
    assert probed(compiler_for(CPU, 2000, kept=kept())) is False
    kept().save({"first_s": 100.0, "again_s": 8.0})
    assert probed(compiler_for(CPU, 2000, kept=kept())) is True
    kept().save({"first_s": 100.0, "again_s": 8.0, "gain": 0.01})
    assert probed(compiler_for(CPU, 2000, kept=kept())) is False


def probed(made):
    probe(made[0], 0.1)
    return made[0].active


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize(("compiled_s", "gain", "stays"), [(0.08, 0.2, True), (0.12, 0.0, False)])
def test_what_it_gains_is_measured_and_what_loses_is_undone(kept, compiled_s, gain, stays):
    compiler, _, told = compiler_for(CPU, 10**6, kept=kept())
    probe(compiler, 0.1)
    compiler.begin()
    compiler.end()
    for _ in range(PROBE_STEPS):
        assert compiler.timing
        assert not compiler.note_step(compiled_s)
    assert not compiler.timing
    assert kept().load()["gain"] == pytest.approx(gain)
    assert compiler.active is stays
    assert [code for code, _ in told] == ([] if stays else ["compile_undone"])


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize("figure", ["fast", -1.0, None, [8.0]])
def test_kept_figures_that_are_none_are_not_believed(kept, figure):
    kept().save({"first_s": figure, "again_s": figure, "gain": figure})
    cost = compiler_for(CPU, 1, kept=kept())[0].cost
    assert (cost.start_s, cost.known_from, cost.gain) == (110.0, "by estimate", 0.12)


@pytest.mark.usefixtures("with_compiler")
def test_a_deterministic_run_does_not_decide_by_the_clock():
    compiler, net, told = compiler_for(CPU, 10**9, repeatable=True)
    assert not compiler.timing
    assert net.compiled == []
    assert told[0][0] == "compile_skipped"
    assert compiler_for(CPU, 1, repeatable=True, forced=True)[0].active


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize("forced", [True, False])
def test_a_resumed_run_is_compiled_as_before_without_timing_steps_again(tmp_path, forced):
    settings = config(training={"epochs": 1}, speed={"compile": "default"})
    trainer, _ = build_trainer(
        settings, tmp_path, model=failing(None, after=10**9), force_compile=forced, train=80
    )
    trainer.train()
    end(trainer)
    snapshot = snapshots.take(trainer.state)
    assert snapshot.state["compiled"] is forced
    again, _ = build_trainer(settings, tmp_path, model=failing(None, after=10**9))
    snapshots.restore(again.state, snapshot)
    assert again.context.parts.compiler.active is forced
    assert not again.context.parts.compiler.undecided
    end(again)


@pytest.mark.usefixtures("with_compiler")
def test_a_rollback_does_not_bring_back_what_was_undone(kept):
    compiler, net, _ = compiler_for(CPU, 10**6, kept=kept())
    probe(compiler, 0.1)
    before = compiler.state_dict()
    compiler.undo()
    compiler.load_state_dict(before)
    assert not compiler.active
    assert net.compiled == [None]
