"""Writes the images of a folder as tar shards."""

import io
import tarfile
from pathlib import Path


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
