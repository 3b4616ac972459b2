"""Sets of labelled images in Parquet files and tar shards."""

import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq

from tests.data.packed_sets import IMAGE, add, png

NAMES = ("cat", "dog", "cow")


def parquet(path, count, names=NAMES, image="image", label="label", labels=None, rows=None, more=()):
    """Write a file as `datasets` does; image i is of class i modulo 3 of `NAMES`."""
    rows = rows or [{"bytes": png(number), "path": f"{number}.png"} for number in range(count)]
    numbers = [names.index(NAMES[number % 3]) for number in range(count)] if labels is None else labels
    classes = {name: {"names": list(names), "_type": "ClassLabel"} for name in (*more, label)}
    features = {image: {"_type": "Image"}, **classes}
    others = {name: pa.array([0] * count, pa.int64()) for name in more}
    table = pa.table({image: pa.array(rows, IMAGE), **others, label: pa.array(numbers, pa.int64())})
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(table.replace_schema_metadata(about), path)


def shard(path, count, key="{}", ending="cls"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for number in range(count):
            add(tar, f"{key.format(number)}.png", png(number))
            add(tar, f"{key.format(number)}.{ending}", NAMES[number % 3].encode())
