"""The places of faults: what is changed at them, and that they are found again where code has moved."""

from textwrap import dedent

import pytest

from tests.tools import mutants
from tests.tools.sites import Tree

CODE = dedent("""
    class Loop:
        def __repr__(self):
            return "a loop" if self.ended else "none"

        def steps(self, limit, *, left=3):
            for step in _numbers.first(limit):
                if step < limit and not self._ended:
                    self._write(step + 1)
                elif step == limit:
                    break
            left -= 1
            return f"{left + 1}", shown(width=7)

    def on_a_gpu():
        torch.cuda.synchronize()
    """)


def made(folder, room="engine", file="loop.py", code=CODE):
    path = folder / "mptui" / room / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
    return Tree(folder)


def test_mutations(tmp_path):
    tree = made(tmp_path)
    told = set()
    for site in tree.sites("engine"):
        statement, mutation = tree.find(site)
        assert (statement.function, statement.text) == ("Loop.steps", site.statement)
        source = statement.path.read_bytes()
        changed = mutation.applied(source).decode()
        compile(changed, "changed", "exec")
        (line,) = set(changed.splitlines()) - set(CODE.splitlines())
        told.add((site.kind, line.strip()))
        compile(mutants.marked(source, 0, statement.node), "marked", "exec")
    assert told == {
        ("condition negated", "if (not (step < limit and (not self._ended))):"),
        ("and, or", "if (step < limit or not self._ended):"),
        ("comparison", "if (step <= limit) and not self._ended:"),
        ("not removed", "if step < limit and (self._ended):"),
        ("call removed", "pass"),
        ("arithmetic", "self._write((step - 1))"),
        ("integer + 1", "self._write(step + 2)"),
        ("condition negated", "elif (not (step == limit)):"),
        ("comparison", "elif (step != limit):"),
        ("break to continue", "continue"),
        ("arithmetic", "left += 1"),
        ("integer + 1", "left -= 2"),
        ("None returned", "return None"),
    }


MOVES = {
    "to another file": ("engine", lambda code: code),
    "with a helper of another name": ("engine", lambda code: code.replace("_write", "write")),
    "beside its helper": ("engine", lambda code: code.replace("_numbers.first", "_first")),
    "to another room": ("runs", lambda code: code),
    "in another class": ("engine", lambda code: code.replace("Loop", "Steps")),
}


@pytest.mark.parametrize("move", MOVES)
def test_found_where_it_has_moved(move, tmp_path):
    sites = made(tmp_path / "before").sites("engine")
    room, edited = MOVES[move]
    after = made(tmp_path / "after", room, "steps.py", "import torch\n" + edited(CODE))
    if move == "in another class":  # a short statement may be another
        sites = [site for site in sites if len(site.statement) > 30]
    assert sites
    for site in sites:
        statement, mutation = after.find(site)
        assert (statement.room, mutation.kind) == (room, site.kind)


def test_gone(tmp_path):
    sites = made(tmp_path / "before").sites("engine")
    code = CODE.replace("step < limit and not self._ended", "self._goes_on(step)")
    after = made(tmp_path / "after", code=code)
    assert {site.statement for site in sites if after.find(site) is None} == {
        "if step < limit and (not self._ended):"
    }
