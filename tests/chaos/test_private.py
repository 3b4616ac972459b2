"""Files of a run are readable by their owner only, whatever the umask, and contain no secrets."""

import stat

from tests.chaos.runs import UNET, trained
from tests.cli.calls import call

SECRET = "s3cr3t-0123456789"


def test_all_of_a_run_is_for_its_owner_and_holds_no_secret(tmp_path):
    ended = call(*UNET.arguments(tmp_path, "run"), environ={"WANDB_API_KEY": SECRET})
    assert ended.returncode == 0, ended.stderr
    run = tmp_path / "run"
    for path in [run, *run.rglob("*")]:
        if not path.is_symlink():
            wanted = 0o700 if path.is_dir() else 0o600
            assert stat.S_IMODE(path.stat().st_mode) == wanted, path
        if path.is_file() and path.suffix in {".json", ".jsonl", ".txt"}:
            assert SECRET not in path.read_text(), path
    assert len(list(run.rglob("*"))) > 10


def test_a_name_stays_inside_the_folder_of_the_runs(tmp_path):
    for name in ("..", ".", "../up", "/tmp", "-rf", "a/b"):
        arguments = UNET.arguments(tmp_path / "runs", "x")
        arguments[arguments.index("x")] = name
        ended = call(*arguments)
        assert ended.returncode == 2, (name, ended.stderr)
        assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_received_with_links_in_it_is_refused(tmp_path):
    mine = tmp_path / "mine"
    (mine / "step-000000001").mkdir(parents=True)
    (mine / "torn line").write_text("no line break")
    for name, target in (
        ("events.jsonl", mine / "torn line"),
        ("console.log", mine / "torn line"),
        ("checkpoints", mine),
    ):
        run = trained(UNET.but(training__max_steps=1), tmp_path, f"run-{name}")
        if (run / name).exists():
            (run / name).rename(tmp_path / f"away-{name}")
        (run / name).symlink_to(target)
        ended = call(*UNET.arguments(tmp_path, run.name))
        assert ended.returncode == 6, ended.stderr
        assert "a link or a special file" in ended.stderr
        assert "Traceback" not in ended.stderr
    assert sorted(path.name for path in mine.iterdir()) == ["step-000000001", "torn line"]
    assert (mine / "torn line").read_text() == "no line break"
