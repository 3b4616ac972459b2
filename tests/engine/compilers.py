"""Compilers around a network that records how it is compiled."""

import torch

from mptui.engine.compile import CompileCost, Compiler
from tests.engine.small import small_net


class Net(torch.nn.Linear):
    """Records how it is compiled."""

    def __init__(self):
        super().__init__(1, 1)
        self.compiled = []

    def compile(self, *, mode=None):
        self.compiled.append(mode)


def compiler_for(device, steps, *, mode="default", forced=False, kept=None, any_network=None, **how):
    net, told = Net(), []
    compiler = Compiler(
        net,
        mode,
        device,
        forced=forced,
        steps=steps,
        warn=lambda code, text: told.append((code, text)),
        cost=CompileCost(mode, device, kept, any_network),
        **how,
    )
    return compiler, net, told


def probe(compiler, seconds):
    """Feed step times to the compiler until it decides; return the number of steps."""
    for count in range(1, 100):
        decided = compiler.note_step(seconds)
        if decided or not compiler.undecided:
            return count
    raise AssertionError("it never decides")


def failing(error, after=0):
    """Return a net whose compiled form runs `after` times, then raises."""
    net = small_net(dropout=0.3)
    calls: list[int] = []

    def compiled(images):
        calls.append(1)
        if len(calls) > after:
            raise error
        return net.forward(images)

    net.compile = lambda **_: setattr(net, "_compiled_call_impl", compiled)  # type: ignore[method-assign]
    return net
