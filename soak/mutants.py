"""Small changes of source code, each of which a test should notice. Pure: from source to changes, and from one to code.

It leaves out what only people or type checkers read: docstrings, texts, log lines, `__repr__`, annotations, `__all__`,
options of decorators, asserts and functions without a body; and what runs only on other systems. It also leaves out
changes that harm nobody:

- a bound, a time or a weight of 10 or more that is one more, or is compared with `<=` instead of `<`: that is less than
  a tenth, and as right as before. Numbers in collections, equalities, powers and shifts are changed, because those are
  codes, or double. The same is true of a moment of the real clock;
- `None` in place of `False`, of an empty text or of an empty collection, which is as false as they are;
- `strict=` of `zip`, which is an assert, `stacklevel=` of a warning, and `repr=` of a field;
- `del` of local names, which only frees memory.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Mutant", "mutants_of", "mutated", "users_of"]

Place: TypeAlias = tuple[tuple[str, int | None], ...]
"""The path from a module to a node: fields, and an index into each field that is a list."""

_Change: TypeAlias = Callable[[ast.AST], ast.AST]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
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
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_NEVER_READ = {"__all__", "__slots__"}
_ASSERTING = {"strict", "stacklevel", "repr"}
_LARGE = 10
_ARITHMETIC = (ast.Constant, ast.BinOp, ast.operator)
_PASSED_OVER = {"annotation", "returns", "decorator_list", "bases"}
_MAX_CHARS = 90


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change. `path` is the file's, below the folder of sources; `where` is the qualified name of its function.

    `text` is its line; `before` and `after` are the changed part as Python writes it. `names` are those that a
    statement outside of functions binds. `number` counts the changes of one file.
    """

    path: str
    line: int
    number: int
    kind: str
    where: str
    text: str
    before: str
    after: str
    place: Place
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" in {self.where}" if self.where else ""
        return f"{self.path}:{self.line}{where}: {_short(self.before)}  ->  {_short(self.after)}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARS else f"{line[: _MAX_CHARS - 3]}..."


def mutants_of(source: str, path: str) -> list[Mutant]:
    """All changes of a file, in the order of its text."""
    found: list[Mutant] = []
    tree, lines = ast.parse(source), source.splitlines()
    bounds = {"monotonic()", "time.monotonic()", "time.time()", *_large_names(tree)}
    for node, place, where, names in _nodes(tree, (), "", ()):
        for kind, change in _changes(node):
            if isinstance(node, ast.Compare) and _moves_bound(node, int(kind.split()[1]), bounds):
                continue
            line: int = getattr(node, "lineno", 0)
            texts = _text(node), _text(change(node))
            found.append(Mutant(path, line, len(found), kind, where, lines[line - 1], *texts, place, names))
    return found


def mutated(source: str, mutant: Mutant | None) -> ast.Module:
    """The module with one change, or without any, for a control."""
    tree = ast.parse(source)
    if mutant is None:
        return tree
    *way, (field, index) = mutant.place
    parent: ast.AST = tree
    for name, at in way:
        child = getattr(parent, name)
        parent = child if at is None else child[at]
    old = getattr(parent, field) if index is None else getattr(parent, field)[index]
    change = next(change for kind, change in _changes(old) if kind == mutant.kind)
    new = ast.copy_location(change(old), old)
    if index is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[index] = new
    return ast.fix_missing_locations(tree)


def _text(node: ast.AST) -> str:
    """A node as Python writes it; for a block, only its first line."""
    if isinstance(node, ast.If):
        return f"if {ast.unparse(node.test)}:"
    return f"while {ast.unparse(node.test)}:" if isinstance(node, ast.While) else ast.unparse(node)


# ------------------------------------------------------------------------------------------------ what is looked at


