"""A checkpoint with any damage is detected and set aside, and the older one is used."""

import random
import shutil

import pytest

from mptui.engine.checkpoint.files import read_checkpoint, read_newest, write_checkpoint
from mptui.errors import RunDirectoryError
from tests.engine.checkpoints import same, snapshot

PAGE = 4096


def files(path):
    return sorted(p for p in path.iterdir())


def flip_bit(path, older, chance):
    victim = chance.choice(files(path))
    content = bytearray(victim.read_bytes())
    bit = chance.randrange(len(content) * 8)
    content[bit // 8] ^= 1 << bit % 8
    victim.write_bytes(content)


def change_byte(path, older, chance):
    victim = chance.choice(files(path))
    content = bytearray(victim.read_bytes())
    place = chance.randrange(len(content))
    content[place] ^= chance.randrange(1, 256)
    victim.write_bytes(content)


def lose_page(path, older, chance):
    victim = max(files(path), key=lambda p: p.stat().st_size)
    content = bytearray(victim.read_bytes())
    start = chance.randrange(len(content) // PAGE) * PAGE
    filler = chance.choice([b"\0", b"\xff"]) * PAGE
    if content[start : start + PAGE] == filler:
        filler = b"\x55" * PAGE
    content[start : start + PAGE] = filler
    victim.write_bytes(content)


def truncate(path, older, chance):
    victim = chance.choice(files(path))
    content = victim.read_bytes()
    victim.write_bytes(content[: chance.randrange(len(content))])


def append(path, older, chance):
    victim = chance.choice(files(path))
    victim.write_bytes(victim.read_bytes() + chance.choice([b"\0", b"\n", b" ", b"}"]))


def swap_files(path, older, chance):
    one, other = chance.sample(files(path), 2)
    content = one.read_bytes(), other.read_bytes()
    one.write_bytes(content[1])
    other.write_bytes(content[0])


def take_from_older(path, older, chance):
    victim = chance.choice(files(path))
    shutil.copy(older / victim.name, victim)


def lose_file(path, older, chance):
    chance.choice(files(path)).unlink()


def be_the_older(path, older, chance):
    shutil.rmtree(path)
    shutil.copytree(older, path)


def lead_elsewhere(path, older, chance):
    victim = chance.choice(files(path))
    away = victim.rename(path.parent / f"away-{victim.name}")
    victim.symlink_to(away)


MUTATIONS = [
    *(flip_bit, change_byte, lose_page, truncate, append),
    *(swap_files, take_from_older, lose_file, be_the_older, lead_elsewhere),
]


def assert_all_noticed(folder, count, seed):
    older, path = [write_checkpoint(folder, snapshot(step, size=3000)) for step in (1, 2)]
    whole = shutil.copytree(path, folder / "whole")
    chance = random.Random(seed)
    for number in range(count):
        mutate = MUTATIONS[number % len(MUTATIONS)]
        mutate(path, older, chance)
        with pytest.raises(RunDirectoryError) as caught:
            read_checkpoint(path)
        assert "damaged checkpoint" in caught.value.message, mutate.__name__
        if number < len(MUTATIONS):
            read, complaints = read_newest(folder)
            same(read, snapshot(1, size=3000))
            assert len(complaints) == 1
            for aside in folder.glob("damaged-*"):  # it would be looked at again
                shutil.rmtree(aside)
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
    same(read_checkpoint(path), snapshot(2, size=3000))


def test_every_mutation_is_noticed(tmp_path):
    assert_all_noticed(tmp_path, 100, seed=0)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(4))
def test_ten_thousand_mutations_are_noticed(tmp_path, seed):
    assert_all_noticed(tmp_path, 2500, seed)
