"""Compiles a network in place, with all its code in one graph and no tables of autotuning on the terminal."""

import logging
import os
from collections.abc import Callable

import torch


def compile_in_place(model: torch.nn.Module, mode: str) -> None:
    """Compile `model` in its next call, as `model.compile(mode=mode)` does; one of its own is left to it.

    torch before 2.14 does not trace the calls of its own classes: a network that is an `nn.Sequential` would
    run eagerly, or in as many graphs as it has parts, without a word.
    """
    _quiet()
    named = None if mode == "default" else mode
    is_torchs = type(model).forward.__module__.startswith("torch.nn.")
    if is_torchs and getattr(model.compile, "__func__", None) is torch.nn.Module.compile:
        model._compiled_call_impl = torch.compile(_call_of(model), mode=named)
    else:
        model.compile(mode=named)


def _call_of(model: torch.nn.Module) -> Callable[..., torch.Tensor]:
    def call(*inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = model._call_impl(*inputs)  # type: ignore[no-untyped-call]
        return outputs

    return call


def _quiet() -> None:
    """Keep what Inductor prints while it autotunes off the terminal, unless torch's variables ask for it."""
    from torch._inductor import config

    if "TORCHINDUCTOR_AUTOTUNE_NUM_CHOICES_DISPLAYED" not in os.environ:
        config.autotune_num_choices_displayed = 0
    if "TORCHINDUCTOR_MAX_AUTOTUNE_REPORT_CHOICES_STATS" not in os.environ:
        config.max_autotune_report_choices_stats = False
    if "TORCH_LOGS" not in os.environ:  # candidates that a GPU can't run are left out, which is no error
        logging.getLogger("torch._inductor.select_algorithm").setLevel(logging.CRITICAL)
