"""A copy of the repository, and a Python that imports it: to change code without a trace in the original."""

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def copied_tree():
    """Give a copy of the repository, and a Python whose `mptui` it is, in processes of tests, too."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        root, env = Path(folder) / "tree", Path(folder) / "env"
        named = subprocess.run(
            ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
        )
        for name in filter(None, named.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        if (ROOT.parent / "shared").exists():
            (Path(folder) / "shared").symlink_to((ROOT.parent / "shared").resolve())
        yield root, _environment(root, env)


def _environment(root, env):
    """Make the Python of a copy: the copy comes first, then the libraries of this Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    python = env / "bin" / "python"
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run(
        [python, "-c", asked], capture_output=True, text=True, check=True
    ).stdout.strip()
    libraries = [path for path in sys.path if path.endswith("-packages")]
    (Path(packages) / "tree.pth").write_text("\n".join([str(root), *libraries]) + "\n")
    for program in Path(sys.executable).parent.iterdir():
        made = env / "bin" / program.name
        if not made.exists() and program.is_file() and program.read_bytes()[:2] == b"#!":
            first, _, rest = program.read_bytes().partition(b"\n")
            made.write_bytes((f"#!{python}".encode() if b"python" in first else first) + b"\n" + rest)
            made.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {"PATH": f"{env / 'bin'}:{environ['PATH']}", "VIRTUAL_ENV": str(env), "OMP_NUM_THREADS": "1"}
    environ |= {
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }  # as conftest.py has them
    for isolated in ([], ["-I"]):
        shown = [python, *isolated, "-c", "import mptui; print(mptui.__file__)"]
        path = subprocess.run(
            shown, cwd="/", env=environ, capture_output=True, text=True, check=True
        ).stdout.strip()
        if path != str(root / "mptui" / "__init__.py"):
            raise SystemExit(f"The copy's Python imports mptui from {path}, not from {root}")
    return environ
