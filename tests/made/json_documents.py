"""The JSON documents of commands, as `docs/json.md` has them: keys, and the types of the common ones."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
_TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "number": (int, float),
    "list": (list,),
    "table": (dict,),
}
_NAME = re.compile(r"`([\w ,-]+)`")
_FAILED = {"error", "hint", "exit_code"}


def _rows(heading):
    """The cells of the table below a heading."""
    text = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


VOCABULARY = {
    name: tuple(each for word in types.split(" or ") for each in _TYPES[word])
    for names, types, _ in _rows("Keys that several documents have")
    for name in _NAME.findall(names)
}
DOCUMENTS = {
    command: (
        set(_NAME.findall(re.sub(r"\(.*?\)|:.*", "", keys))),
        set(_NAME.findall(" ".join(re.findall(r"\((.*?)\)", keys)))),
        set(re.findall(r"`(\w+)` →", older)),
    )
    for commands, keys, older in _rows("The documents")
    for command in _NAME.findall(commands)
}
"""Command -> keys that it always has, that it may have, and older names."""


def checked(command, document):
    """Return the document of a command, if it is as the page says."""
    always, sometimes, older = DOCUMENTS[command]
    keys = document.keys() - {"version"}
    assert keys >= always | older, (command, (always | older) - keys)
    assert keys <= always | older | sometimes, (command, keys - always - older - sometimes)
    types_are(document, older)
    return document


def failed(document):
    """Return the document of a command that has failed, if it is as the page says."""
    assert document.keys() >= _FAILED
    types_are(document)
    return document


def types_are(document, older=()):
    """Check the version, and that keys of the vocabulary have their types."""
    assert document["version"] == 1
    for key in document.keys() & VOCABULARY.keys() - set(older):
        assert document[key] is None or isinstance(document[key], VOCABULARY[key]), (key, document[key])
