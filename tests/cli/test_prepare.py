"""`mptui prepare` from the command line: its output, and how it is interrupted, killed, and resumed."""

import hashlib
import json
import signal
from functools import partial
from pathlib import Path

import pytest

from mptui.data.layouts.known import recognize
from mptui.errors import DataError
from tests.data.images import class_folders, photo
from tests.made.json_documents import checked
from tests.program import run_to_end

pytestmark = pytest.mark.slow

# The command in a separate process, with small tars, and `{fault}` set up beforehand.
_CALL = """
import os, resource, signal, sys
from mptui.data import prepare
prepare.SAMPLES_A_TAR = 8
calls = 0
def at(number, what, owner, name):
    whole = getattr(owner, name)
    def counted(*arguments):
        global calls
        calls += 1
        if calls == number:
            what()
        return whole(*arguments)
    setattr(owner, name, counted)
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
{fault}
from mptui.cli.main import main
from tests.program import run_to_end
sys.argv[0] = "mptui"
main()
"""
_SHORT = {"in a tar", "before what is in a tar is noted", "in the index"}
"""Cases of the short form."""
_DEATHS = {
    "in a tar": "at(20, die, prepare.TarWriter, 'add')",
    "before a tar has its name": "at(4, die, prepare.os, 'fsync')",
    "before what is in a tar is noted": "at(2, die, prepare, '_write_note')",
    "before the index": "at(1, die, prepare, '_finish')",
    "in the index": "at(9, die, prepare, 'write_file')",
    "before the notes are removed": "at(1, die, prepare, 'forget_notes')",
}


def called(*arguments, within, fault="", command="prepare"):
    code = _CALL.format(fault=fault)
    return run_to_end(code, command, *arguments, call="tests.program:execute", folder=within)


@pytest.fixture
def prepare(tmp_path):
    """Run it in an empty folder."""
    return partial(called, within=tmp_path)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos") / "data"
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for index in range(21):
            photo(60 + index, 50, seed=index).save(root / name / f"{index}.jpg")
    return root


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """The result of an undisturbed call."""
    folder = tmp_path_factory.mktemp("undisturbed")
    ended = called(data, "--image-size", 32, within=folder)
    assert ended.returncode == 0, ended.stderr
    assert "data-32px: 42 samples for classification, 2 classes" in ended.stdout
    assert ended.stderr.splitlines()[-1] == "Next: mptui run --data data-32px"
    return folder / "data-32px"


def contents(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_prepared_set_is_looked_at(prepare, undisturbed):
    looked = prepare(undisturbed, "--json")
    document = checked("prepare", json.loads(looked.stdout))
    assert (looked.returncode, document["samples"], document["shards"]) == (0, 42, 6)
    assert "complete" in looked.stderr


@pytest.mark.parametrize(
    "death", [pytest.param(each, marks=() if each in _SHORT else pytest.mark.chaos) for each in _DEATHS]
)
def test_a_killed_call_goes_on_where_it_was(prepare, data, undisturbed, tmp_path, death):
    killed = prepare(data, "--image-size", 32, "--out", "out", fault=_DEATHS[death])
    assert killed.returncode == -signal.SIGKILL
    there = {path: path.stat().st_ino for path in (tmp_path / "out").glob("*.tar")}
    if death != "before the notes are removed":
        with pytest.raises(DataError, match="an incomplete prepared set"):
            recognize(str(tmp_path / "out"))
    again = prepare(data, "--image-size", 32, "--out", "out", "--json")
    assert again.returncode == 0, again.stderr
    assert contents(tmp_path / "out") == contents(undisturbed)
    kept = [path for path, number in there.items() if path.stat().st_ino == number]
    assert len(kept) >= len(there) - 1  # the one without a note is written again


def test_a_stop_leaves_what_is_done(prepare, data, tmp_path):
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        stop = f"at(3, lambda: os.kill(os.getpid(), {int(number)}), prepare, '_write_note')"
        stopped = prepare(data, "--image-size", 32, "--out", f"out{code}", "--json", fault=stop)
        assert (stopped.returncode, stopped.stdout) == (code, "")
        assert "continues from here" in stopped.stderr
        assert "Traceback" not in stopped.stderr
        assert len(list((tmp_path / f"out{code}").glob("*.tar"))) == 3
        assert not list((tmp_path / f"out{code}").glob("*.tar.partial"))
    assert "24 of 42 are there already" in prepare(data, "--image-size", 32, "--out", "out130").stderr


def test_a_full_disk_is_told_and_gone_on_from(prepare, data, tmp_path):
    full = "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))"
    fault = f"def fill():\n    {full}\nat(2, fill, prepare, '_write_note')"
    ended = prepare(data, "--image-size", 32, "--out", "out", fault=fault)
    assert ended.returncode == 7
    assert "cannot write" in ended.stderr
    assert " GiB are free" in ended.stderr or " MiB are free" in ended.stderr
    assert "repeat the command to continue" in ended.stderr
    assert prepare(data, "--image-size", 32, "--out", "out").returncode == 0
    short = "prepare.shutil.disk_usage = lambda path: os.sys.modules['types'].SimpleNamespace(free=5000)"
    ended = prepare(data, "--image-size", 32, "--out", "other", fault=short)
    assert ended.returncode == 7
    assert "KiB more are needed, " in ended.stderr


def test_mistakes_are_told_in_a_line(prepare, data, tmp_path):
    for arguments, code, said in (
        (("nothing/here",), 3, "no such folder"),
        (("shapes",), 2, "no image files to prepare"),
        (("cifar10",), 2, "no image files to prepare"),
        ((data, "--out", data), 2, "is not empty"),
        ((data, "--quality", "200"), 2, "quality"),
    ):
        ended = prepare(*arguments)
        assert ended.returncode == code, (arguments, ended.stderr)
        assert said in ended.stderr
        assert "Traceback" not in ended.stderr


def test_too_many_bad_files_end_it(prepare, tmp_path):
    class_folders(tmp_path / "few", {"cat": 6, "dog": 6})
    (tmp_path / "few/cat/2.png").write_bytes(b"no image")
    ended = prepare("few", "--image-size", 32)
    assert ended.returncode == 3
    assert "2.png" in ended.stderr
    ended = prepare("few", "--image-size", 32, "--bad-budget", 0.2, "--json")
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["left_out"] == 1
