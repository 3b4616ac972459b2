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
    "data/convert/convert.py": ({"unlink"}, PREPARED),
    "data/convert/shard_writer.py": ({"replace", "unlink"}, PREPARED),
    "data/formats/packed/parquet.py": ({"unlink"}, CACHE),
    "data/loading/shared_memory.py": ({"ftruncate"}, FRESH),
    "engine/autotune/result_cache.py": ({"unlink"}, CACHE),
    "engine/checkpoint/files.py": ({"symlink", "unlink", "rename", "rmtree"}, PROVED),
    "engine/checkpoint/upkeep.py": ({"rename"}, PROVED),
    "engine/compile/cache.py": ({"rmtree", "unlink"}, CACHE),
    "io/atomic.py": ({"replace", "unlink"}, FRESH),
    "io/line_file.py": ({"ftruncate"}, OWNED),
    "io/marker.py": ({"rmdir"}, FRESH),
    "io/removal.py": ({"rename", "rmtree", "unlink"}, PROVED),
    "io/written_files.py": ({"replace", "unlink"}, NOTED),
    "runs/launch/agent.py": ({"replace"}, OWNED),
    "runs/listing/forking.py": ({"rmtree", "link", "symlink_to", "copyfile"}, FRESH),
    "runs/listing/housekeeping.py": ({"rename", "rmdir", "unlink"}, ASKED),
    "runs/listing/own_files.py": ({"rmdir", "unlink"}, PROVED),
    "runs/pictures/picture_files.py": ({"unlink"}, PROVED),
    "runs/remote/control_socket.py": ({"unlink", "rmdir", "symlink_to"}, OWNED),
    "runs/session/unstarted.py": ({"rmtree"}, FRESH),
    "runs/store/journal.py": ({"replace", "ftruncate", "unlink"}, OWNED),
    "runs/store/claim.py": ({"unlink"}, OWNED),
    "runs/store/writer.py": ({"unlink"}, PROVED),
    "runs/trackers/growing_file.py": ({"ftruncate"}, OWNED),
    "runs/trackers/mlflow_run.py": ({"hardlink_to", "unlink"}, FRESH),
}

ALWAYS = {"unlink", "rmtree", "rmdir", "removedirs", "ftruncate", "symlink", "symlink_to", "link"}
ALWAYS |= {"hardlink_to", "copyfile", "copytree", "rename", "renames"}
SOMETIMES = {"replace", "remove", "truncate"}


def changes_files(call):
    """Whether a call removes, renames or replaces a file; `str.replace` has two arguments."""
    name, of_os = call.func.attr, isinstance(call.func.value, ast.Name) and call.func.value.id == "os"
    if name in SOMETIMES:
        is_of_path = name == "replace" and len(call.args) == 1 and not call.keywords
        return of_os or (is_of_path and not isinstance(call.args[0], ast.List | ast.ListComp))
    return name in ALWAYS


def test_each_removal_obeys_a_rule():
    in_rooms: dict[str, set[str]] = {}
    for name, tree in source_trees(ALWAYS | SOMETIMES).items():
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