def _nodes(
    node: ast.AST, place: Place, where: str, names: tuple[str, ...], parent: ast.AST | None = None
) -> Iterator[tuple[ast.AST, Place, str, tuple[str, ...]]]:
    """The nodes that may be changed, each with its path, its function, and the names that its statement binds."""
    if _is_passed_over(node):
        return
    if place:
        yield node, place, where, names
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        inner = f"{where}.<locals>." if where and not where.endswith(".") else where
        where = f"{inner}{node.name}" + ("." if isinstance(node, ast.ClassDef) else "")
        names = (node.name,)
    elif not where or where.endswith("."):
        names = tuple(_bound_by(node)) or names
    # The values of `A, B = 10, 20` are no collection.
    holder = parent if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple) else node
    for field, value in ast.iter_fields(node):
        if field in _PASSED_OVER or (isinstance(node, ast.ClassDef) and field == "keywords"):
            continue
        if isinstance(value, list):
            for index, each in enumerate(value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
                if isinstance(each, ast.AST) and not _is_bound(each, holder):
                    yield from _nodes(each, (*place, (field, index)), where, names, node)
        elif isinstance(value, ast.AST) and not _is_bound(value, holder):
            yield from _nodes(value, (*place, (field, None)), where, names, node)


def _bound_by(node: ast.AST) -> Iterator[str]:
    targets: Sequence[ast.AST] = ()
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        targets = (node.target,)
    for target in targets:
        for each in ast.walk(target):
            if isinstance(each, ast.Name):
                yield each.id


def _large_names(tree: ast.Module) -> Iterator[str]:
    """The names of the module's constants that are large numbers."""
    for node in tree.body:
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        names = [*_bound_by(node)]
        values = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(names) > 1 else [value]
        for name, each in zip(names, values, strict=False):
            if each is not None and all(isinstance(part, _ARITHMETIC) for part in ast.walk(each)):
                number = eval(compile(ast.Expression(each), "", "eval"))
                if isinstance(number, (int, float)) and number >= _LARGE:
                    yield name


def _moves_bound(node: ast.Compare, index: int, bounds: Collection[str]) -> bool:
    """Return whether a comparison that includes its bound, or no longer does, is as right as before."""
    if not isinstance(node.ops[index], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
        return False
    sides = [node.left, *node.comparators][index : index + 2]
    return any(_is_large(each) or ast.unparse(each) in bounds for each in sides)


def _is_large(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and node.value >= _LARGE


def _is_bound(node: ast.AST, parent: ast.AST) -> bool:
    """Return whether a number is so large that one more does not matter, where it stands."""
    if not _is_large(node):
        return False
    if isinstance(parent, ast.Compare):
        return all(isinstance(each, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for each in parent.ops)
    if isinstance(parent, ast.BinOp):
        return not isinstance(parent.op, (ast.Pow, ast.LShift, ast.RShift))
    return not isinstance(parent, (ast.List, ast.Tuple, ast.Set, ast.Dict))


def _is_passed_over(node: ast.AST) -> bool:
    if isinstance(node, (ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.keyword) and node.arg in _ASSERTING:
        return True
    if isinstance(node, _FUNCTIONS):
        is_declared = all(isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in node.body)
        return node.name == "__repr__" or is_declared
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or _is_logged(node.value)
    if isinstance(node, (ast.If, ast.IfExp)):
        test = ast.unparse(node.test)
        return any(word in test for word in ("TYPE_CHECKING", "sys.platform", "os.name", "version_info", "__name__"))
    if isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation):
        return True
    if isinstance(node, ast.Call) and ast.unparse(node.func) in {"TypeVar", "ParamSpec"}:
        return True
    return not _NEVER_READ.isdisjoint(_bound_by(node))


def _is_logged(value: ast.expr) -> bool:
    function = value.func if isinstance(value, ast.Call) else None
    return isinstance(function, ast.Attribute) and ast.unparse(function.value).rpartition(".")[2].lstrip("_") in {
        "logger",
        "log",
    }


# ------------------------------------------------------------------------------------------------ what is changed


def _changes(node: ast.AST) -> Iterator[tuple[str, _Change]]:
    """The changes of this node itself, by kind; there is at most one of each kind."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            if type(operator) in _COMPARISONS:
                yield f"comparison {index}", functools.partial(_flip, index=index)
    elif isinstance(node, ast.BoolOp):
        yield "and, or", _other_bool
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _OPERATORS:
        yield "operator", _other_operator
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", _affirmed
    elif isinstance(node, ast.Name) and node.id in _NAMES and isinstance(node.ctx, ast.Load):
        yield "name", _other_name
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        yield "constant", _other_constant
    elif isinstance(node, ast.Return) and not _is_empty(node.value):
        yield "return", lambda _: ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Continue):
        yield "continue", lambda _: ast.Break()
    if isinstance(node, (ast.If, ast.IfExp)):
        yield "condition", _negated
    if isinstance(node, ast.While) and not node.orelse and not _leaves(node.body):
        yield "while", _once
    if _is_effect(node):
        yield "dropped", lambda _: ast.Pass()


def _is_empty(value: ast.expr | None) -> bool:
    """Return whether it is None, or as false as None."""
    if isinstance(value, (ast.List, ast.Tuple, ast.Dict)):
        return not ast.unparse(value)[1:-1]
    return value is None or (isinstance(value, ast.Constant) and not value.value)


def _is_effect(node: ast.AST) -> bool:
    """Return whether it is a statement that only has an effect: a call, an assignment, a deletion or a raise."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, (ast.Call, ast.Await))
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return all(isinstance(each, (ast.Attribute, ast.Subscript)) for each in targets)
    if isinstance(node, ast.Delete):
        return not all(isinstance(each, ast.Name) for each in node.targets)
    return isinstance(node, ast.Raise)


def _leaves(body: Iterable[ast.AST]) -> bool:
    """Return whether this body of a loop has a `break` or `continue` of that loop."""
    inner = (ast.For, ast.AsyncFor, ast.While, ast.ClassDef, ast.Lambda, *_FUNCTIONS)
    return any(
        isinstance(each, (ast.Break, ast.Continue))
        or (not isinstance(each, inner) and _leaves(ast.iter_child_nodes(each)))
        for each in body
    )


def _flip(node: ast.AST, *, index: int) -> ast.AST:
    assert isinstance(node, ast.Compare)
    operators = [*node.ops]
    operators[index] = _COMPARISONS[type(operators[index])]()
    return ast.Compare(node.left, operators, node.comparators)


def _other_bool(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.BoolOp)
    return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)


def _other_operator(node: ast.AST) -> ast.AST:
    assert isinstance(node, (ast.BinOp, ast.AugAssign))
    operator = _OPERATORS[type(node.op)]()
    if isinstance(node, ast.BinOp):
        return ast.BinOp(node.left, operator, node.right)
    return ast.AugAssign(node.target, operator, node.value)


def _affirmed(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.UnaryOp)
    return node.operand


def _other_name(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Name)
    return ast.Name(_NAMES[node.id], ast.Load())


def _once(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.While)
    return ast.If(node.test, node.body, [])


def _other_constant(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Constant)
    value = node.value
    assert isinstance(value, (bool, int, float))
    return ast.Constant((not value) if isinstance(value, bool) else value + 1)


def _negated(node: ast.AST) -> ast.AST:
    if isinstance(node, ast.If):
        return ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    assert isinstance(node, ast.IfExp)
    return ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)


# ------------------------------------------------------------------------------------------------- who uses a name


def users_of(source: str, names: Sequence[str]) -> set[str]:
    """The qualified names of the functions of a file that mention one of `names`."""
    mentions = _mentions(source)
    return {function for name in names for function in mentions.get(name, ())}


@functools.cache
def _mentions(source: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for node, _, where, _ in _nodes(ast.parse(source), (), "", ()):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
        if name is not None and where and not where.endswith("."):
            found.setdefault(name, set()).add(where)
    return found
