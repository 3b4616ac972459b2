"""Names of settings in other training programs lead to ours."""

import pytest

from mptui.config.keys import ELSEWHERE, SETTINGS, nearest_setting


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("use_amp", "precision.mode"),
        ("training.amp_dtype", "precision.mode"),
        ("mixed_precision", "precision.mode"),
        ("compile_model", "speed.compile"),
        ("data.num_workers", "data.workers"),
        ("num-workers", "data.workers"),
        ("prefetch_factor", "data.prefetch"),
        ("memory_format", "speed.channels_last"),
        ("num_epochs", "training.epochs"),
        ("learning_rate", "training.lr"),
        ("LR", "training.lr"),
        ("training.learningRate", "training.lr"),
        ("batchsize", "training.batch_size"),
        ("train_batch_size", "training.batch_size"),
        ("epoch", "training.epochs"),
        ("weightDecay", "training.weight_decay"),
        ("accumulation_steps", "training.accumulate"),
        ("early_stopping_patience", "training.early_stopping_patience"),
        ("mixup_alpha", "data.mixup_alpha"),
        ("growth_interval", "precision.grad_scaler.growth_interval"),
    ],
)
def test_a_name_of_another_program_leads_to_the_setting(theirs, ours):
    assert nearest_setting(theirs) == ours


def test_each_leads_to_a_setting_and_is_none_itself():
    assert set(ELSEWHERE.values()) <= SETTINGS.keys()
    assert not {key.rpartition(".")[2] for key in SETTINGS} & ELSEWHERE.keys()
