"""Compiling: only where it repays itself, and never the end of a run."""

import time

import pytest
import torch
from torch._dynamo.exc import InternalTorchDynamoError

from mptui.engine import snapshots
from mptui.engine.compiling import AGAIN, PROBE_STEPS, Compiler
from mptui.engine.kept import Kept
from mptui.events import PhaseChanged, Validated, Warned
from tests.engine.small import CPU, build_trainer, config, end, losses, of, small_net

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """What compiling cost in another test is not known."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def with_compiler(tmp_path, monkeypatch):
    """A C++ compiler is there, as far as anyone can see without running it."""
    program = tmp_path / "bin" / "c++"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(program.parent))


@pytest.fixture
def without_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))


class Net(torch.nn.Linear):
    """Notes how it is compiled."""

    def __init__(self):
        super().__init__(1, 1)
        self.compiled = []

    def compile(self, *, mode=None):
        self.compiled.append(mode)


def compiler_for(device, steps, *, mode="default", forced=False, **how):
    net, told = Net(), []
    compiler = Compiler(
        net,
        mode,
        device,
        forced=forced,
        steps=steps,
        warn=lambda code, text: told.append((code, text)),
        **how,
    )
    return compiler, net, told


def probe(compiler, seconds):
    """Feed it the times of steps until it decides; how many it took."""
    for count in range(1, 100):
        decided = compiler.note_step(seconds)
        if decided or not compiler.undecided:
            return count
    raise AssertionError("it never decides")


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_a_short_run_is_not_compiled_and_told_why(device):
    compiler, net, told = compiler_for(device, steps=100)
    assert probe(compiler, 0.1) == PROBE_STEPS
    assert net.compiled == []
    assert not compiler.active
    ((code, text),) = told
    assert code == "compile_skipped"
    assert "about 9 s are left" in text
    assert "--compile" in text


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize(("device", "steps"), [(CPU, 9200), (CUDA, 2500)], ids=["cpu", "cuda"])
def test_a_long_run_is_compiled(device, steps):
    # steps of 0.1 s, a twentieth fewer and a twentieth more than repay the cost
    short, long = compiler_for(device, round(steps * 0.95)), compiler_for(device, round(steps * 1.05))
    probe(short[0], 0.1)
    probe(long[0], 0.1)
    assert (short[0].active, long[0].active) == (False, True)
    assert (short[1].compiled, long[1].compiled) == ([], [None])
    assert long[2] == []


@pytest.mark.usefixtures("with_compiler")
def test_the_warm_up_of_the_first_step_does_not_count():
    compiler, net, _ = compiler_for(CPU, steps=1000)
    compiler.note_step(1e6)
    probe(compiler, 0.1)
    assert net.compiled == []


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize(
    ("mode", "compiled"), [("default", [None]), ("max-autotune", ["max-autotune"]), ("off", [])]
)
def test_forced_it_is_compiled_at_once_in_its_mode(mode, compiled):
    compiler, net, told = compiler_for(CPU, 1, mode=mode, forced=True)
    assert net.compiled == compiled
    assert not compiler.undecided
    assert told == []


@pytest.mark.usefixtures("without_compiler")
def test_without_a_compiler_it_says_what_to_install():
    compiler, net, told = compiler_for(CPU, 10**9, forced=True)
    assert not compiler.active
    assert not compiler.undecided
    assert net.compiled == []
    assert "g++" in told[0][1]


@pytest.mark.parametrize(
    ("device", "mode", "static"),
    [(CUDA, "reduce-overhead", True), (CUDA, "max-autotune", True), (CUDA, "default", False)],
)
def test_graphs_need_gradients_that_stay_where_they_are(device, mode, static):
    assert compiler_for(device, 1, mode=mode, forced=True)[0].static_shapes is static


# -- a compile that fails


def failing(error, after=0):
    """A net whose compiled form runs `after` times, then raises."""
    net = small_net(dropout=0.3)
    calls: list[int] = []

    def compiled(images):
        calls.append(1)
        if len(calls) > after:
            raise error
        return net.forward(images)

    net.compile = lambda **_: setattr(net, "_compiled_call_impl", compiled)  # type: ignore[method-assign]
    return net


def failing_backward(error):
    """A net whose compiled form fails only once its forward pass has moved BatchNorm and drawn numbers."""
    net = small_net(dropout=0.3)

    def fail(_gradient):
        raise error

    def compiled(images):
        outputs = net.forward(images)
        outputs.register_hook(fail)
        return outputs

    net.compile = lambda **_: setattr(net, "_compiled_call_impl", compiled)  # type: ignore[method-assign]
    return net


def run(folder, model, **training):
    settings = config(training=training, speed={"compile": "default"})
    return build_trainer(settings, folder, model=model, force_compile=True)


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("fails_in", [failing, failing_backward], ids=["forward", "backward"])
def test_a_failing_compile_is_one_warning_and_the_same_run(tmp_path, fails_in, accumulate):
    broken = InternalTorchDynamoError("ld: cannot find -lgomp\x1b[31m\nmore lines")
    trainer, events = run(tmp_path, fails_in(broken), accumulate=accumulate)
    trainer.train()
    end(trainer)
    eager, expected = build_trainer(
        config(training={"accumulate": accumulate}), tmp_path, model=small_net(dropout=0.3)
    )
    eager.train()
    end(eager)
    assert losses(events) == losses(expected)
    for one, other in zip(
        trainer.model.state_dict().values(), eager.model.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other)
    ((code, message),) = [(e.code, e.message) for e in of(events, Warned)]
    assert code == "compile_failed"
    assert "cannot find -lgomp" in message
    assert message.isprintable()
    assert "more lines" not in message


def raised_in(module, error):
    """A net whose compiled form raises an error of any kind, in code of a module of that name."""
    net = small_net()
    code = {"__name__": module, "error": error}
    exec("def compiled(images): raise error", code)
    net.compile = lambda **_: setattr(net, "_compiled_call_impl", code["compiled"])  # type: ignore[method-assign]
    return net


@pytest.mark.usefixtures("with_compiler")
def test_a_bare_assertion_in_the_compilers_code_is_a_failing_compile_too(tmp_path):
    trainer, events = run(tmp_path, raised_in("torch._inductor.cudagraph_trees", AssertionError()))
    trainer.train()
    end(trainer)
    assert [w.code for w in of(events, Warned)] == ["compile_failed"]


@pytest.mark.usefixtures("with_compiler")
def test_a_compile_that_fails_in_the_validation_is_one_warning_and_the_same_run(tmp_path):
    net = small_net()

    def compiled(images):
        if not net.training:
            raise InternalTorchDynamoError("no such operation")
        return net.forward(images)

    net.compile = lambda **_: setattr(net, "_compiled_call_impl", compiled)  # type: ignore[method-assign]
    trainer, events = run(tmp_path, net)
    trainer.train()
    end(trainer)
    eager, expected = build_trainer(config(), tmp_path)
    eager.train()
    end(eager)
    assert [w.code for w in of(events, Warned)] == ["compile_failed"]
    assert [e.loss for e in of(events, Validated)] == [e.loss for e in of(expected, Validated)]


@pytest.mark.usefixtures("with_compiler")
def test_outputs_that_the_next_ones_are_written_over_are_counted_as_they_were(tmp_path, monkeypatch):
    """As CUDA graphs do: each replay writes to the same memory."""
    monkeypatch.setattr(Compiler, "static_shapes", property(lambda self: self.active))
    net = small_net()
    places: dict[object, torch.Tensor] = {}

    def compiled(images):
        outputs = net.forward(images)
        if net.training:
            return outputs
        place = places.setdefault(tuple(outputs.shape), torch.empty_like(outputs))
        return place.copy_(outputs)

    net.compile = lambda **_: setattr(net, "_compiled_call_impl", compiled)  # type: ignore[method-assign]
    settings = config(speed={"compile": "default"})
    trainer, events = build_trainer(settings, tmp_path, model=net, force_compile=True, val=64)
    trainer.train()
    end(trainer)
    eager, expected = build_trainer(config(), tmp_path, val=64)
    eager.train()
    end(eager)
    assert [e.metrics for e in of(events, Validated)] == [e.metrics for e in of(expected, Validated)]


@pytest.mark.usefixtures("with_compiler")
def test_the_search_for_a_micro_batch_compiles_nothing(tmp_path, graphs):
    net, counted = graphs
    settings = config(speed={"compile": "default"}, memory={"micro_batch": "auto"})
    trainer, _ = build_trainer(settings, tmp_path, model=net(), force_compile=True)
    trainer.guards.begin()
    end(trainer)
    assert counted == []


@pytest.mark.usefixtures("with_compiler")
def test_the_phase_says_that_it_compiles_until_the_first_step_is_through(tmp_path):
    trainer, events = run(tmp_path, failing(AssertionError("never"), after=10**9), epochs=1)
    trainer.train()
    end(trainer)
    phases = [e.phase for e in of(events, PhaseChanged)]
    assert phases[:4] == ["compiling", "training", "compiling", "validating"]


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize(
    ("error", "after"),
    [(ValueError("the net's own"), 0), (InternalTorchDynamoError("far too late"), 3)],
    ids=["not the compiler's", "after it has worked"],
)
def test_other_errors_are_raised_on(tmp_path, error, after):
    trainer, _ = run(tmp_path, failing(error, after))
    with pytest.raises(type(error), match=str(error)):
        trainer.train()
    end(trainer)


# -- what the last time cost


@pytest.fixture
def kept():
    return lambda: Kept("compile", {"model": "net"})


@pytest.fixture
def clock(monkeypatch):
    """Sets the time."""

    class Clock:
        now = 0.0

    monkeypatch.setattr(time, "perf_counter", lambda: Clock.now)
    return Clock


@pytest.mark.usefixtures("with_compiler")
def test_a_compile_is_estimated_by_what_it_cost_here_the_last_time(kept, clock):
    def compiles_in(seconds):
        compiler = compiler_for(CPU, 1, forced=True, kept=kept())[0]
        expected = compiler.expected_s
        compiler.begin()
        clock.now += seconds
        compiler.end()
        return expected

    assert compiles_in(110.0) is None  # the first time nobody knows
    assert compiles_in(9.0) == pytest.approx(AGAIN * 110.0)
    assert compiles_in(8.0) == 9.0


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
    assert compiler_for(CPU, 1, kept=kept())[0].expected_s is None


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
    snapshot = snapshots.take(trainer)
    assert snapshot.state["compiled"] is forced
    again, _ = build_trainer(settings, tmp_path, model=failing(None, after=10**9))
    snapshots.restore(again, snapshot)
    assert again.parts.compiler.active is forced
    assert not again.parts.compiler.undecided
    end(again)


@pytest.mark.usefixtures("with_compiler")
def test_a_rollback_does_not_bring_back_what_was_undone(kept):
    compiler, net, _ = compiler_for(CPU, 10**6, kept=kept())
    probe(compiler, 0.1)
    before = compiler.decision
    compiler.undo()
    compiler.take_up(before)
    assert not compiler.active
    assert net.compiled == [None]


# -- other shapes


@pytest.fixture
def graphs():
    """Counts the graphs that Dynamo makes of a net, and runs them as they are."""
    counted = []

    def net():
        module = small_net()

        def compile_(**_):
            def backend(graph, _inputs):
                counted.append(graph)
                return graph.forward

            module._compiled_call_impl = torch._dynamo.optimize(backend)(module._call_impl)

        module.compile = compile_  # type: ignore[method-assign]
        return module

    yield net, counted
    torch._dynamo.reset()


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize("samples", [40, 44], ids=["even", "a short last batch"])
def test_short_batches_and_validations_make_one_graph_each(tmp_path, graphs, samples):
    net, counted = graphs
    settings = config(training={"epochs": 3}, speed={"compile": "default"})
    trainer, _ = build_trainer(
        settings, tmp_path, model=net(), force_compile=True, train=samples, val=20, drop_last=True
    )
    trainer.train()
    end(trainer)
    assert len(counted) == 2  # training and validation, whose last batch of 4 is filled up


@pytest.mark.usefixtures("with_compiler")
def test_pieces_of_a_batch_that_did_not_fit_make_one_graph_more_at_most_twice(tmp_path, graphs):
    net, counted = graphs
    settings = config(training={"epochs": 2}, speed={"compile": "default"}, memory={"micro_batch": 3})
    trainer, _ = build_trainer(settings, tmp_path, model=net(), force_compile=True, val=16)
    trainer.train()
    end(trainer)
    # batches of 8 in pieces of 2, 3, 3: a graph of a fixed size, then one for all sizes; the validation's
    assert len(counted) <= 3
