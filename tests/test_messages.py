"""The words of all errors and warnings stand in one file, so that a change of them is read as a whole."""

import ast
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

from mptui import errors

PACKAGE = Path(errors.__file__).parent
FROZEN = Path(__file__).with_name("messages.txt")
"""Words to a person are a decision: `python -m tests.test_messages > tests/messages.txt` writes them anew."""

_ERRORS = {name for name, each in vars(errors).items() if isinstance(each, type)}
_WARNINGS = {"Warned", "warn", "_warn", "on_warning"}
_CALL = re.compile(rf"(?<!class )(?<!def )\b({'|'.join({*_ERRORS, *_WARNINGS})})\(")


def template(node):
    """Return the text of an expression, with `{}` for each value; that of a variable is only a value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    if isinstance(node, ast.IfExp):
        return f"{template(node.body)} | {template(node.orelse)}"
    return "{}"


def messages_of(room, call):
    """Yield a line for a call that makes an error, with its hint, or a warning, with its code."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    given = {each.arg: template(each.value) for each in call.keywords}
    texts = [template(each) for each in call.args]
    if name in _ERRORS and (texts or "hint" in given):
        yield f"{room} {name}: {' / '.join(texts)} -> {given.get('hint', '{}')}"
    elif name in _WARNINGS:
        code, message = [*texts, *(given[key] for key in ("code", "message") if key in given), "", ""][:2]
        if message not in {"", "{}"}:
            yield f"{room} warning {code}: {message}"


def calls(text):
    """Yield the calls in a source that may have words; to parse all of it takes seconds."""
    for match in _CALL.finditer(text):
        end = match.end()
        while end := text.find(")", end) + 1:
            with suppress(SyntaxError):
                yield ast.parse(text[match.start() : end], mode="eval").body
                break


@cache
def messages():
    """Return all, by room: a function that moves within one changes nothing."""
    found: set[str] = set()
    for path in PACKAGE.glob("**/*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for call in calls(path.read_text(encoding="utf-8")):
            found.update(line.replace("\n", "\\n") for line in messages_of(room, call))
    return sorted(found)


def test_the_words_to_a_person_are_those_that_were_decided():
    assert messages() == FROZEN.read_text(encoding="utf-8").splitlines()


def test_each_error_says_what_to_do_in_one_form():
    """A hint is in the imperative, begins with a small letter, and has no period at its end."""
    assert not [line for line in messages() if re.search(r" -> ([A-Z][a-z]|.*[^.]\.$)", line)]


if __name__ == "__main__":
    print(*messages(), sep="\n")
