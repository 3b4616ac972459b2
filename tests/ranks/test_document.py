"""The commands of docs/several-gpus.md."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mptui
from mptui.runs.store.directory import list_runs, read_summary
from tests.data.images import class_folders
from tests.ranks.cluster import Cluster

DOCUMENT = Path(mptui.__file__).parents[1] / "docs" / "several-gpus.md"
COMMANDS = [line.strip() for line in DOCUMENT.read_text().splitlines() if line.startswith("    ")]
HERE = {
    "--nproc-per-node gpu": "--nproc-per-node 2",  # there may be none
    "--nproc-per-node 4": "--nproc-per-node 2",
    "--nproc-per-node=2 -m mptui": "--nproc-per-node=2 --master-port=29518 -m mptui",
    "--gpus-per-node 4": "--gpus-per-node 2",
    "--rdzv-endpoint FIRST:29500": "--rdzv-endpoint localhost:29517",
    "resnet50": "resnet18",
}
"""What stands in the page -> what a machine without a GPU runs."""
SMALL = {
    "MPTUI_HARDWARE_DEVICE": "cpu",
    "MPTUI_DATA_IMAGE_SIZE": "64",
    "MPTUI_DATA_WORKERS": "0",
    "MPTUI_TRAINING_BATCH_SIZE": "8",
    "MPTUI_TRAINING_MAX_STEPS": "2",
    "OMP_NUM_THREADS": "1",
}


@pytest.mark.chaos
def test_the_commands_run(tmp_path):
    class_folders(tmp_path / "FOLDER", {"cat": 8, "dog": 8})
    accelerate = "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\nmixed_precision: bf16\n"
    (tmp_path / "default_config.yaml").write_text(accelerate)
    cluster = Cluster(tmp_path / "cluster")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "mptui").write_text(f'#!/bin/bash\nexec {sys.executable} -m mptui "$@"\n')
    (tools / "mptui").chmod(0o755)
    environ = {**os.environ, **cluster.environ, **SMALL}
    environ["PATH"] = f"{tools}:{environ['PATH']}"
    for command in COMMANDS:
        for of_page, here in HERE.items():
            command = command.replace(of_page, here)
        nodes = 2 if "--nnodes 2" in command else 1
        if command.startswith("srun"):
            environ |= {"SLURM_JOB_ID": "1", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "localhost"}
        started = [
            subprocess.Popen(
                command, shell=True, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True
            )
            for _ in range(nodes)
        ]
        errors = [process.communicate(timeout=300)[1] for process in started]
        assert [process.returncode for process in started] == [0] * nodes, (command, errors)
    runs = list_runs(tmp_path / "runs")
    assert {"four", "both", "by-torchrun", "by-srun"} <= {run.name for run in runs}
    assert {read_summary(run)["status"] for run in runs} == {"completed"}
