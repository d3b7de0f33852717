"""The examples of the API reference: where each public name is used in code that the tests run.

1. A docstring shows an example as an indented block after a line that says only `Example:`. It stands by itself: it has
   its imports, and `await` may stand at its top level. The comment after a `print(...)` is what it prints.
2. A name is shown where code uses it: first in its own docstring, then on the page of its module, then in other
   docstrings, then on a page of docs/ whose snippets run. A name is found by its import, not by its spelling.
3. One example serves a family: the errors, the events, the constants and type aliases of a module, and all names of a
   module for toolbus's own parts (`INTERNAL`). It is in the docstring of the module, or of the package around it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import griffe

__all__ = ["INTERNAL", "Example", "Examples", "fenced", "imports_of", "used_paths"]

INTERNAL = (
    "toolbus.clock",
    "toolbus.core.arguments",
    "toolbus.core.history",
    "toolbus.core.output",
    "toolbus.core.plain_text",
    "toolbus.core.read_result",
    "toolbus.core.result_notes",
    "toolbus.core.result_size",
    "toolbus.core.text_structure",
    "toolbus.core.tokens",
    "toolbus.core.turn",
    "toolbus.durability",
    "toolbus.failures",
    "toolbus.handles",
    "toolbus.instrumentation",
    "toolbus.interceptors",
    "toolbus.messages.response_items",
    "toolbus.messages.wire",
    "toolbus.records",
    "toolbus.schemas",
    "toolbus.secrets",
    "toolbus.session",
    "toolbus.status",
    "toolbus.storage",
    "toolbus.stores.archive",
    "toolbus.stores.sql",
    "toolbus.testing.contract_tools",
    "toolbus.testing.recording",
    "toolbus.testing.wire",
    "toolbus.tool_results",
)
"""The packages and modules of which one example shows the use, since mostly toolbus's own parts call their names."""

_FAMILIES = ("toolbus.errors", "toolbus.events", *INTERNAL)
_EXAMPLE = re.compile(r"^Example:\n(?P<code>(?: {4}.*\n|\n)* {4}.*)", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """An example of a docstring. `path` is that of the module, class or function; `line` is the first line of code."""

    path: str
    source: str
    file: str
    line: int


def fenced(docstring: str) -> str:
    """Return the docstring with its examples in fences, and before its invariants, which only contributors need."""
    before, heading, invariants = docstring.partition("\nInvariants:\n")
    moved = "".join(f"\n{match[0]}\n" for match in _EXAMPLE.finditer(invariants))
    whole = before + moved + heading + _EXAMPLE.sub("", invariants).rstrip()
    return _EXAMPLE.sub(lambda match: f"Example:\n\n```python\n{_code(match)}```", whole if moved else docstring)


def _code(match: re.Match[str]) -> str:
    return re.sub(r"^ {4}", "", match["code"], flags=re.MULTILINE) + "\n"


def imports_of(source: str) -> dict[str, str]:
    """Return the names that the code imports, each with its dotted path."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {each.asname or each.name: each.name for each in node.names}
    return found


def used_paths(source: str, imported: Mapping[str, str]) -> set[str]:
    """Return the dotted paths of the imported names that the code uses, and of their attributes."""
    return {found for node in ast.walk(ast.parse(source)) if (found := _path_of(node, imported))}


def _path_of(node: ast.AST, imported: Mapping[str, str]) -> str:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return imported.get(node.id, "")
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        before = imported.get(ast.unparse(node.value)) or _path_of(node.value, imported)
        return f"{before}.{node.attr}" if before else ""
    return ""


class Examples:
    """The examples of all docstrings of `api`, and for each public name where its use is shown.

    `snippets` are the snippets of pages that run, in order: the page's path and its code.
    """

    def __init__(self, api: Any, snippets: Sequence[tuple[str, str]] = ()) -> None:
        self.api = api
        self.all = [*_examples_of(api)]
        self.homes = {each.path for each in self.all}
        self._shown: dict[str, list[str]] = {}
        for each in self.all:
            self._note(each.path, used_paths(each.source, imports_of(each.source)))
        imported: dict[str, dict[str, str]] = {}
        for page, source in snippets:
            imported.setdefault(page, {}).update(imports_of(source))
            self._note(page, used_paths(source, imported[page]))

    def _note(self, place: str, used: set[str]) -> None:
        for path in used:
            if self.api.is_public(path):
                places = self._shown.setdefault(self.api.home(path), [])
                places += [place] if place not in places else []

    def is_shown(self, home: str) -> bool:
        """Return whether code uses the name, so that it does not only share the example of its family."""
        return home in self.homes or home in self._shown

    def place_of(self, home: str) -> str:
        """Return the best place that shows a name's use: a public path, the path of a page of docs/, or ""."""
        if home in self.homes:
            return home
        module = home.rpartition(".")[0]
        places = self._shown.get(home, [])
        here = [place for place in places if place == module or place.startswith(f"{module}.")]
        elsewhere = sorted(places, key=lambda place: place.endswith(".md"))
        return next(iter([*here, *elsewhere]), "") or self._of_the_family(home, module)

    def _of_the_family(self, home: str, module: str) -> str:
        if not (self.api.is_constant(home) or module.startswith(_FAMILIES)):
            return ""
        around = [module, module.rpartition(".")[0] if module.startswith(INTERNAL) else module]
        beside = sorted(each for each in self.homes if each.startswith(f"{module}."))
        return next((each for each in [*around, *beside] if each in self.homes), "")

    def words_of(self, home: str, titles: Mapping[str, str]) -> str:
        """Return a line of Markdown that says where the example of a name is; "" for a name that has its own.

        It is for the page of the name's module. `titles` has the title of each page of docs/, by its path.
        """
        place = self.place_of(home)
        module = home.rpartition(".")[0]
        if place in ("", home):
            return ""
        if place.endswith(".md"):
            return f"Example: [{titles[place]}](../../{place.removeprefix('docs/').removesuffix('.md')}.html)"
        if place == module:
            return "Example: at the top of this page."
        page = place if place in self.api.modules else place.rpartition(".")[0]
        anchor = "" if page == place else f"#{place}"
        return f"Example: [`{place.removeprefix(f'{module}.')}`]({page}.html{anchor})"


def _examples_of(api: Any) -> Iterator[Example]:
    for path, module in api.modules.items():
        yield from _in_docstring(module, path)
    for home in api.homes():
        if not api.is_constant(home):
            yield from _in_docstring(api.member(home), home)


def _in_docstring(member: Any, path: str) -> Iterator[Example]:
    docstring: griffe.Docstring | None = member.docstring
    if docstring is not None:
        for match in _EXAMPLE.finditer(docstring.value):
            line = (docstring.lineno or 1) + docstring.value[: match.start("code")].count("\n")
            yield Example(path, _code(match), str(member.filepath), line)
