"""Every call that opens a file for writing stands here with the rule that keeps a person's files as they are.

Those that replace or remove files by name are in `test_removals`.
"""

import ast

from tests.source_trees import source_trees

FRESH = "under a name or in a folder that this call has just made"
OWNED = "in a run's folder that `claim` or `create_run` has given, under a full name that only a run writes"
CACHE = "in the program's own folder of the user's cache or configuration"
PREPARED = "in a folder that `prepare` has found to hold nothing but its own set"
CHECKED = "a place that a person names, after a check that nothing of others is there"
WAY = "what the others call: the caller chooses the place"
NOTHING = "/dev/null"
TESTS = "in the temporary folder of a test"

RULES = {
    "cli/look/monitor.py": ({"LineFile"}, CHECKED),
    "cli/use/predict.py": ({"open"}, FRESH),
    "cli/use/report.py": ({"write_synced"}, FRESH),
    "config/resolve.py": ({"replace_file"}, CHECKED),
    "data/prepare.py": ({"open", "replacing", "write_synced"}, PREPARED),
    "engine/checkpoint/files.py": ({"write_synced"}, FRESH),
    "io/cache.py": ({"open", "replacing"}, CACHE),
    "io/files.py": ({"open", "open_regular", "replacing", "write_synced"}, WAY),
    "io/own_files.py": ({"replace_file"}, OWNED),
    "io/safetensors.py": ({"write_synced"}, WAY),
    "io/streams.py": ({"open"}, NOTHING),
    "io/written_files.py": ({"LineFile"}, OWNED),
    "lab/doctor/data.py": ({"replace_file"}, CHECKED),
    "lab/measure/parity.py": ({"write_text"}, FRESH),
    "lab/use/export.py": ({"write_text"}, FRESH),
    "lab/use/export_formats.py": ({"write_text"}, FRESH),
    "lab/use/predict.py": ({"write_text"}, FRESH),
    "processes/start.py": ({"open", "open_regular"}, (FRESH, NOTHING, OWNED)),
    "runs/listing/forks.py": ({"write_text"}, FRESH),
    "runs/session/ending.py": ({"write_text"}, OWNED),
    "runs/session/session.py": ({"write_text"}, OWNED),
    "runs/session/watchdog.py": ({"open_regular"}, OWNED),
    "runs/store/directory.py": ({"replace_file", "write_text"}, OWNED),
    "runs/store/files.py": ({"LineFile", "replace_file", "write_text"}, OWNED),
    "runs/store/index.py": ({"replace_file"}, OWNED),
    "runs/store/journal.py": ({"open_regular", "write_synced"}, OWNED),
    "runs/store/lock.py": ({"open_regular", "replace_file"}, OWNED),
    "runs/store/pictures.py": ({"replace_file"}, CHECKED),
    "runs/trackers/feeder.py": ({"open_regular", "replace_file"}, OWNED),
    "runs/trackers/local_files.py": ({"open_regular"}, OWNED),
    "testing/format.py": ({"write_bytes", "write_text"}, TESTS),
    "tui/app.py": ({"replace_unsynced"}, CACHE),
    "tui/last.py": ({"replace_unsynced"}, CACHE),
    "tui/share.py": ({"replace_file"}, FRESH),
    "tui/terminal/process.py": ({"open"}, NOTHING),
}

WRITE = {
    "write_text",
    "write_bytes",
    "touch",
    "write_synced",
    "replace_file",
    "replace_unsynced",
    "replacing",
    "LineFile",
}
OPEN = {"open", "fdopen", "open_regular", "FileIO"}
CALLED = rf"\b({'|'.join(sorted(WRITE | OPEN))})\s*\("
"""What every such call has in its text."""
FLAGS = {"O_CREAT", "O_WRONLY", "O_RDWR", "O_APPEND"}


def name_of(function):
    """The last part of what is called."""
    return getattr(function, "attr", getattr(function, "id", ""))


def writes(call):
    """Whether a call writes a file, or opens one to do so: by its name, its flags or its mode."""
    name = name_of(call.func)
    if name not in WRITE | OPEN:
        return False
    parts = [part for each in [*call.args, *(key.value for key in call.keywords)] for part in ast.walk(each)]
    flags = {part.attr for part in parts if isinstance(part, ast.Attribute)}
    words = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    modes = [word for word in words if set(word) <= set("rwaxbt+") and set(word) & set("wax+")]
    return name in WRITE or (name in OPEN and bool(flags & FLAGS or modes))


def test_each_write_obeys_a_rule():
    found: dict[str, set[str]] = {}
    for name, tree in source_trees(CALLED).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and writes(node):
                found.setdefault(name, set()).add(name_of(node.func))
    assert found == {name: names for name, (names, _) in RULES.items()}
