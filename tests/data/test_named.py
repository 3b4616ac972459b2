import struct
import sys

import numpy as np
import pytest

from mptui.config.schema import DataConfig
from mptui.data.open import fetched, kind_of, open_dataset
from mptui.errors import DataError, DiskError
from mptui.registry.names import SampleKind

from .images import photo, stripes


def opened(name, root, kind=SampleKind.CLASS):
    return open_dataset(
        DataConfig(name=name, path=str(root)),
        kind=kind,
        side=32,
        seed=0,
        on_progress=lambda done, total: None,
        should_stop=lambda: False,
        on_warning=lambda message: None,
    )


def write_mnist(root, family="MNIST"):
    raw = root / family / "raw"
    raw.mkdir(parents=True)
    for half, count in (("train", 12), ("t10k", 5)):
        images = np.arange(count * 28 * 28).reshape(count, 28, 28).astype(np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        header = struct.pack(">IIII", 0x803, count, 28, 28)
        (raw / f"{half}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        (raw / f"{half}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels.tobytes())


@pytest.mark.parametrize(("name", "family"), [("mnist", "MNIST"), ("fashionmnist", "FashionMNIST")])
def test_a_set_that_is_one_array(tmp_path, name, family):
    write_mnist(tmp_path, family)
    dataset = opened(name, tmp_path)
    assert (len(dataset.classes), len(dataset.train), len(dataset.val)) == (10, 12, 5)
    assert dataset.class_counts == [2, 2] + [1] * 8
    decoded = dataset.train.request(11).read()
    assert decoded.label == 1
    assert (decoded.image_HWC[..., 1].ravel() == (np.arange(784) + 11 * 784).astype(np.uint8)).all()


def test_the_second_time_the_array_is_enough(tmp_path, monkeypatch):
    write_mnist(tmp_path)
    first = opened("mnist", tmp_path)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert opened("mnist", tmp_path).classes == first.classes


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "imagenette", "food101", "oxford-pets"])
def test_a_set_that_is_not_there_says_how_to_get_it(tmp_path, name):
    with pytest.raises(DataError) as caught:
        opened(name, tmp_path)
    assert caught.value.exit_code == 3
    assert "--download" in caught.value.hint


def test_a_pickle_with_the_wrong_sum_is_never_opened(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    bomb = b"cbuiltins\nexec\n(S'open(\"" + str(tmp_path / "ran").encode() + b'", "w")\'\ntR.'
    for name in ["batches.meta", "test_batch", *(f"data_batch_{i}" for i in range(1, 6))]:
        (folder / name).write_bytes(bomb)
    with pytest.raises(DataError):
        opened("cifar10", tmp_path)
    assert not (tmp_path / "ran").exists()


def write_pets(root):
    folder = root / "oxford-iiit-pet"
    (folder / "images").mkdir(parents=True)
    (folder / "annotations" / "trimaps").mkdir(parents=True)
    from PIL import Image

    for half, names in (("trainval", ("Abyssinian_1", "beagle_1")), ("test", ("Abyssinian_2", "beagle_2"))):
        lines = []
        for name in names:
            photo(24, 16).save(folder / "images" / f"{name}.jpg")
            Image.fromarray(stripes(2, 3, 1)).save(folder / "annotations" / "trimaps" / f"{name}.png")
            lines.append(f"{name} {1 + (name[0] == 'b')} 1 1\n")
        (folder / "annotations" / f"{half}.txt").write_text("".join(lines))


def test_pets_serve_both_tasks(tmp_path):
    write_pets(tmp_path)
    assert kind_of(DataConfig(name="oxford-pets", path=str(tmp_path))) is None
    dataset = opened("oxford-pets", tmp_path)
    assert (dataset.classes, len(dataset.train), len(dataset.val)) == (("Abyssinian", "Beagle"), 2, 2)
    assert dataset.val.request(1).read().label == 1
    dataset = opened("oxford-pets", tmp_path, kind=SampleKind.MASK)
    assert dataset.classes == ("pet", "background", "border")
    assert dataset.train.request(0).read().mask_HW[0, ::8].tolist() == [1, 2, 0]


def test_imagenette_and_food(tmp_path):
    for half in ("train", "val"):
        for wnid in ("n01440764", "n02102040"):
            folder = tmp_path / "imagenette2-160" / half / wnid
            folder.mkdir(parents=True)
            photo().save(folder / "1.JPEG".lower())
    dataset = opened("imagenette", tmp_path)
    assert (dataset.classes, len(dataset.train), len(dataset.val)) == (("tench", "English springer"), 2, 2)
    meta = tmp_path / "food-101" / "meta"
    meta.mkdir(parents=True)
    for half, number in (("train", 1), ("test", 2)):
        (meta / f"{half}.json").write_text(f'{{"pie": ["pie/{number}"], "soup": ["soup/{number}"]}}')
        for dish in ("pie", "soup"):
            folder = tmp_path / "food-101" / "images" / dish
            folder.mkdir(parents=True, exist_ok=True)
            photo().save(folder / f"{number}.jpg")
    dataset = opened("food101", tmp_path)
    assert (dataset.classes, len(dataset.train), len(dataset.val)) == (("pie", "soup"), 2, 2)


def test_an_array_is_never_seen_half_written(tmp_path, own_cache, monkeypatch):
    write_mnist(tmp_path)
    first = opened("mnist", tmp_path)
    (array,) = own_cache.rglob("train-images.npy")
    seen = array.stat().st_ino
    expected = first.train.request(3).read().image_HWC
    (array.parent / "classes.json").unlink()  # as in another run that is about to write the same
    opened("mnist", tmp_path)
    assert array.stat().st_ino != seen  # processes that mapped the first one keep it
    assert np.array_equal(first.train.request(3).read().image_HWC, expected)
    assert {path.suffix for path in array.parent.iterdir()} == {".npy", ".json"}


def test_an_array_that_was_cleared_away_is_written_again(tmp_path, own_cache):
    write_mnist(tmp_path)
    opened("mnist", tmp_path)
    (array,) = own_cache.rglob("val-images.npy")
    array.unlink()
    assert len(opened("mnist", tmp_path).val) == 5


def test_a_folder_that_can_not_be_made_is_a_disk_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="Not a directory"):
        fetched("mnist", tmp_path / "file" / "data", lambda: False)
