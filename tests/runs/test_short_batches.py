"""A short last batch of an epoch is used as any other."""

import os

import pytest

from mptui.runs.planning.plan import Request, plan_run
from mptui.runs.session.session import Session
from mptui.runs.store.directory import create_run, read_summary
from tests.runs.test_resumed import LIMIT_S, SETTINGS


@pytest.mark.parametrize("compiling", ["default", "off"])
def test_all_samples_are_used_whether_a_run_may_compile_or_not(tmp_path, compiling):
    changed = {"speed.compile": compiling, "data.samples": 63, "training.batch_size": 32}
    changed |= {"training.epochs": 2}
    flags = {key: ("test", value) for key, value in {**SETTINGS, **changed}.items()}
    run = create_run(tmp_path, "test", "unet", "run")
    session = Session(plan_run(Request("stable", flags, (), os.environ)), run)
    session.start()
    assert session.wait(LIMIT_S)
    assert session.result.exit_code == 0
    summary = read_summary(run)
    assert (summary["optimizer_steps"], summary["samples_seen"]) == (4, 2 * 63)
