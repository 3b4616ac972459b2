"""The row of GPT-2 in the guides' table, with a small network in place of the library's."""

import json
import sys

import pytest
from typer.testing import CliRunner

from mptui.cli.main import app
from mptui.errors import ConfigError

LIBRARY = """
import os
from types import SimpleNamespace

import torch
from torch import nn


class GPT2Config:
    def __init__(self, n_layer, n_embd, n_head, n_positions, vocab_size, use_cache):
        self.width, self.words, self.length = n_embd, vocab_size, n_positions


class GPT2LMHeadModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.inner = nn.Embedding(config.words, config.width)
        self.head = nn.Linear(config.width, config.words)

    def forward(self, input_ids, labels):
        assert self.training and input_ids.shape == (4, self.config.length)
        logits_BTV = self.head(self.inner(input_ids))
        with open(os.environ["SEEN"], "a") as seen:
            print(logits_BTV.dtype, torch.get_float32_matmul_precision(), os.getpid(), file=seen)
        loss = nn.functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return SimpleNamespace(loss=loss)
"""


def table(*arguments):
    return CliRunner().invoke(app, ["bench", "--table", "guides", "--device", "cpu", *arguments])


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A module `transformers` that notes how it was called; return its notes."""
    (tmp_path / "transformers.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    return lambda: [line.split() for line in (tmp_path / "seen").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("forked_servers")
def test_each_format_is_measured_in_a_process_of_its_own_with_the_claim_beside_it(library):
    ended = table("--only", "gpt2", "--rounds", "1", "--seconds", "0.1", "--json")
    assert ended.exit_code == 0, ended.stderr

    (row,) = json.loads(ended.stdout)["rows"]
    assert (row["size"], row["batch_size"]) == ("2 layers of 128, 64 tokens", 4)
    assert row["claim"] == {"fp16": 1.7, "bf16": 1.65}
    assert f"GPT-2, BF16: {row['formats'][-1]['samples_per_second']:,.1f} sequences/s" in ended.stderr
    dtypes = {"baseline": "torch.float32", "fp16": "torch.float16", "bf16": "torch.bfloat16"}
    assert {seen[0] for seen in library()} == {dtypes[found["name"]] for found in row["formats"]}
    assert {seen[1] for seen in library()} == {"highest"}
    assert len({seen[2] for seen in library()}) == len(row["formats"])
    for found in row["formats"]:
        assert found["samples_per_second"] > 0
        assert found["loss"] == pytest.approx(row["formats"][0]["loss"], rel=0.01)
        assert set(found["settings"]) == {"precision.mode", "precision.matmul"}


def test_without_the_library_the_row_is_left_out_with_a_way_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)

    error = table("--only", "gpt2").exception

    assert isinstance(error, ConfigError)
    assert "not installed: pip install transformers" in error.message


def test_settings_of_mptui_are_not_said_to_hold_for_it(library):
    error = table("--only", "gpt2", "--set", "training.batch_size=2").exception

    assert isinstance(error, ConfigError)
    assert "--set" in error.message
