"""Files of a run are readable by their owner only, whatever the umask, and contain no secrets."""

import stat

from tests.chaos.runs import LIMIT_S, UNET, finished, started

SECRET = "s3cr3t-0123456789"


def test_all_of_a_run_is_for_its_owner_and_holds_no_secret(fork_server, tmp_path):
    arguments = UNET.arguments(tmp_path, "run")
    environ = {"WANDB_API_KEY": SECRET}
    child = fork_server.run(arguments, tmp_path / "said", environ=environ)
    assert child.wait(LIMIT_S) == 0, child.output()
    run = tmp_path / "run"
    for path in [run, *run.rglob("*")]:
        if not path.is_symlink():
            wanted = 0o700 if path.is_dir() else 0o600
            assert stat.S_IMODE(path.stat().st_mode) == wanted, path
        if path.is_file() and path.suffix in {".json", ".jsonl", ".txt"}:
            assert SECRET not in path.read_text(), path
    assert len(list(run.rglob("*"))) > 10


def test_a_name_stays_inside_the_folder_of_the_runs(fork_server, tmp_path):
    for name in ("..", ".", "../up", "/tmp", "-rf", "a/b"):
        arguments = UNET.arguments(tmp_path / "runs", "x")
        arguments[arguments.index("x")] = name
        child = fork_server.run(arguments, tmp_path / "said")
        assert child.wait(LIMIT_S) == 2, (name, child.output())
        assert "Traceback" not in child.output()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["said"]


def test_a_run_that_was_received_with_links_in_it_is_refused(fork_server, tmp_path):
    mine = tmp_path / "mine"
    (mine / "step-000000001").mkdir(parents=True)
    (mine / "torn line").write_text("no line break")
    for name, target in (
        ("events.jsonl", mine / "torn line"),
        ("console.log", mine / "torn line"),
        ("checkpoints", mine),
    ):
        run = finished(fork_server, UNET.but(training__max_steps=1), tmp_path, f"run-{name}")
        if (run / name).exists():
            (run / name).rename(tmp_path / f"away-{name}")
        (run / name).symlink_to(target)
        child = started(fork_server, UNET, tmp_path, run.name)
        assert child.wait(LIMIT_S) == 6, child.output()
        assert "a link or a special file" in child.output()
        assert "Traceback" not in child.output()
    assert sorted(path.name for path in mine.iterdir()) == ["step-000000001", "torn line"]
    assert (mine / "torn line").read_text() == "no line break"
