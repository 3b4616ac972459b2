"""Every call that removes, renames or replaces a file by its name stands here with the rule that it obeys.

A new one needs a rule: what proves that the file is the program's own.
"""

import ast

from tests.source_trees import source_trees

FRESH = "made by this call, under a name that nothing else has"
OWNED = "in a folder that `claim` has found to be a run's, under a full name that only a run writes"
PROVED = "only what a manifest, a picture's own text or a partial name proves to be ours"
CACHE = "in the program's own folder of the user's cache"
PREPARED = "in a folder that `prepare` has found to hold nothing but its own set"
NOTED = "only what `.mptui-files.jsonl` says was written here, or what a person allows with --force"
ASKED = "a run that a person deletes, renames or cleans up, after a question, claimed before"

RULES = {
    "data/layouts/parquet.py": ({"unlink"}, CACHE),
    "data/prepare.py": ({"replace", "unlink"}, PREPARED),
    "data/worker.py": ({"ftruncate"}, FRESH),
    "engine/checkpoint/files.py": ({"rename", "rmtree", "symlink", "unlink"}, PROVED),
    "engine/compile.py": ({"rmtree", "unlink"}, CACHE),
    "io/files.py": ({"ftruncate", "replace", "unlink"}, (FRESH, OWNED)),
    "io/own_files.py": ({"rename", "rmdir", "rmtree", "unlink"}, (FRESH, PROVED)),
    "io/written_files.py": ({"replace", "unlink"}, NOTED),
    "runs/launch/launcher.py": ({"replace"}, OWNED),
    "runs/listing/forks.py": ({"copyfile", "link", "rmtree", "symlink_to"}, FRESH),
    "runs/listing/housekeeping.py": ({"rename", "rmdir", "unlink"}, (ASKED, PROVED)),
    "runs/remote/control.py": ({"rmdir", "symlink_to", "unlink"}, OWNED),
    "runs/store/files.py": ({"rmtree", "unlink"}, (FRESH, PROVED)),
    "runs/store/journal.py": ({"ftruncate", "replace", "unlink"}, OWNED),
    "runs/store/lock.py": ({"unlink"}, OWNED),
    "runs/store/pictures.py": ({"unlink"}, PROVED),
    "runs/trackers/local_files.py": ({"ftruncate"}, OWNED),
    "runs/trackers/services.py": ({"hardlink_to", "unlink"}, FRESH),
}

ALWAYS = {"unlink", "rmtree", "rmdir", "removedirs", "ftruncate", "symlink", "symlink_to", "link"}
ALWAYS |= {"hardlink_to", "copyfile", "copytree", "rename", "renames"}
SOMETIMES = {"replace", "remove", "truncate"}
CALLED = rf"\.({'|'.join(sorted(ALWAYS | SOMETIMES))})\s*\(|\bshutil\s*\."
"""What every such call, and every function of `shutil` that is handed over, has in its text."""


def changes_files(call):
    """Whether a call removes, renames or replaces a file; `str.replace` has two arguments."""
    name, of_os = call.func.attr, isinstance(call.func.value, ast.Name) and call.func.value.id == "os"
    if name in SOMETIMES:
        is_of_path = name == "replace" and len(call.args) == 1 and not call.keywords
        return of_os or (is_of_path and not isinstance(call.args[0], ast.List | ast.ListComp))
    return name in ALWAYS


def test_each_removal_obeys_a_rule():
    in_rooms: dict[str, set[str]] = {}
    for name, tree in source_trees(CALLED).items():
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call | ast.Attribute)]
        for node in calls:
            # a function that is handed over is called elsewhere: `undo.callback(shutil.rmtree, …)`
            if isinstance(node, ast.Attribute):
                if isinstance(node.value, ast.Name) and node.value.id == "shutil" and node.attr in ALWAYS:
                    in_rooms.setdefault(name, set()).add(node.attr)
            elif isinstance(node.func, ast.Attribute) and changes_files(node):
                in_rooms.setdefault(name, set()).add(node.func.attr)
    screens = {name for name in in_rooms if name.startswith("tui/")}  # lists of options are replaced there
    assert {name: in_rooms[name] for name in screens if in_rooms[name] - {"replace"}} == {}
    assert {name: names for name, names in in_rooms.items() if name not in screens} == {
        name: names for name, (names, _) in RULES.items()
    }
