"""Where the code can be changed by a mutation, and how such a place is found again in a later tree.

A place is named without its file: by its room, its qualified function and the text of its statement.
"""

import ast
import copy
import io
import re
import tokenize
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

ROOMS = (
    "engine data runs tui lab cli config hardware models tasks registry events io processes".split()  # noqa: SIM905
)
_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
_TEXTS = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
_LOOKS = {"width", "height", "padding", "margin", "indent", "ratio", "max_width", "min_width", "stacklevel"}
"""Keyword arguments whose numbers are layout."""
_NOT_IN = {"__repr__", "__str__", "__rich_repr__"}
_OF_A_GPU = re.compile(r"cuda|nvml|triton|nccl|rocm|amdsmi|xpu", re.IGNORECASE)
_CALLS_OF_A_GPU = re.compile(r"torch\.(cuda|xpu|accelerator)\.|pynvml|triton|amdsmi")
_LONG = 30
"""Characters from which on a statement alone, whose function has another name now, is taken for the same."""


@dataclass(frozen=True)
class Site:
    """A place and its mutation; `occurrence` counts equals in the function, `index` in the statement."""

    room: str
    function: str
    statement: str
    occurrence: int
    kind: str
    index: int

    @property
    def key(self):
        return " | ".join(map(str, asdict(self).values()))


@dataclass(frozen=True)
class Statement:
    """A statement of a function in a tree."""

    room: str
    path: Path
    function: str
    text: str
    node: ast.stmt


@dataclass(frozen=True)
class Mutation:
    """Puts the text in the place of the node."""

    kind: str
    node: ast.stmt | ast.expr
    text: str

    def applied(self, source):
        """Return the changed source, as bytes."""
        starts = line_starts(source)
        begin = starts[self.node.lineno - 1] + self.node.col_offset
        assert self.node.end_lineno is not None
        assert self.node.end_col_offset is not None
        end = starts[self.node.end_lineno - 1] + self.node.end_col_offset
        return source[:begin] + self.text.encode() + source[end:]


