"""The checks of `first_hour`, in the order of what they tell."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from benchmarks.launches import KINDS
from benchmarks.sides import figures
from benchmarks.subjects import Case
from benchmarks.targets import GPU

Verdict = Literal["right", "finding", "failed", "not tried"]
TESTS = Path(__file__).parents[1] / "tests"
LAUNCHES = 30
"""Most kernels and copies that a step may launch outside its CUDA graphs."""
SYNCHRONISATIONS = 0.2
"""Most synchronisations of a step: some come with each line of the log, none with a step."""
_AUTOTUNED_S = 900
"""Least seconds for the default run with autotuning, whose first start took an H200 more than 180."""
RATIO = 0.98
"""Least throughput of `mptui run`, as a fraction of the bare loop's in the same compile mode."""
ACTIVATIONS = 80 << 20
"""Bytes of activations of an image of 224 px in a ResNet-50 in FP32."""
TAIL = 15
"""Lines that the page quotes of the output of a command that failed."""
_NOISE = re.compile(r"\[\d+/\d+\]|\d+")


@dataclass(frozen=True)
class Ran:
    """A command that has ended: its exit code (None: killed at the limit of time), seconds and output."""

    code: int | None
    seconds: float
    output: str

    @property
    def end(self) -> list[str]:
        """The last lines of the output."""
        return self.output.splitlines()[-TAIL:]


@dataclass(frozen=True)
class Found:
    """What a check found.

    Attributes:
        verdict: `right`; `finding`: it works, with something to look at; `failed`; `not tried`.
        words: The result in a few words.
        figures: JSON-ready figures.
        quoted: Lines of output that explain the verdict.
    """

    verdict: Verdict
    words: str
    figures: dict[str, Any] = field(default_factory=dict)
    quoted: list[str] = field(default_factory=list)


class Scene(Protocol):
    """What a check needs of the hour: see `benchmarks.first_hour.Hour`."""

    folder: Path
    scratch: Path
    gpus: int

    @property
    def device(self) -> str: ...

    @property
    def left_s(self) -> float: ...

    def command(self, name: str, words: Sequence[str], **environ: str) -> Ran: ...


@dataclass(frozen=True)
class Check:
    """One check: its name, what it does, the GPUs it needs, its least seconds on a GPU.

    `ends`: whether the next checks tell nothing where this one fails.
    """

    name: str
    run: Callable[[Scene], Found]
    gpus: int = 0
    least_s: float = 15
    ends: bool = False


def _case(scene: Scene, **changed: Any) -> Case:  # noqa: ANN401 - the fields of Case
    """Return the training that is measured: a ResNet-18, which compiles in seconds; on a CPU a small one."""
    if scene.gpus:
        big: dict[str, Any] = {"steps": 140, "warm_up": 40, "device": "cuda", "precision": "bf16"}
        case = Case("resnet18", side=224, batch=128, classes=8, **big)
    else:
        case = Case("resnet18", side=32, batch=8, classes=4, steps=8, warm_up=2)
    return replace(case, **changed)


def _trained(scene: Scene, name: str, *flags: str, **environ: str) -> tuple[Ran, dict[str, Any]]:
    """Run `mptui run` on the built-in data; return the command and the summary of the run."""
    small = (
        ()
        if scene.gpus
        else ("--model", "resnet18", "--set", "data.image_size=32", "--set", "data.samples=64")
    )
    runs = scene.scratch / "runs"
    words = ("python", "-m", "mptui", "run", "--runs-dir", str(runs), "--name", name, *small, *flags)
    ran = scene.command(name, words, **environ)
    summary = runs / name / "summary.json"
    return ran, json.loads(summary.read_text()) if summary.exists() else {}


def _failed(ran: Ran, what: str) -> Found:
    how = "was cut at the end of the time" if ran.code is None else f"ended with {ran.code}"
    return Found("failed", f"{what} {how}", {}, ran.end)


def identity(scene: Scene) -> Found:
    """Compare what the driver and torch say of the GPUs."""
    ran = scene.command("identity", ["python", "-m", "mptui", "detect", "--json"])
    if ran.code != 0:
        return _failed(ran, "mptui detect")
    seen, _ = json.JSONDecoder().raw_decode(ran.output[ran.output.index("{") :])
    if shutil.which("nvidia-smi"):
        scene.command("identity", ["nvidia-smi", "-q"])
    gpus = [device for device in seen["devices"] if device["kind"] != "cpu"]
    about: dict[str, Any] = {
        "driver": seen["driver"],
        "cuda_driver": seen["cuda"],
        "cuda_torch": torch.version.cuda,
        "cudnn": int(torch.backends.cudnn.version()) if scene.gpus else None,  # type: ignore[no-untyped-call]
        "nccl": torch.cuda.nccl.version() if scene.gpus else None,  # type: ignore[no-untyped-call]
        "gpus": [
            {name: each[name] for name in ("name", "capability", "memory_total", "uuid")} for each in gpus
        ],
    }
    unusable = [each["name"] for each in gpus if not each["usable"]]
    if unusable or len(gpus) < scene.gpus:
        return Found(
            "failed", f"torch can't use: {', '.join(unusable) or 'GPUs that it lists'}", about, seen["notes"]
        )
    by_torch = {f"GPU-{each['uuid']}" for each in (seen["torch"] or {}).get("devices", []) if each["uuid"]}
    strangers = [each["name"] for each in gpus if each["gpu"] is None or each["uuid"] not in by_torch]
    if scene.gpus and seen["driver"] and strangers:
        return Found("finding", f"NVML and torch don't name the same GPU: {', '.join(strangers)}", about)
    names = ", ".join(each["name"] for each in gpus) or "no GPU: small networks on the CPU stand in"
    return Found("right", names, about)


