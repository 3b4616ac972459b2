import pytest
import torch

from tests import gpus


@pytest.mark.parametrize(("capability", "skipped"), [((7, 0), True), ((7, 5), True), ((8, 0), False)])
def test_a_gpu_without_bf16_skips_the_tests_of_it_alone(monkeypatch, capability, skipped):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    card = type("Card", (), {"major": capability[0], "minor": capability[1]})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    gpus.skip_what_it_lacks(["fp16", torch.bfloat16, 2])
    if skipped:
        with pytest.raises(pytest.skip.Exception):
            gpus.skip_what_it_lacks(["bf16"])
    else:
        gpus.skip_what_it_lacks(["bf16"])


def test_without_a_gpu_its_tests_are_skipped_with_the_reason(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(pytest.skip.Exception, match="there is no GPU"):
        gpus.skip_what_it_lacks([])


@pytest.mark.parametrize(
    ("marks", "alone"),
    [
        ("gpu", True),
        ("gpu and not slow", True),
        ("not slow and not chaos", False),
        ("not gpu", False),
        ("", False),
    ],
)
def test_tests_that_need_a_gpu_run_in_one_process(marks, alone):
    assert gpus.asked_for(marks) == alone


def test_only_files_with_tests_that_need_a_gpu_are_read_for_them(tmp_path):
    (tmp_path / "with" / "in_it").mkdir(parents=True)
    (tmp_path / "without").mkdir()
    files = [tmp_path / "with" / "in_it" / "test_one.py", tmp_path / "without" / "test_two.py"]
    for file, words in zip(files, ("@pytest.mark.gpu", "import a_package_that_is_absent"), strict=True):
        file.write_text(words)
    paths = [*files, tmp_path / "with", tmp_path / "without", tmp_path]
    assert [gpus.are_tested_in(path) for path in paths] == [True, False, True, False, True]
