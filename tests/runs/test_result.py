"""Messages for errors that torch raises."""

import pytest
import torch

from mptui.runs.session.exit_status import not_deterministic


def test_an_operation_without_a_deterministic_way_is_a_setting_to_change():
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError) as caught:
            torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
    finally:
        torch.use_deterministic_algorithms(False)
    told = not_deterministic(caught.value)
    assert told is not None
    assert (told.exit_code, told.__cause__) == (2, caught.value)
    assert told.message == "training.deterministic: put_ has no deterministic implementation on this device"
    assert "training.deterministic=false" in told.hint


@pytest.mark.parametrize("error", [RuntimeError("no way"), KeyError("x does not have a deterministic one")])
def test_other_errors_are_bugs(error):
    assert not_deterministic(error) is None
