"""What all tests share: none of them sees the settings of the person who runs them."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("MPTUI_")]:
            patch.delenv(name)
        patch.setenv("MPTUI_CONFIG_DIR", str(tmp_path_factory.mktemp("config")))
        yield