def _tests(keyword: str, name: str) -> Callable[[Scene], Found]:
    def run(scene: Scene) -> Found:
        """Run the tests that need a GPU of one subject."""
        words = ("-m", "gpu", "-n", "0", "-rf", "--no-header", "--durations=8", "-k", keyword)
        ran = scene.command(name, ["python", "-m", "pytest", *words, str(TESTS)])
        counts = {
            what: int(n) for n, what in re.findall(r"(\d+) (passed|failed|error|skipped)", ran.output[-400:])
        }
        if ran.code not in (0, 1):
            return _failed(ran, "pytest")
        wrong = [line for line in ran.output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        words_of = ", ".join(f"{count} {what}" for what, count in counts.items())
        return Found("failed" if wrong else "right", words_of, counts, wrong)

    return run


def default_run(scene: Scene) -> Found:
    """Train with the profile `fast`, compiled, and read torch's hints.

    Autotuning its network takes minutes at the first start: in a short hour, CUDA graphs alone are compiled.
    """
    flags = ["--profile", "fast", "--max-steps", "60" if scene.gpus else "6"]
    flags += ["--compile"] if scene.gpus else ["--no-compile"]
    flags += ["--set", "speed.compile=reduce-overhead"] if scene.gpus and scene.left_s < _AUTOTUNED_S else []
    ran, summary = _trained(
        scene, "default", *flags, TORCH_LOGS="recompiles,graph_breaks,perf_hints,cudagraphs"
    )
    if ran.code != 0:
        return _failed(ran, f"mptui run {' '.join(flags)}")
    hints = _hints(ran.output)
    about = {name: summary[name] for name in ("precision", "samples_per_second", "time", "memory")}
    first = summary["time"]["first_step_s"]
    rate = f"{summary['samples_per_second']:,.0f} images/s, first step after {first:.0f} s"
    warned = [warning["message"] for warning in summary["warnings"]]
    return Found(
        "finding" if hints or warned else "right",
        f"{rate}; {len(hints)} hint(s) of torch",
        about,
        [*warned, *hints[:20]],
    )


def _hints(output: str) -> list[str]:
    """Return the lines of torch's own log, each kind of line once, with its count."""
    found: dict[str, list[str]] = {}
    for line in output.splitlines():
        if re.match(r"[VIWE]\d{4} ", line) and (told := line.partition("] ")[2]):
            found.setdefault(_NOISE.sub("#", told), []).append(told)
    return [f"{len(lines)} x {lines[0][:200]}" for lines in found.values()]


def launches(scene: Scene) -> Found:
    """Count what a step launches, in each compile mode that takes little time."""
    modes, few = (("off", "default", "reduce-overhead"), {"steps": 60}) if scene.gpus else (("off",), {})
    found: dict[str, dict[str, Any]] = {}
    for mode in modes:
        if found and scene.left_s < 60:
            break
        found[mode] = figures("launches", _case(scene, compile=mode, **few), limit_s=max(1.0, scene.left_s))
    if not scene.gpus:
        operations = found["off"]["operations"]
        return Found("not tried", f"no GPU; {operations:.0f} operations a step on the host", found)
    words, much = [], False
    for mode, each in found.items():
        outside = each["kernels"] + each["copies"]
        much |= each["synchronisations"] > SYNCHRONISATIONS or (each["graphs"] > 0 and outside > LAUNCHES)
        counted = (f"{each[kind]:.3g} {kind}" for kind in KINDS)
        words.append(f"{mode}: {', '.join(counted)}")
    return Found("finding" if much else "right", "; ".join(words), found)


def speed(scene: Scene) -> Found:
    """Measure `mptui run` beside a bare loop and in each format, in half of the time that is left."""
    path = scene.folder / "gpu.json"
    how = ("--minutes", f"{scene.left_s / 120:.2f}") if scene.gpus else ("--smoke",)
    ran = scene.command("speed", ["python", "-m", "benchmarks.gpu", *how, "--out", str(path)])
    if ran.code != 0:
        return _failed(ran, "benchmarks.gpu")
    parts = {name: part for name, part in json.loads(path.read_text()).items() if name in GPU}
    loops = {
        f"{name} {side}": each["median"]
        for name, part in parts.items()
        for side, each in part["over_bare"].items()
    }
    gains = {
        f"{name} {about}": part[about]["median"]
        for name, part in parts.items()
        for about in ("amp_over_tf32", "amp_over_fp32")
        if about in part
    }
    words = "; ".join(f"{name}: {value:.2f} of bare" for name, value in loops.items())
    words += "".join(f"; {name} {value:.2f}" for name, value in gains.items())
    slow = bool(scene.gpus) and any(value < RATIO for value in loops.values())
    return Found("finding" if slow else "right", words, {"over_bare": loops, **gains}, ran.end)


def out_of_memory(scene: Scene) -> Found:
    """Train with a batch that doesn't fit: the run must halve it and end as usual."""
    _, total = torch.cuda.mem_get_info()
    batch = 1 << int(2.3 * total / ACTIVATIONS).bit_length() - 1
    flags = ("--model", "resnet50", "--precision", "fp32", "--set", "data.image_size=224", "--no-compile")
    size = ("--batch-size", str(batch), "--set", f"data.samples={batch}", "--max-steps", "2")
    ran, summary = _trained(scene, "memory", *flags, *size)
    if ran.code != 0:
        return _failed(ran, f"a run with a batch of {batch}")
    recovered = summary["recoveries"]
    words = f"batch {batch}: {len(recovered)} recoveries, {summary['optimizer_steps']} steps"
    return Found(
        "right" if recovered else "finding", words, {"recoveries": recovered, "memory": summary["memory"]}
    )


def loss_scaling(scene: Scene) -> Found:
    """Train a little in fp16 and in fp32 from the same start: the losses agree, few steps are skipped."""
    steps = 100
    runs: dict[str, dict[str, Any]] = {}
    for precision in ("fp32", "fp16"):
        flags = ("--precision", precision, "--no-compile", "--set", "data.augment=none")
        ran, runs[precision] = _trained(scene, f"scaling-{precision}", *flags, "--max-steps", str(steps))
        if ran.code != 0:
            return _failed(ran, f"the run in {precision}")
    losses = {name: run["final"]["train_loss"] for name, run in runs.items()}
    skipped = runs["fp16"]["skipped_steps"]
    far = abs(losses["fp16"] - losses["fp32"]) > 0.25 * losses["fp32"]
    words = f"loss {losses['fp16']:.4f}, in fp32 {losses['fp32']:.4f}; {skipped} of {steps} steps skipped"
    return Found("finding" if far or skipped > steps / 10 else "right", words, losses)


def deterministic(scene: Scene) -> Found:
    """Train twice with `training.deterministic`: the weights are the same to the bit."""
    digests = []
    mode = "default" if scene.gpus else "off"
    for number in (1, 2):
        settings = (
            "--set",
            "training.deterministic=true",
            "--set",
            f"speed.compile={mode}",
            "--max-steps",
            "12",
        )
        ran, _ = _trained(scene, f"same-{number}", *(["--compile"] if scene.gpus else []), *settings)
        if ran.code != 0:
            return _failed(ran, "a deterministic run")
        weights = scene.scratch / "runs" / f"same-{number}" / "checkpoints" / "last" / "model.safetensors"
        digests.append(hashlib.sha256(weights.read_bytes()).hexdigest())
    same = digests[0] == digests[1]
    words = f"12 steps, compile {mode}: {'the same weights' if same else 'the weights differ'}"
    return Found("right" if same else "failed", words, {"sha256": digests})


def two_gpus(scene: Scene) -> Found:
    """Train on all GPUs with one command."""
    ran, summary = _trained(scene, "ranks", "--nproc-per-node", "gpu", "--no-compile", "--max-steps", "40")
    if ran.code != 0:
        return _failed(ran, "the run on all GPUs")
    return Found(
        "right",
        f"{summary['ranks']} ranks, {summary['samples_per_second']:,.0f} images/s",
        {"summary": summary},
    )


CHECKS = (
    Check("identity", identity, ends=True),
    Check("waits", _tests("wait or sync", "waits"), gpus=1, ends=True),
    Check("graphs", _tests("graph", "graphs"), gpus=1, least_s=30),
    Check("default", default_run, least_s=60),
    Check("launches", launches, least_s=60),
    Check("speed", speed, least_s=120),
    Check("memory", out_of_memory, gpus=1, least_s=40),
    Check("scaling", loss_scaling, gpus=1, least_s=30),
    Check("deterministic", deterministic, least_s=40),
    Check("kills", _tests("kills_of_a_run", "kills"), gpus=1, least_s=60),
    Check("ranks", two_gpus, gpus=2, least_s=40),
    Check("tests", _tests("not (wait or sync or graph or kills_of_a_run)", "tests"), gpus=1, least_s=60),
)
"""All checks, in their order."""
