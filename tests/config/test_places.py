from pathlib import Path

import pytest

from mptui.config.profiles import find_profile
from mptui.config.resolve import data_flags, profile_path, write_profile
from mptui.errors import ConfigError, DiskError
from mptui.io.files import base_folder, expanded


def test_a_home_is_put_in_full_and_one_of_nobody_stays(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert expanded("~/data") == Path("/home/somebody/data")
    assert expanded("~no-such-user/data") == Path("~no-such-user/data")


def test_a_variable_wins_over_the_home():
    assert base_folder("XDG_CACHE_HOME", ".cache", {"XDG_CACHE_HOME": "/fast"}) == Path("/fast")


def test_without_a_home_nothing_can_be_kept_and_nothing_breaks(monkeypatch):
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # its result without a home
    folder = base_folder("XDG_CACHE_HOME", ".cache", {})
    assert folder.is_absolute()  # never a folder "~" next to the data
    with pytest.raises(OSError):  # noqa: PT011 - any: who writes there is told
        folder.mkdir(parents=True)


def test_a_folder_of_nobody_is_one_that_is_not_there():
    assert data_flags("~no-such-user/set", "--data")["data.path"] == ("--data", "~no-such-user/set")
    with pytest.raises(ConfigError, match="no such file"):
        find_profile("~no-such-user/my.toml")
    with pytest.raises(DiskError):
        write_profile(Path("/dev/null") / profile_path("~no-such-user/my.toml"), "")
