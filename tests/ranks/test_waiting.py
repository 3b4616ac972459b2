"""A process that waits for the other ranks of its group says so, and can be stopped."""

import os
import signal
import socket
import time

import pytest

from tests.program import DEADLINE_S, Program

pytestmark = pytest.mark.slow

TINY = ("--model", "unet", "--set", "model.width=2", "--set", "model.depth=1", "--set", "data.samples=8")
SMALL = (*TINY, "--set", "data.image_size=16", "--batch-size", "4", "--epochs", "1", "--device", "cpu")


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def waiting(tmp_path, **environ):
    """Start a process as a rank; return it and the first line that it says."""
    process = Program("run", *SMALL, "-q", "--runs-dir", tmp_path, environ=environ)
    return process, process.stderr.readline()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("rank", ["0", "1"])
def test_variables_left_in_a_shell_are_named_and_a_signal_ends_the_wait(tmp_path, port, rank, number):
    place = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    process, said = waiting(tmp_path, **place)
    whom = "1 of 2 ranks" if rank == "0" else "rank 0"
    assert said == f"waiting for {whom} at 127.0.0.1:{port} (from RANK and WORLD_SIZE)\n"
    asked = time.monotonic()
    process.send_signal(number)
    assert process.wait(DEADLINE_S) == 128 + number
    assert time.monotonic() - asked < DEADLINE_S / 10
    assert list(tmp_path.iterdir()) == []


def test_a_step_of_slurm_whose_second_task_never_comes_is_told(tmp_path, port):
    place = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "MASTER_PORT": port}
    process, said = waiting(tmp_path, MASTER_ADDR="127.0.0.1", **place)
    assert said.startswith("waiting for 1 of 2 ranks at 127.0.0.1:")
    assert "SLURM_STEP_NUM_TASKS" in said
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 143


def test_a_host_that_does_not_resolve_is_told(tmp_path, port):
    place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "nowhere.invalid", "MASTER_PORT": port}
    process, said = waiting(tmp_path, **place)
    assert said.startswith(f"waiting for rank 0 at nowhere.invalid:{port} (nowhere.invalid: ")
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 143


def test_a_port_of_another_program_is_told_at_once(tmp_path):
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = str(other.getsockname()[1])
        place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        process = Program("run", *SMALL, "-q", "--runs-dir", tmp_path, environ=place)
        _, said = process.communicate()
    assert process.returncode == 8
    assert "another program uses this port" in said
    assert "unset RANK and WORLD_SIZE" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("host", ["127.0.0.1", "nowhere.invalid"])
def test_a_node_that_meets_nobody_says_so_and_can_be_stopped(tmp_path, port, host):
    several = ("--nproc-per-node", "1", "--nnodes", "2", "--rdzv-endpoint", f"{host}:{port}")
    process = Program("run", *SMALL, "-q", *several, "--name", "r", "--runs-dir", tmp_path)
    said = iter(process.stderr.readline, "")  # torch warns of a host that it doesn't find
    assert any(line.startswith(f"waiting for 2 nodes to meet at {host}:{port}") for line in said)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate()
    assert process.returncode == 143, said
    assert "Traceback" not in said
    assert not os.path.lexists(tmp_path / "r" / "lock.json")
