"""mptui works with what `pip install mptui` installs: an extra is imported where it is used, not before."""

import json
import re
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PACKAGE = Path(__file__).parents[1] / "mptui"
TRAINING = ["run", "--model", "unet", "--data", "shapes", "--device", "cpu", "--max-steps", "2", "--json"]
SMALL = {"model.width": 4, "model.depth": 1, "data.image_size": 16, "data.samples": 8, "speed.compile": "off"}
WITHOUT = """
import json, sys
sys.modules |= dict.fromkeys(json.loads(sys.argv.pop(1)))
from mptui.cli.main import main
main()
"""
OTHERS = {"mptui/testing": {"pytest"}, "mptui/data/crop_kernel.py": {"triton"}}
"""Tests to inherit; a kernel of triton, which comes with the torch that it is for."""


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def modules():
    """Names that can be imported: those of mptui and its dependencies, and those of all other packages."""
    dependencies, waiting = set(), [("mptui", "")]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in dependencies:
            continue
        dependencies.add((name, extra))
        try:
            required = map(Requirement, metadata.requires(name) or ())
        except metadata.PackageNotFoundError:  # of another platform
            continue
        for each in required:
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                waiting += [(canonical(each.name), more) for more in ("", *each.extras)]
    names = {name for name, _ in dependencies}
    found = metadata.packages_distributions()
    own = {module for module, owners in found.items() if names & set(map(canonical, owners))}
    return own, found.keys() - own


def imported_first(path):
    """Names of the packages that a module imports as it is imported."""
    return set(re.findall(r"^(?:from|import) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_no_module_imports_an_extra_as_it_is_imported():
    _, extras = modules()
    assert {"timm", "pyarrow", "onnx"} <= extras
    found = {
        str(path.relative_to(PACKAGE.parent)): wrong
        for path in PACKAGE.rglob("*.py")
        if (wrong := imported_first(path) & extras)
    }
    assert not {path: wrong for path, wrong in found.items() if not any(map(path.startswith, OTHERS))}


@pytest.mark.slow
def test_a_run_needs_no_package_but_the_dependencies(tmp_path):
    own, extras = modules()
    assert {"torch", "torchvision", "textual", "numpy"} <= own
    small = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-c", WITHOUT, json.dumps(sorted(extras)), *TRAINING, *small]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["optimizer_steps"] == 2
