"""Flags that ask for several processes, and an accelerate file in their place."""

import os
import re
from types import SimpleNamespace

import pytest
import typer

from mptui.cli.main import _exit_code, app
from mptui.cli.options import SettingOptions
from mptui.cli.train import processes
from mptui.processes.rank_place import Group
from mptui.runs.planning import plan  # noqa: F401 - has its find_machine before that is replaced
from tests.program import run_to_end

FILE = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: {kind}
downcast_bf16: 'no'
gpu_ids: {gpus}
machine_rank: 0
main_process_ip: 10.0.0.1
main_process_port: 29501
main_training_function: main
mixed_precision: {precision}
num_machines: {machines}
num_processes: {processes}
rdzv_backend: static
same_network: true
use_cpu: {on_cpu}
"""


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch):
    gpus = [SimpleNamespace(kind="cuda", torch_name="cuda")] * 4
    machine = SimpleNamespace(devices=[*gpus, SimpleNamespace(kind="cpu", torch_name="cpu")])
    monkeypatch.setattr("mptui.hardware.devices.find_machine", lambda with_torch: machine)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")


def parsed(*arguments):
    """The context of `mptui run ARGUMENTS`."""
    group = typer.main.get_command(app)
    run = group.get_command(typer.Context(group), "run")  # type: ignore[attr-defined]
    return run.make_context("run", list(arguments))


def group_of(*arguments):
    return processes.group_of(parsed(*arguments))


@pytest.fixture
def file(tmp_path):
    def write(more="", **values):
        usual = {"kind": "MULTI_GPU", "gpus": "all", "precision": "bf16", "machines": 1, "on_cpu": "false"}
        path = tmp_path / "default_config.yaml"
        path.write_text(FILE.format(**{"processes": 2, **usual, **values}) + more)
        return str(path)

    return write


def test_flags_of_a_group():
    assert group_of("--epochs", "3") is None
    assert group_of("--nproc-per-node", "1") is None
    assert group_of("--nproc-per-node", "2") == Group(processes=2)
    assert group_of("--nproc-per-node", "gpu", "--max-restarts", "0") == Group(processes=4, max_restarts=0)
    assert group_of("--nproc-per-node", "9", "--device", "cpu") == Group(processes=9)
    nodes = ("--nnodes", "2", "--rdzv-endpoint", "first:29500", "--name", "x")
    assert group_of("--nproc-per-node", "4", *nodes) == Group(processes=4, nodes=2, endpoint="first:29500")


def test_a_list_of_devices_is_a_choice_of_the_visible_ones():
    context = parsed("--device", "0,2")
    assert processes.group_of(context) == Group(processes=2)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,6"
    assert processes.rank_flags(context) == ["--device", "cuda"]  # each rank takes that of its number


def test_a_rank_gets_the_flags_of_the_run():
    flags = ["--model", "unet", "--set", "a.b=1", "--set", "c.d=2", "--no-compile", "--trust-code"]
    context = parsed(*flags, "--nproc-per-node", "2", "--name", "x", "--detach", "-q", "--max-restarts", "1")
    assert processes.rank_flags(context) == ["--model", "unet", *flags[2:]]


def test_scale_batch_counts_the_processes_of_the_run(monkeypatch, capsys):
    flags = ["--dry-run", "--model", "unet", "--batch-size", "8", "--lr", "0.1", "--device", "cpu"]
    group = ["--nproc-per-node", "2", "--nnodes", "2", "--rdzv-endpoint", "a:1", "--name", "x"]
    assert _exit_code(["run", "--scale-batch", *flags, *group], debug=False) == 0
    told = capsys.readouterr()
    assert re.search(r"^batch_size = 32 +# --scale-batch$", told.out, re.MULTILINE)
    assert "Batch size: 8 x 4 processes = 32 (--scale-batch)\n" in told.err
    assert "Effective: lr 0.4 for a batch of 32 (0.1 for 8, scaled linear)" in told.err
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    context = parsed("--scale-batch", "--batch-size", "8")
    request = processes.scaled(SettingOptions(**context.params).request(), processes.group_of(context), None)
    assert request.flags["training.batch_size"] == ("--scale-batch", 24)
    assert "--scale-batch" in processes.rank_flags(context)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nproc-per-node", "5"], "4 GPUs for 5 processes"),
        (["--nproc-per-node", "two"], "not a number of processes"),
        (["--nproc-per-node", "3", "--device", "0,1"], "2 GPUs for 3 processes"),
        (["--device", "0,4"], "CUDA_VISIBLE_DEVICES=4,5,6,7"),
        (["--device", "1,1"], "not different devices"),
        (["--nproc-per-node", "gpu", "--device", "cpu"], "there is no GPU"),
        (["--nnodes", "2", "--name", "x"], "without --rdzv-endpoint"),
        (["--nnodes", "2", "--rdzv-endpoint", "a:1"], "without --name"),
        (["--accelerate-config", "nowhere.yaml"], "nowhere.yaml"),
    ],
    ids=" ".join,
)
def test_mistakes(arguments, message, capsys):
    assert _exit_code(["run", *arguments], debug=False) == 2
    assert message in capsys.readouterr().err


def test_a_process_of_torchrun_starts_no_group(monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    assert _exit_code(["run", "--nproc-per-node", "2"], debug=False) == 2
    assert "torchrun has started this process" in capsys.readouterr().err


def test_an_accelerate_file_is_followed(file, capsys):
    context = parsed("--accelerate-config", file(gpus="1,3"))
    assert processes.group_of(context) == Group(processes=2)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,7"
    assert context.params["precision"] == "bf16"
    several = file(machines=2, processes=8)
    assert group_of("--accelerate-config", several, "--name", "x") == Group(
        processes=4, nodes=2, endpoint="10.0.0.1:29501"
    )
    context = parsed("--accelerate-config", file(kind="'NO'", gpus="3", processes=1, precision="'no'"))
    assert processes.group_of(context) is None
    assert (context.params["device"], context.params["precision"]) == ("cuda:3", "fp32")
    assert group_of("--accelerate-config", file(kind="MULTI_CPU", on_cpu="true", processes=9)) == Group(
        processes=9
    )
    assert capsys.readouterr().err == ""


def test_flags_precede_the_file(file):
    context = parsed("--accelerate-config", file(), "--nproc-per-node", "3", "--precision", "fp16")
    assert processes.group_of(context) == Group(processes=3)
    assert context.params["precision"] == "fp16"


def test_what_cannot_be_followed_is_told(file, capsys):
    more = "deepspeed_config:\n  zero_stage: 2\ndynamo_config:\n  dynamo_backend: INDUCTOR\n"
    group_of("--accelerate-config", file(more, kind="DEEPSPEED", precision="fp8"))
    told = capsys.readouterr().err
    assert ":17: deepspeed_config is not followed\n" in told
    assert ":19: dynamo_config is not followed\n" in told
    assert ":3: distributed_type: DEEPSPEED: DistributedDataParallel is used instead\n" in told
    assert ":10: mixed_precision: fp8 is not followed\n" in told
    assert len(told.splitlines()) == 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"machines": 2, "processes": 3}, "num_processes: 3 on num_machines: 2"),
        ({"gpus": "!!python/object:os.system 1"}, "a tag is not allowed"),
        ({"processes": "two"}, ":12: num_processes: two: not a number of processes"),
        ({"processes": "2.5"}, "num_processes: 2.5: not a number of processes"),
        ({"processes": "true"}, "num_processes: true: not a number of processes"),
        ({"machines": "one"}, "num_machines: one: not a number of machines"),
        ({"gpus": "0;1"}, "gpu_ids: 0;1: not GPUs by number"),
        ({"on_cpu": "maybe"}, "use_cpu: maybe: not true or false"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(file, values, message, capsys):
    assert _exit_code(["run", "--accelerate-config", file(**values)], debug=False) == 2
    assert message in capsys.readouterr().err


def test_an_empty_file_is_refused(tmp_path, capsys):
    (tmp_path / "empty.yaml").touch()
    assert _exit_code(["run", "--accelerate-config", str(tmp_path / "empty.yaml")], debug=False) == 2
    assert "empty.yaml: no settings" in capsys.readouterr().err


def test_fsdp_names_the_setting_that_shares_weights(file, capsys):
    group_of("--accelerate-config", file(kind="FSDP"))
    assert "DistributedDataParallel is used instead; memory.shard = true" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--device", "1,2"], ["--accelerate-config", "FILE"]], ids=" ".join)
@pytest.mark.parametrize(("gpus", "here"), [(0, "no GPU"), (2, "2 GPUs")])
def test_gpus_that_are_not_here_are_refused(arguments, gpus, here, file, monkeypatch, capsys):
    devices = [
        *([SimpleNamespace(kind="cuda", torch_name="cuda")] * gpus),
        SimpleNamespace(kind="cpu", torch_name="cpu"),
    ]
    machine = SimpleNamespace(devices=devices)
    monkeypatch.setattr("mptui.hardware.devices.find_machine", lambda with_torch: machine)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    words = [file(gpus="1,2") if word == "FILE" else word for word in arguments]
    assert _exit_code(["run", *words], debug=False) == 2
    assert f"--device 1,2: this machine has {here}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--data", "/nowhere"], 3, "no such folder: /nowhere"),
        (["--set", "training.epoch=1"], 2, "training.epoch"),
    ],
)
def test_mistakes_are_told_before_ranks_start(arguments, code, message, tmp_path):
    group = ["--nproc-per-node", "2", "--device", "cpu", "--model", "unet", "--runs-dir", tmp_path / "runs"]
    ended = run_to_end("run", *group, *arguments)
    assert ended.returncode == code
    assert message in ended.stderr
    assert not (tmp_path / "runs").exists()
