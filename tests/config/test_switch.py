import pytest

from mptui.config.schema import RunConfig
from mptui.config.switch import switched
from mptui.errors import ConfigError


def test_a_preset_that_can_not_be_had_with_the_run_says_why_in_plain_words():
    current = RunConfig.model_validate({"training": {"deterministic": True}})
    preset = RunConfig.model_validate({"speed": {"compile": "max-autotune"}})
    with pytest.raises(ConfigError) as caught:
        switched(current, preset)
    assert caught.value.message == (
        "the preset can't be taken in this run: training.deterministic with speed.compile = "
        '"max-autotune": autotuning is not repeatable; use "default" or "off"'
    )
