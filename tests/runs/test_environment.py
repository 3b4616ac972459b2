"""Recorded environments contain no secrets."""

import pytest

from mptui.runs.store.files import redact

ENVIRON = {"WANDB_API_KEY": "0123456789abcdef", "HOME": "/home/someone", "MY_TOKEN": "short"}


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("mptui run --lr 0.1 --epochs 3", "mptui run --lr 0.1 --epochs 3"),
        ("--api-key abc --lr 1", "--api-key … --lr 1"),
        ("--hub-token=abc --lr 1", "--hub-token=… --lr 1"),
        ("WANDB_API_KEY=abc mptui run", "WANDB_API_KEY=… mptui run"),
        ('{"password": "abc", "lr": 1}', '{"password": …, "lr": 1}'),
        ("https://someone:abc@host/path", "https://someone:…@host/path"),
        ("the value 0123456789abcdef, anywhere", "the value …, anywhere"),
        ("the tokens of a text, a secret between us", "the tokens of a text, a secret between us"),
        ("a short word in /home/someone", "a short word in /home/someone"),
    ],
)
def test_secrets_are_left_out_by_name_and_by_value(text, safe):
    assert redact(text, ENVIRON) == safe
