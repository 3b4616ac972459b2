from pathlib import Path

import psutil
import pytest

from mptui.hardware.host import host_memory, read_host, usable_cpus

MIB = 1024**2

CPUINFO = """\
processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8480+
flags\t\t: fpu sse2 avx2 avx512f avx512_bf16 amx_bf16 amx_tile

processor\t: 1
model name\t: Intel(R) Xeon(R) Platinum 8480+
"""


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_processor_and_its_features(tmp_path):
    host = read_host(tree(tmp_path, {"proc/cpuinfo": CPUINFO}))

    assert host.name == "Intel(R) Xeon(R) Platinum 8480+"
    assert host.features == ["avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16"]


@pytest.mark.parametrize("files", [{}, {"proc/cpuinfo": "nothing of use", "proc/self/cgroup": "0::/\n"}])
def test_a_host_without_these_files_is_told_all_the_same(tmp_path, files):
    host = read_host(tree(tmp_path, files))

    assert host.cpus_usable >= 1
    assert host.memory_total == psutil.virtual_memory().total
    assert host.features == []


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/job/inner\n", "sys/fs/cgroup/job/cpu.max": "50000 100000\n"},
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"},
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    ],
    ids=["version 2, outer group", "version 2, own root", "version 1, container"],
)
def test_a_quota_of_cpus_counts(tmp_path, files):
    assert usable_cpus(tree(tmp_path, files)) == 1


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "max 100000\n"},
        {
            "proc/self/cgroup": "4:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    ],
)
def test_no_quota_leaves_what_affinity_leaves(tmp_path, files):
    assert usable_cpus(tree(tmp_path / "limited", files)) == usable_cpus(tmp_path / "empty")


def test_a_limit_of_memory_counts_and_file_cache_is_free(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/memory.max": f"{100 * MIB}\n",
            "sys/fs/cgroup/job/memory.current": f"{70 * MIB}\n",
            "sys/fs/cgroup/job/memory.stat": f"anon {30 * MIB}\ninactive_file {40 * MIB}\n",
        },
    )

    assert host_memory(root) == (100 * MIB, 70 * MIB)


def test_a_limit_of_version_1_counts_and_its_huge_number_is_none(tmp_path):
    limited = tree(
        tmp_path / "limited",
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{64 * MIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{16 * MIB}\n",
        },
    )
    free = tree(
        tmp_path / "free",
        {
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )

    assert host_memory(limited) == (64 * MIB, 48 * MIB)
    assert host_memory(free)[0] == psutil.virtual_memory().total
