"""Measures bare training steps of GPT-2 by number format, with the network of Hugging Face's transformers.

A guide's table has a row for GPT-2, but mptui trains no language models. Weights and tokens are random, so
nothing is downloaded. The loop is the one of torch's "Automatic Mixed Precision examples": forward and
backward under autocast, and a fused AdamW, with a GradScaler for FP16.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from statistics import mean
from typing import TYPE_CHECKING, Any

from mptui.lab.bench.bench import AblationRun
from mptui.lab.bench.guides_table import Subject, formats
from mptui.lab.bench.measure import Effort, Measurer, ShortRunResult, reply
from mptui.lab.bench.stats import Span
from mptui.runs.planning.plan import Request

if TYPE_CHECKING:
    import torch

    from mptui.hardware.devices import Device

# keys of transformers' GPT2Config but for the batch size; on a GPU those of the smallest published GPT-2
SUBJECT = Subject(
    "gpt2",
    "GPT-2",
    {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257, "batch_size": 8},
    {"n_layer": 2, "n_embd": 128, "n_head": 4, "n_positions": 64, "vocab_size": 2048, "batch_size": 4},
    unit="sequences",
)
_WARM_UP = 5
"""Least steps before the timed ones."""
_BLOCK_S = 0.1
"""Seconds of steps between two waits for the device."""


def why_left_out(sets: Sequence[str]) -> str | None:
    """Return why the row can't be measured with these `--set`; None if it can."""
    if find_spec("transformers") is None:
        return "its network is of transformers, which is not installed: pip install transformers"
    return "--set is for networks of mptui" if sets else None


def ablation(device: "Device", effort: Effort, measurer: Measurer) -> AblationRun:
    """Return the ablation of the number formats that `device` supports."""
    common = {"device": device.torch_name, "sizes": dict(SUBJECT.settings(device))}

    def measure(_: Request, settings: Mapping[str, object], effort: Effort) -> ShortRunResult:
        asked = {**common, "mode": settings["precision.mode"], "matmul": settings["precision.matmul"]}
        asked |= {"seconds": effort.seconds, "loss_at": effort.loss_at}
        asked |= {"first_step_limit_s": effort.first_step_limit_s}
        return measurer.ask(f"{__name__}:main", asked, effort.limit_s)

    variants = [
        replace(each, settings={key: each.settings[key] for key in ("precision.mode", "precision.matmul")})
        for each in formats(device)
    ]
    return AblationRun(Request(), variants, effort=effort, measure=measure)


def sizes(device: "Device") -> dict[str, Any]:
    """Return the sizes of the row on `device`."""
    given = SUBJECT.settings(device)
    size = f"{given['n_layer']} layers of {given['n_embd']}, {given['n_positions']} tokens"
    return {"image_size": None, "size": size, "batch_size": given["batch_size"]}


def main() -> None:
    """Measure the steps that `argv` describes in JSON, and print the result."""
    reply(_measured)


def _measured(
    device: str,
    sizes: Mapping[str, int],
    mode: str,
    matmul: str,
    seconds: float,
    loss_at: int,
    first_step_limit_s: float | None,
) -> dict[str, Any]:
    import torch

    torch.set_float32_matmul_precision(matmul)
    where = torch.device(device)
    if where.index is not None:
        torch.accelerator.set_device_index(where.index)
    loop = _BareLoop(where, sizes, mode)
    first_step_s = loop.run(1)
    if first_step_limit_s is not None and first_step_s > first_step_limit_s:
        return {"error": f"its first step took more than {first_step_limit_s:.1f} s", "code": 1}
    warm_up = max(_WARM_UP, loss_at) - 1
    block = max(1, round(_BLOCK_S * warm_up / loop.run(warm_up)))
    losses = [loss.item() for loss in loop.losses[loss_at // 2 : loss_at]]
    times: list[float] = []
    while sum(times) < seconds:
        times.append(loop.run(block))
    return asdict(
        ShortRunResult(
            span=Span(sizes["batch_size"] * block * len(times), sum(times)),
            peak_bytes=torch.cuda.max_memory_allocated(where) if where.type == "cuda" else None,
            first_step_s=first_step_s,
            loss=mean(losses) if losses else None,
            wait=0.0,
        )
    )


class _BareLoop:
    """Training steps on one batch of random tokens.

    Args:
        device: The device.
        sizes: Keys of `GPT2Config`, and `batch_size`.
        mode: fp32, fp16 or bf16.
    """

    def __init__(self, device: "torch.device", sizes: Mapping[str, int], mode: str) -> None:
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        from mptui.engine.precision.amp import DTYPES

        torch.manual_seed(0)
        network = {key: value for key, value in sizes.items() if key != "batch_size"}
        self._network = GPT2LMHeadModel(GPT2Config(**network, use_cache=False)).to(device).train()
        self._optimizer = torch.optim.AdamW(self._network.parameters(), lr=1e-4, fused=True)
        self._scaler = torch.amp.GradScaler(device.type, enabled=mode == "fp16")
        self._autocast = torch.autocast(device.type, DTYPES.get(mode), enabled=mode != "fp32")
        self._wait = torch.get_device_module(device).synchronize
        shape = sizes["batch_size"], sizes["n_positions"]
        self._tokens_BT = torch.randint(sizes["vocab_size"], shape, device=device)
        self.losses: list[torch.Tensor] = []

    def run(self, steps: int) -> float:
        """Take this number of steps; return their seconds, with the wait for the device."""
        self._wait()
        began = time.perf_counter()
        for _ in range(steps):
            self._step()
        self._wait()
        return time.perf_counter() - began

    def _step(self) -> None:
        self._optimizer.zero_grad()
        with self._autocast:
            loss = self._network(input_ids=self._tokens_BT, labels=self._tokens_BT).loss
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self.losses.append(loss.detach())
