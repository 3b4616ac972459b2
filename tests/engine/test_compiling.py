"""Compiling: only where it repays itself, and never the end of a run."""

import pytest
import torch
from torch._dynamo.exc import InternalTorchDynamoError

from mptui.engine.compiling import PROBE_STEPS, Compiler
from mptui.events import PhaseChanged, Warned
from tests.engine.small import CPU, build_trainer, config, end, losses, of, small_net

CUDA = torch.device("cuda")


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


def compiler_for(device, steps, *, mode="default", forced=False):
    net, told = Net(), []
    compiler = Compiler(
        net, mode, device, forced=forced, steps=steps, warn=lambda code, text: told.append((code, text))
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
