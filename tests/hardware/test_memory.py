import subprocess
import sys

import pytest

# The thread corresponds to a run's worker: it starts late, after another one has ended.
FAULTS = """
import resource, threading
import torch
from mptui.hardware.host import keep_freed_memory

def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

def step():
    held = [torch.ones(1 << 20) for _ in range(30)]  # 4 MiB each, all of them freed at the end of the step

def faults():
    for _ in range(5):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        step()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

keep_freed_memory()
torch.set_num_threads(1)
in_a_thread(lambda: [bytearray(100_000) for _ in range(10)])
in_a_thread(faults)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="page faults are told by Linux, and kept low for glibc")
def test_a_step_pays_no_page_faults_for_the_memory_of_the_step_before():
    answer = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)

    assert int(answer.stdout) < 300  # thousands by glibc's default: 30,000 pages are freed per step
