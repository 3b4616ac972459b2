"""Reads the literals of a Python file as flat settings; the file is parsed, never executed or imported.

Reads assignments of a module and of its classes, and tables written as `{...}` or `dict(...)`. Values that
aren't literals (calls, names, expressions) are ignored; of two assignments the later one counts.
"""

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

from mptui.lab.doctor.config_files.values import ConfigValue, Keys, Value, refused


def read_python(path: Path, text: str) -> list[ConfigValue]:
    """Read the literals of a Python text.

    Raises:
        ConfigError: It is not Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the file don't matter
            module = ast.parse(text)
    except SyntaxError as error:
        raise refused(path, f"not Python: {error.msg}", error.lineno) from error
    except ValueError as error:
        raise refused(path, f"not Python: {error}") from error
    lines = text.split("\n")
    found = {setting.keys: setting for setting in _of_body(module.body, (), lines)}
    return list(found.values())


def _of_body(body: list[ast.stmt], keys: Keys, lines: list[str]) -> Iterator[ConfigValue]:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _of_body(statement.body, (*keys, statement.name), lines)
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name | ast.Attribute | ast.Subscript):
                    yield from _of_value(statement.value, (*keys, *_names(target)), lines)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            yield from _of_value(statement.value, (*keys, *_names(statement.target)), lines)


def _names(target: ast.expr) -> Keys:
    """`config.amp` and `config["amp"]` both name the key amp of config."""
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, ast.Attribute):
        return (*_names(target.value), target.attr)
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return (*_names(target.value), str(target.slice.value))
    return ("?",)


def _of_value(value: ast.expr, keys: Keys, lines: list[str]) -> Iterator[ConfigValue]:
    if isinstance(value, ast.Dict):
        for key, item in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant):
                yield from _of_value(item, (*keys, str(key.value)), lines)
    elif isinstance(value, ast.Call):
        for keyword in value.keywords:
            if keyword.arg is not None:
                yield from _of_value(keyword.value, (*keys, keyword.arg), lines)
    else:
        yield from _literal(value, keys, lines)


def _literal(value: ast.expr, keys: Keys, lines: list[str]) -> Iterator[ConfigValue]:
    try:
        read = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError):
        return
    if read is not None and not isinstance(read, str | int | float):
        return
    plain: Value = read
    start, end = value.col_offset, value.end_col_offset
    line = lines[value.lineno - 1] if value.lineno <= len(lines) else ""
    # columns count bytes; in a line with other characters before the value they are unknown
    one_line = value.end_lineno == value.lineno and line.isascii()
    yield ConfigValue(keys, plain, value.lineno, start if one_line else None, end if one_line else None)
