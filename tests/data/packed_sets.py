"""Writes the images of a folder as tar shards and as Parquet files."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.data.images import photo

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def samples(split):
    return [split.request(index).read() for index in range(len(split))]


def assert_same(found, expected):
    assert found.classes == expected.classes
    assert found.class_counts == expected.class_counts
    for one, other in ((found.train, expected.train), (found.val, expected.val)):
        assert len(one) == len(other)
        for a, b in zip(samples(one), samples(other), strict=True):
            assert np.array_equal(a.image_HWC, b.image_HWC)
            assert a.label == b.label
            assert (a.mask_HW is None) == (b.mask_HW is None)
            assert a.mask_HW is None or np.array_equal(a.mask_HW, b.mask_HW)


def png(seed=0):
    content = io.BytesIO()
    photo(20, 16, seed).save(content, "PNG")
    return content.getvalue()


def add(tar, name, content, **facts):
    """Append a member to an opened tar file."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in facts.items():
        setattr(member, key, value)
    tar.addfile(member, io.BytesIO(content))


def classes_to_tar(folder, out, shards=2, label="cls"):
    """Write class folders as shards in a mixed order, with the classes in `classes.txt`."""
    out.mkdir(parents=True)
    classes = sorted(entry.name for entry in folder.iterdir())
    (out / "classes.txt").write_text("\n".join(classes))
    files = sorted(folder.glob("*/*"), key=lambda file: (file.stem, file.parent.name))
    for number in range(shards):
        with tarfile.open(out / f"train-{number:05d}.tar", "w") as tar:
            for file in files[number::shards]:
                key = f"{file.parent.name}_{file.name}"
                add(tar, key, file.read_bytes())
                stem = key.partition(".")[0]
                index = classes.index(file.parent.name)
                text = {"cls": f"{index}\n", "json": f'{{"label": {index}}}'}[label]
                add(tar, f"{stem}.{label}", text.encode())
    return out


def pairs_to_tar(folder, out):
    """Write images and masks of `images` and `masks` as one shard."""
    out.mkdir(parents=True)
    with tarfile.open(out / "all.tar", "w") as tar:
        for file in sorted((folder / "images").iterdir()):
            add(tar, file.name, file.read_bytes())
            add(tar, f"{file.stem}.mask.png", (folder / "masks" / f"{file.stem}.png").read_bytes())
    return out


def shard(path: Path, members):
    """Write a shard of (name, content, facts of the header)."""
    with tarfile.open(path, "w") as tar:
        for name, content, facts in members:
            add(tar, name, content, **facts)
    return path


def parquet(path: Path, images, labels=None, masks=None, classes=None, **options):
    """Write a Parquet file as the `datasets` library does: images and masks are (bytes, path) or None."""
    columns = {"image": _images(images)}
    if labels is not None:
        columns["label"] = pa.array(labels)
    if masks is not None:
        columns["annotation"] = _images(masks)
    table = pa.table(columns)
    if classes is not None:
        features = {"image": {"_type": "Image"}, "label": {"names": list(classes), "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **{"row_group_size": 5, **options})
    return path


def classes_to_parquet(folder, out, files=2):
    """Write class folders as Parquet files in a mixed order."""
    classes = sorted(entry.name for entry in folder.iterdir())
    rows = sorted(folder.glob("*/*"), key=lambda file: (file.stem, file.parent.name))
    for number in range(files):
        part = rows[number::files]
        parquet(
            out / "data" / f"train-{number:05d}-of-{files:05d}.parquet",
            [(file.read_bytes(), file.name) for file in part],
            [classes.index(file.parent.name) for file in part],
            classes=classes,
        )
    return out


def _images(values):
    rows = [None if value is None else {"bytes": value[0], "path": value[1]} for value in values]
    return pa.array(rows, IMAGE)
