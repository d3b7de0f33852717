"""The shape of the code as a report: sizes, the longest parts, public names, and which package imports which.

Run it with `python3 dev.py shape`. It knows the standard library only, imports no toolbus, and checks nothing: review
modules over 500 lines and functions over 50, and split one that does two jobs.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src" / "toolbus"
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    """One module: its dotted name below `toolbus`, the package that it lies in, its lines and its syntax tree."""

    name: str
    package: str
    lines: int
    tree: ast.Module
    is_package: bool


def read(path: Path, sources: Path) -> Module:
    """Read one module."""
    parts = list(path.relative_to(sources).with_suffix("").parts)
    is_package = parts[-1] == "__init__"
    if is_package:
        parts.pop()
    text = path.read_text(encoding="utf-8")
    package = parts[0] if len(parts) > 1 or (is_package and parts) else "(top level)"
    return Module(".".join(parts), package, len(text.splitlines()), ast.parse(text), is_package)


def statements_in(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a tree's root and all its statements, in the order of `ast.walk`, which also visits all expressions."""
    left: deque[ast.AST] = deque([tree])
    while left:
        node = left.popleft()
        yield node
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            inside: Sequence[ast.AST] | ast.AST = getattr(node, name, ())
            if not isinstance(inside, ast.AST):  # the body of a lambda is one expression
                left.extend(inside)


def imported_by(module: Module) -> Iterator[str]:
    """Yield the dotted names below `toolbus` that a module imports, wherever in its text."""
    base = module.name.split(".") if module.name else []
    if not module.is_package:
        base = base[:-1]
    for node in statements_in(module.tree):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                start = base[: len(base) - node.level + 1]
                yield ".".join([*start, *(node.module or "").split(".")]).strip(".")
            elif node.module and node.module.split(".")[0] == "toolbus":
                yield node.module.removeprefix("toolbus").strip(".")
        elif isinstance(node, ast.Import):
            yield from (each.name[8:] for each in node.names if each.name.startswith("toolbus."))


def package_of(name: str, packages: set[str]) -> str:
    """Return the package that an imported name lies in."""
    first = name.split(".", maxsplit=1)[0]
    return first if first in packages else "(top level)"


def functions_in(module: Module) -> Iterator[tuple[int, str]]:
    """Yield each function's length in lines, without its docstring, and its name."""
    for node in statements_in(module.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False)
            documented = 0 if text is None else text.count("\n") + 1
            yield (node.end_lineno or node.lineno) - node.lineno + 1 - documented, f"{module.name}.{node.name}"


def public_names(node: ast.ClassDef) -> set[str]:
    """Return the public names that a class defines: methods, fields, slots, and attributes set in its methods."""
    names: set[str] = set()
    for each in node.body:
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(each.name)
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            names.add(each.target.id)
    for each in statements_in(node):
        target = each.target if isinstance(each, ast.AnnAssign) else None
        for one in each.targets if isinstance(each, ast.Assign) else [target]:
            if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self":
                names.add(one.attr)
    return {name for name in names if not name.startswith("_")}


def question_share(modules: Sequence[Module]) -> float:
    """Return the share of docstrings that begin with a question word."""
    words = frozenset("how what whatever when where whether which who whoever whom whose why".split())  # noqa: SIM905
    texts = [
        text
        for module in modules
        for node in statements_in(module.tree)
        if isinstance(node, (ast.Module, *DEFINITIONS)) and (text := ast.get_docstring(node))
    ]
    begun = sum(text.split()[0].strip("`,.:;").lower() in words for text in texts)
    return begun / max(len(texts), 1)


def is_private(importer: str, imported: str) -> bool:
    """Return whether an import reaches into an underscored module of a package that the importer is not in."""
    parts = imported.split(".")
    for index, part in enumerate(parts):
        owner = ".".join(parts[:index])
        if part.startswith("_") and index and importer != owner and not importer.startswith(f"{owner}."):
            return True
    return False


def report(sources: Path, count: int) -> Iterator[str]:
    """Yield the lines of the report. The lists have `count` entries each."""
    modules = [read(path, sources) for path in sorted(sources.rglob("*.py"))]
    packages = {each.package for each in modules} - {"(top level)"}
    names = {each.name for each in modules}
    yield f"{'package':14} {'modules':>8} {'lines':>7} {'definitions':>12}  imports"
    for package in sorted({each.package for each in modules}):
        inside = [each for each in modules if each.package == package]
        defined = sum(isinstance(node, DEFINITIONS) for each in inside for node in statements_in(each.tree))
        others = {package_of(name, packages) for each in inside for name in imported_by(each)} - {package}
        sizes = f"{len(inside):8} {sum(each.lines for each in inside):7} {defined:12}"
        yield f"{package:14} {sizes}  {' '.join(sorted(others))}"
    yield f"{'together':14} {len(modules):8} {sum(each.lines for each in modules):7}"
    private = sorted(
        f"{each.name} -> {name}"
        for each in modules
        for name in set(imported_by(each))
        if is_private(each.name, name) and (name in names or name.rpartition(".")[0] in names)
    )
    yield f"\nimports of another package's underscored modules: {len(private)}"
    yield from (f"  {each}" for each in private)
    yield f"docstrings that begin with a question word: {question_share(modules):.1%}"
    yield "\nlongest modules"
    for each in sorted(modules, key=lambda each: -each.lines)[:count]:
        yield f"  {each.lines:5} {each.name}"
    functions = sorted((each for module in modules for each in functions_in(module)), reverse=True)
    yield f"\nlongest functions, without docstrings ({sum(size > 50 for size, _ in functions)} over 50 lines)"
    yield from (f"  {size:5} {name}" for size, name in functions[:count])
    classes = Counter(
        {
            f"{module.name}.{node.name}": len(public_names(node))
            for module in modules
            for node in statements_in(module.tree)
            if isinstance(node, ast.ClassDef)
        }
    )
    yield "\nclasses with the most public names of their own"
    yield from (f"  {size:5} {name}" for name, size in classes.most_common(count))


def main(arguments: Sequence[str]) -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(prog="dev.py shape", description="The shape of the code as a report.")
    parser.add_argument("--sources", type=Path, default=SOURCES, help="another tree to report on")
    parser.add_argument("--count", type=int, default=12, help="how many entries each list has (default: 12)")
    given = parser.parse_args(arguments)
    if not given.sources.is_dir():
        parser.error(f"--sources {given.sources}: there is no such folder")
    print("\n".join(report(given.sources, given.count)))


if __name__ == "__main__":
    main(sys.argv[1:])
