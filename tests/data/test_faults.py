"""System errors in reading: transient ones are retried, and machine faults aren't blamed on files."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from mptui.data import types
from mptui.data.decode import FileRequest
from mptui.data.prepare import Settings, shrink
from mptui.data.scan import ScanReport, check
from mptui.data.worker import Arena
from mptui.errors import DataError, DiskError
from tests.data.images import photo
from tests.data.loaders import batches, joined, loader
from tests.data.samples import Samples

COUNT = 52


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{number:02}.png" for number in range(COUNT)]
    for number, path in enumerate(paths):
        photo(40, 30, seed=number).save(path)
    return [str(path) for path in paths]


@pytest.fixture(autouse=True)
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of all waits, which are skipped."""
    seconds: list[float] = []
    monkeypatch.setattr("mptui.data.types.sleep", seconds.append)
    monkeypatch.setattr(types._Patience, "futile", 0)
    return seconds


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Make opening files fail with `number`, for the first `times` of each file, or only of named files."""

    def fail(number: int, times: int = 1000, only: str = "") -> list[str]:
        opened: list[str] = []
        plain = Image.open

        def open_(path: object, *args: object, **settings: object) -> Image.Image:
            opened.append(str(path))
            if only in Path(str(path)).name and opened.count(str(path)) <= times:
                raise OSError(number, os.strerror(number))
            return plain(path, *args, **settings)  # type: ignore[arg-type]

        monkeypatch.setattr(Image, "open", open_)
        return opened

    return fail


def of_files(paths: list[str]) -> Samples:
    return Samples(len(paths), lambda index: FileRequest(paths[index], index % 10))


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENOMEM])
def test_an_error_that_passes_costs_no_sample(
    files: list[str], failing: Callable[..., list[str]], waited: list[float], number: int
) -> None:
    failing(number, times=2, only="17")
    with loader(of_files(files)) as it:
        assert sorted(joined(batches(it))[2]) == list(range(COUNT))
        assert it.bad == []
    assert len(waited) == 2


def test_a_file_that_stays_unreadable_is_a_bad_sample_and_named_as_a_read_error(
    files: list[str], failing: Callable[..., list[str]], waited: list[float]
) -> None:
    failing(errno.EIO, only="17")
    with loader(of_files(files)) as it:
        batches(it)
        assert [(problem.path, problem.reason) for problem in it.bad] == [
            (files[17], "read error: input/output error")
        ]
    assert sum(waited) < 5


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EISDIR])
def test_what_does_not_pass_is_not_waited_for(
    files: list[str], failing: Callable[..., list[str]], waited: list[float], number: int
) -> None:
    failing(number, only="17")
    with loader(of_files(files)) as it:
        batches(it)
        assert [problem.reason for problem in it.bad] == [os.strerror(number).lower()]
    assert waited == []


def test_a_disk_that_is_gone_is_soon_not_waited_for(
    files: list[str], failing: Callable[..., list[str]], waited: list[float]
) -> None:
    failing(errno.ESTALE)
    with loader(of_files(files), bad_budget=0.5) as it, pytest.raises(DataError, match="stale file handle"):
        batches(it)
    assert sum(waited) < 10


@pytest.mark.parametrize(
    ("number", "hint"), [(errno.EMFILE, "ulimit -n"), (errno.ENFILE, "file-max"), (errno.ENOMEM, "memory")]
)
def test_a_machine_without_files_or_memory_is_at_fault_and_not_the_file(
    files: list[str], failing: Callable[..., list[str]], number: int, hint: str
) -> None:
    """In training, in the scan and in `mptui prepare`: the budget of bad samples is unchanged."""
    failing(number)
    with loader(of_files(files), bad_budget=1.0) as it:
        with pytest.raises(DataError, match=f"cannot read: {os.strerror(number).lower()}") as error:
            batches(it)
        assert it.bad == []
    assert hint in error.value.hint
    finding = check((files[0], None), True)
    small = shrink((files[0], None), Settings(64, 90, None))
    assert finding.reason == small.reason
    report = ScanReport(sides=None, keys=None)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="cannot read"):
        report.add(0, finding)


@pytest.fixture
def small_files() -> Iterator[None]:
    """Limit files to 1 MiB, as `ulimit -f`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("cache", ["off", "ram", "device"])
def test_a_limit_of_the_size_of_files_is_named(files: list[str], small_files: None, cache: str) -> None:
    with (
        pytest.raises(DiskError, match="file too large") as error,
        loader(of_files(files), cache=cache, side=256, batch_size=32) as it,
    ):
        batches(it)
    assert "ulimit -f" in error.value.hint
    arena = Arena()
    arena.reserve(1 << 19)
    arena.close()
