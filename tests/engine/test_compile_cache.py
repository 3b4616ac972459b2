"""The compile cache is limited in size, and in a folder that only its owner can write."""

import os

import pytest
import torch._inductor.codecache as codecache

from mptui.engine.compile import VARIABLE, prune, use_compile_cache
from mptui.torch_private import default_cache_dir


@pytest.fixture
def asks(monkeypatch):
    """Request the cache as a fresh process does; returns its folder and the warnings."""
    for name in ("_HEADER_DIR", "_HEADER_LOCK_DIR"):
        monkeypatch.setattr(codecache, name, getattr(codecache, name))

    def ask(folder=None):
        monkeypatch.delenv(VARIABLE, raising=False)
        told = []
        found = use_compile_cache(lambda code, text: told.append((code, text)), folder)
        assert os.environ[VARIABLE] == str(found)
        return found, told

    monkeypatch.setenv(VARIABLE, "put back afterwards")
    return ask


def mode(path):
    return path.stat().st_mode & 0o777


def test_it_is_a_folder_of_the_users_own_that_nobody_else_enters(asks, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = os.umask(0)
    try:
        folder, told = asks()
    finally:
        os.umask(before)
    assert folder == tmp_path / "mptui" / "compiled"
    assert mode(folder) == 0o700
    assert told == []
    assert codecache._HEADER_DIR.startswith(f"{folder}/")
    assert asks()[0] == folder


def test_one_that_is_open_to_others_is_closed(asks, tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    assert asks(folder) == (folder, [])
    assert mode(folder) == 0o700


def leads_elsewhere(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    return tmp_path / "cache"


def is_a_file(tmp_path):
    (tmp_path / "cache").touch()
    return tmp_path / "cache"


def lies_where_all_may_write(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    return tmp_path / "open" / "cache"


@pytest.mark.parametrize("made", [leads_elsewhere, is_a_file, lies_where_all_may_write])
def test_where_others_could_write_nothing_is_kept_and_it_is_said(asks, tmp_path, made):
    wanted = made(tmp_path)
    folder, told = asks(wanted)
    assert folder != wanted
    assert mode(folder) == 0o700
    assert list(folder.iterdir()) == []
    ((code, text),) = told
    assert code == "compile_cache"
    assert "not cached for later runs" in text
    folder.rmdir()


def test_a_folder_of_another_user_is_not_used(asks, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    folder, told = asks(tmp_path / "cache")
    assert folder != tmp_path / "cache"
    assert "belongs to another user" in told[0][1]
    folder.rmdir()


def test_a_cache_that_depends_on_the_current_folder_is_not_used(asks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "runs")
    folder, told = asks()
    assert folder.is_absolute()
    assert "not an absolute path" in told[0][1]
    assert list(tmp_path.iterdir()) == []
    folder.rmdir()


def test_the_persons_own_choice_stays(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "own"))
    assert use_compile_cache(lambda *_: None) == tmp_path / "own"


def test_what_torch_has_set_by_itself_is_nobodys_choice(asks, monkeypatch, tmp_path):
    asks(tmp_path)
    monkeypatch.setenv(VARIABLE, default_cache_dir())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert use_compile_cache(lambda *_: None) == tmp_path / "mptui" / "compiled"


def test_beyond_its_bounds_what_was_not_used_for_longest_goes(tmp_path):
    for age in range(10):
        file = tmp_path / "ab" / f"{age}.so"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x" * 100)
        os.utime(file, (1e9 - age, 1e9 - age))
    prune(tmp_path, limit=1000)
    assert len(list(tmp_path.rglob("*.so"))) == 10
    prune(tmp_path, limit=800)
    assert sorted(file.name for file in tmp_path.rglob("*.so")) == [f"{age}.so" for age in range(6)]