def line_starts(source):
    """Return the offset of each line, in bytes."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def mutations(statement):
    """Yield what can be changed in a statement, without the bodies of compound ones."""
    if isinstance(statement, ast.Break):
        yield Mutation("break to continue", statement, "continue")
    elif isinstance(statement, ast.Expr) and _is_call(statement.value):
        yield Mutation("call removed", statement, "pass")
    elif isinstance(statement, ast.Return) and statement.value and ast.unparse(statement.value) != "None":
        yield Mutation("None returned", statement, "return None")
    elif isinstance(statement, ast.AugAssign) and type(statement.op) in _ARITHMETIC:
        yield _changed("arithmetic", statement, op=_ARITHMETIC[type(statement.op)]())
    elif isinstance(statement, ast.If | ast.While):
        yield Mutation("condition negated", statement.test, f"(not ({ast.unparse(statement.test)}))")
    for part in _parts(statement):
        yield from _in_expression(part)


def _parts(statement):
    match statement:
        case ast.If() | ast.While():
            return [statement.test]
        case ast.For() | ast.AsyncFor():
            return [statement.iter]
        case ast.With() | ast.AsyncWith():
            return [item.context_expr for item in statement.items]
        case ast.Return() | ast.Expr() | ast.Assign() | ast.AugAssign() | ast.AnnAssign():
            return [statement.value] if statement.value else []
    return []


def _in_expression(node):
    match node:
        case ast.JoinedStr():  # its nodes have no exact places in the source
            return
        case ast.keyword(arg=name, value=ast.Constant()) if name in _LOOKS:
            return
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            yield _changed("comparison", node, ops=[_COMPARISONS[type(operator)]()])
        case ast.BinOp(op=operator) if type(operator) in _ARITHMETIC and not _is_text(node):
            yield _changed("arithmetic", node, op=_ARITHMETIC[type(operator)]())
        case ast.BoolOp(op=operator):
            yield _changed("and, or", node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not()):
            yield Mutation("not removed", node, f"({ast.unparse(node.operand)})")
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield Mutation("integer + 1", node, str(value + 1))
    for child in ast.iter_child_nodes(node):
        yield from _in_expression(child)


def _changed(kind, node, **fields):
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    text = ast.unparse(changed)
    return Mutation(kind, node, text if isinstance(node, ast.stmt) else f"({text})")


def _is_text(node):
    return any(
        isinstance(side, _TEXTS) or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (node.left, node.right)
    )


def _is_call(value):
    call = value.value if isinstance(value, ast.Await) else value
    return isinstance(call, ast.Call) and not re.search(r"(debug|__init__)$", ast.unparse(call.func))


class Tree:
    """The statements of all functions below a folder of `mptui`."""

    def __init__(self, root):
        self.root = root
        self.lines: Counter[str] = Counter()
        self.statements: list[Statement] = []
        for path in sorted((root / "mptui").rglob("*.py")):
            self._add(path)
        self._indexes = [_index(self.statements, named) for named in _NAMES]

    def _add(self, path):
        room = path.relative_to(self.root / "mptui").parts[0].removesuffix(".py")
        source = path.read_text(encoding="utf-8")
        self.lines[room] += _lines_of_code(source)
        for function, statement in _of_functions(ast.parse(source).body, (), False, source.splitlines()):
            self.statements.append(Statement(room, path, function, _head(statement), statement))

    def sites(self, room):
        """Return the sites of a room whose function and statement together are there once."""
        sites = []
        for (_, function, text), equal in self._indexes[0].items():
            if equal[0].room == room and len({one.path for one in equal}) == 1:
                for occurrence, statement in enumerate(equal):
                    counts: Counter[str] = Counter()
                    for mutation in mutations(statement.node):
                        kind = mutation.kind
                        sites.append(Site(room, function, text, occurrence, kind, counts[kind]))
                        counts[kind] += 1
        return sites

    def find(self, site):
        """Return the statement and the mutation of a site, or None if it is gone."""
        for named, index in zip(_NAMES, self._indexes, strict=True):
            sought = named(Statement(site.room, Path(), site.function, site.statement, ast.Pass()))
            equal = index.get(sought, ()) if sought else ()
            if equal and len({(one.path, one.function) for one in equal}) == 1:
                if site.occurrence >= len(equal):
                    return None
                statement = equal[site.occurrence]
                same = [one for one in mutations(statement.node) if one.kind == site.kind]
                return (statement, same[site.index]) if site.index < len(same) else None
        return None


def _index(statements, named):
    index = defaultdict(list)
    for statement in statements:
        if name := named(statement):
            index[name].append(statement)
    return index


def _plain(text):
    """Drop what a merge of files changes in names: the module before the dot and a leading underscore."""
    return re.sub(r"\b_+(?=[A-Za-z])", "", re.sub(r"\b(?!self\b|cls\b)[a-z_]\w*\.(?=[A-Za-z_])", "", text))


def _long(text):
    return text if len(text) >= _LONG else None


_NAMES = (
    lambda one: (one.room, one.function, one.text),
    lambda one: (one.room, _plain(one.function), _plain(one.text)),
    lambda one: (one.function, one.text),
    lambda one: (_plain(one.function), _plain(one.text)),
    lambda one: _long(one.text) and (one.room, one.function.rpartition(".")[2], _plain(one.text)),
    lambda one: _long(one.text) and (one.room, _plain(one.text)),
    lambda one: _long(one.text) and (_plain(one.text),),
)
"""What names a statement, the surest first; a name that several functions share names none."""


def _of_functions(body, names, inside, lines):
    """Yield the statements of functions, each with the qualified name of its function."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _of_functions(statement.body, (*names, statement.name), False, lines)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            if not _is_left_out(statement, lines):
                yield from _of_functions(statement.body, (*names, statement.name), True, lines)
        elif not (isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test)):
            if inside:
                yield ".".join(names), statement
            for block in _blocks(statement):
                yield from _of_functions(block, names, inside, lines)


def _blocks(statement):
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for part in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
        yield part.body


def _is_left_out(function, lines):
    told = f"{function.name} {ast.get_docstring(function)}"
    code = "\n".join(lines[function.lineno - 1 : function.end_lineno])
    return function.name in _NOT_IN or bool(_OF_A_GPU.search(told) or _CALLS_OF_A_GPU.search(code))


def _head(statement):
    """Return the text of a statement, without the body of a compound one."""
    bare = copy.copy(statement)
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        if hasattr(bare, name):
            setattr(bare, name, [])
    return ast.unparse(ast.fix_missing_locations(bare)).strip()


def _lines_of_code(source):
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return len(
        {token.start[0] for token in tokens if token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER)}
    )
