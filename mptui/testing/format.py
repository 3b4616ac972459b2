"""What a run relies on from a format of data, as tests; see `mptui.testing`."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mptui.config.schema import DataConfig
from mptui.data.folder_format import FolderFormat
from mptui.data.layouts.known import FORMATS, layout_of, recognize_kinds
from mptui.data.open import open_dataset
from mptui.data.types import Dataset, Decoded, Split
from mptui.errors import DataError
from mptui.registry.names import SampleKind

Images = Mapping[str, Sequence[bytes]]
"""Files of images, each a PNG, by class."""

_HOSTILE = "a\x1b]52;c;eA==\x07 \u202e'\"é,"


class FormatContract:
    """What a run relies on from a format of data, an entry of `FORMATS`.

    A subclass has the fixture `spec` and the method `make`; and `kind`, if its samples have no class.
    """

    kind = SampleKind.CLASS

    @pytest.fixture
    def spec(self) -> FolderFormat:
        """The entry."""
        raise NotImplementedError

    def make(self, folder: Path, images: Images) -> Path:
        """Write a set of these images into an empty folder; return what a person gives as --data."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def name(self, spec: FolderFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
        """The name of the format; one that is not entered is the first to be asked."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        before = dict(FORMATS)
        entries = before if spec in before.values() else {"contract": spec, **before}
        FORMATS.clear()
        FORMATS.update(entries)
        yield layout_of(spec)
        FORMATS.clear()
        FORMATS.update(before)

    def open(self, path: Path, **settings: object) -> Dataset:
        """Open a set, as a run does."""
        return open_dataset(
            DataConfig.model_validate({"path": str(path), **settings}),
            kind=self.kind,
            side=8,
            seed=0,
            on_progress=lambda done, total: None,
            should_stop=lambda: False,
            on_warning=lambda warning: None,
        )

    def test_each_sample_is_read_once_and_the_set_is_described(
        self, spec: FolderFormat, name: str, tmp_path: Path
    ) -> None:
        """It is recognized, says what it was understood to be, and gives each image with its class."""
        path = self.make(tmp_path / "set", _images(cat=6, dog=5))
        known, kinds = recognize_kinds(str(path))
        assert known is spec
        assert self.kind in kinds
        dataset = self.open(path)
        assert dataset.reading is not None
        assert dataset.reading.layout == name
        assert dataset.reading.split
        read = [*_samples(dataset.train), *_samples(dataset.val)]
        assert len({sample.image_HWC.tobytes() for sample in read}) == len(read) == 11
        if self.kind is SampleKind.CLASS:
            assert dataset.classes == ("cat", "dog")
            counts = zip(dataset.reading.train_counts, dataset.reading.val_counts, strict=True)
            assert [sum(each) for each in counts] == [6, 5]
            assert all(sample.label == _is_dog(sample) for sample in read)

    def test_the_same_files_are_the_same_set(self, tmp_path: Path) -> None:
        """The order of samples depends on nothing but the files: a run is resumed on another machine."""
        images = _images(cat=6, dog=5)
        sets = [self.open(self.make(tmp_path / place / "set", images)) for place in ("one", "two")]
        for one, other in ((sets[0].train, sets[1].train), (sets[0].val, sets[1].val)):
            assert _bits(one) == _bits(other)

    def test_an_image_that_can_not_be_read_is_counted_and_named(self, tmp_path: Path) -> None:
        """It is left out, or ends the run before it begins, as the budget says."""
        images = _images(cat=6, dog=5)
        path = self.make(tmp_path / "set", {**images, "dog": [b"no image", *images["dog"][1:]]})
        dataset = self.open(path, bad_sample_budget=0.5)
        assert len(dataset.train) + len(dataset.val) == 10
        assert len(dataset.problems) == 1
        with pytest.raises(DataError, match="1 of 11 samples can't be used") as caught:
            self.open(path, bad_sample_budget=0.0)
        assert "not an image" in caught.value.message
        assert "data.bad_sample_budget" in caught.value.hint

    def test_what_has_another_format_is_none_of_its(self, spec: FolderFormat, tmp_path: Path) -> None:
        """An empty folder, one of texts, a text, and nothing; a refusal names the layout of each format."""
        texts = tmp_path / "texts"
        texts.mkdir()
        (tmp_path / "empty").mkdir()
        (texts / "notes.txt").write_text("to do\n")
        for path in (tmp_path / "empty", texts, texts / "notes.txt"):
            assert spec.recognize(str(path)) is None
            with pytest.raises(DataError) as caught:
                self.open(path)
            assert path.is_file() or spec.layout in caught.value.message

    def test_hostile_names_reach_no_message(self, tmp_path: Path) -> None:
        """Names of classes may hold anything that the format can; a terminal is shown text."""
        path = self.make(tmp_path / "set", _images(**{_HOSTILE: 5, "dog": 5}))
        if message := _refusal(partial(self.open, path)):
            assert _is_text(message)
            return
        dataset = self.open(path)
        assert dataset.reading is not None
        assert all(
            map(_is_text, (dataset.name, *dataset.classes, *dataset.warnings, *dataset.reading.classes))
        )
        assert len(_bits(dataset.train)) + len(_bits(dataset.val)) == 10

    def test_a_damaged_file_ends_in_a_dataset_or_a_message(self, spec: FolderFormat, tmp_path: Path) -> None:
        """Whatever is in a file: no other error, and no control characters on a terminal."""
        path = self.make(tmp_path / "set", _images(cat=3, dog=3))
        files = sorted(each for each in (tmp_path / "set").rglob("*") if each.is_file())
        data, numbers = DataConfig(path=str(path)), np.random.default_rng(0)

        def find() -> None:
            if spec.recognize(str(path)) is not None:
                spec.find(str(path), self.kind, lambda *_: None, lambda: False, data)

        for file in [each for each in files if each.suffix != ".png"] or files[:1]:
            whole = file.read_bytes()
            for _ in range(40):
                damaged = bytearray(whole)
                for place in numbers.integers(0, len(whole), 3):
                    damaged[place] = numbers.integers(256)
                file.write_bytes(damaged[: numbers.integers(0, len(whole) + 1)])
                assert _is_text(_refusal(find) or "")
            file.write_bytes(whole)


def _images(**counts: int) -> Images:
    """Return different images; those of the first class have red for their first pixel, others blue."""
    found: dict[str, list[bytes]] = {}
    for place, (name, count) in enumerate(counts.items()):
        found[name] = []
        for number in range(count):
            pixels_HWC = np.random.default_rng([place, number]).integers(0, 256, (12, 10, 3), np.uint8)
            pixels_HWC[0, 0] = (0, 0, 255) if place else (255, 0, 0)
            content = io.BytesIO()
            Image.fromarray(pixels_HWC).save(content, "PNG")
            found[name].append(content.getvalue())
    return found


def _is_dog(sample: Decoded) -> int:
    return int(sample.image_HWC[0, 0, 2] > sample.image_HWC[0, 0, 0])


def _samples(split: Split) -> Iterator[Decoded]:
    return (split.request(index).read() for index in range(len(split)))


def _bits(split: Split) -> list[tuple[int, bytes]]:
    return [(sample.label, sample.image_HWC.tobytes()) for sample in _samples(split)]


def _refusal(call: Callable[[], object]) -> str | None:
    """Return the message by which a call refuses the data."""
    try:
        call()
    except DataError as error:
        return f"{error.message}\n{error.hint}"
    return None


def _is_text(lines: str) -> bool:
    return all(line.isprintable() for line in lines.split("\n"))
