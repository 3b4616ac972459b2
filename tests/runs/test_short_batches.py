"""A short last batch of an epoch is used as any other."""

import pytest

from mptui.runs.store.directory import read_summary
from tests.made.runs import UNET, trained


@pytest.mark.parametrize("compiling", ["default", "off"])
def test_all_samples_are_used_whether_a_run_may_compile_or_not(tmp_path, compiling):
    changed = {"speed.compile": compiling, "data.samples": 63, "training.batch_size": 32}
    changed |= {"training.epochs": 2}
    session = trained(tmp_path / "run", UNET | changed)
    assert session.result.exit_code == 0
    summary = read_summary(session.run)
    assert (summary["optimizer_steps"], summary["samples_seen"]) == (4, 2 * 63)
