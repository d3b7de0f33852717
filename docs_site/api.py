"""The API reference: one page for each public module, with every name of its `__all__`.

1. A name is described once, in the public module nearest to its definition. Other modules that export the name list it
   with a link. Each public name has an anchor on the page of each module that exports it, such as `toolbus.Runtime`.
2. The sources are read, not imported. mkdocstrings describes the names on the site, and `as_markdown` describes them in
   plain Markdown, for the copies.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import griffe

from .examples import fenced
from .pages import Page

__all__ = ["API", "FOLDER", "ExamplesAndLinks", "PlainFields", "as_markdown", "pages_of", "path_of"]

FOLDER = "reference/api"


class PlainFields(griffe.Extension):
    """Fields that a constructor sets, without the expressions that compute them."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Drop the value of a field that only instances have. griffe calls this for each attribute."""
        if attr.labels == {"instance-attribute"}:
            attr.value = None
        attr.labels -= {"class-attribute", "instance-attribute", "module-attribute"}  # a field's place says that


class ExamplesAndLinks(griffe.Extension):
    """Docstrings for the site: examples in fences, and after each docstring where the name's example is.

    The second is read from the file that the environment's DOCS_SITE_EXAMPLES names: a JSON object, by canonical path.
    """

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the docstrings of a whole package. griffe calls this when it is loaded."""
        file = os.environ.get("DOCS_SITE_EXAMPLES")
        words: dict[str, str] = json.loads(Path(file).read_text(encoding="utf-8")) if file else {}
        _add_words(pkg, words)


def _add_words(member: griffe.Object, words: Mapping[str, str]) -> None:
    said = words.get(member.path, "")
    if member.docstring is not None:
        member.docstring.value = f"{fenced(member.docstring.value)}\n\n{said}".rstrip()
    elif said:
        member.docstring = griffe.Docstring(said, parent=member)
    for each in member.members.values():
        if not each.is_alias:
            _add_words(each, words)  # pyright: ignore[reportArgumentType]


class API:
    """The public modules of a package, by name, with the names that each exports."""

    def __init__(self, sources: Path, package: str = "toolbus") -> None:
        extensions = griffe.load_extensions(PlainFields)
        self.root = griffe.load(
            package, search_paths=[sources], resolve_aliases=True, resolve_external=False, extensions=extensions
        )
        self.modules = {module.path: module for module in _public(self.root)}
        exporting: dict[str, list[str]] = {}
        for path, module in self.modules.items():
            for name in self.names_of(path):
                exporting.setdefault(_defined(module.members[name]), []).append(f"{path}.{name}")
        self._home = {path: _nearest(defined, paths) for defined, paths in exporting.items() for path in paths}

    def names_of(self, module: str) -> list[str]:
        """The names of the module's `__all__`, in alphabetical order."""
        return sorted(map(str, self.modules[module].exports or ()), key=str.casefold)

    def is_public(self, path: str) -> bool:
        """Return whether a module's `__all__` has the name at this path."""
        return path in self._home

    def member(self, path: str) -> Any:
        """The definition of the name at a public path; None for a name of another library."""
        module, _, name = path.rpartition(".")
        member = self.modules[module].members[name]
        if member.is_alias:
            return member.final_target if member.resolved else None
        return member

    def is_constant(self, path: str) -> bool:
        """Return whether the name at a public path is a constant or a type alias."""
        member = self.member(path)
        return member is None or not (member.is_class or member.is_function)

    def homes(self) -> list[str]:
        """The paths of all names that the package itself defines, each once, in the order of modules."""
        found = dict.fromkeys(self._home[f"{path}.{name}"] for path in self.modules for name in self.names_of(path))
        return [path for path in found if self.member(path) is not None]

    def home(self, path: str) -> str:
        """The public path under which the name at a public path is described."""
        return self._home[path]


def _public(module: Any) -> Iterator[Any]:
    yield module
    for name, member in sorted(module.members.items()):
        if not name.startswith("_") and not member.is_alias and member.is_module:
            yield from _public(member)


def _defined(member: Any) -> str:
    """The path of a name's definition, or of what a library other than ours defines and we export."""
    return member.target_path if member.is_alias and not member.resolved else member.canonical_path


def _nearest(defined: str, paths: list[str]) -> str:
    """The path with the most in common with the definition's, and among these the shortest."""

    def common(path: str) -> int:
        return next((at for at, (a, b) in enumerate(zip(path, f"{defined}.", strict=False)) if a != b), len(path))

    return max(paths, key=lambda path: (common(path), -len(path), path))


def path_of(module: str) -> str:
    """The path of a module's page on the site."""
    return f"{FOLDER}/{module}.md"


def pages_of(api: API) -> dict[str, Page]:
    """The pages of the API reference, by path; the first one is the list of all modules."""
    rows = "".join(f"| [`{path}`]({path}.md) | {_first_line(module)} |\n" for path, module in api.modules.items())
    start = (
        "# The API reference\n\nThis page lists the public modules. The page of a module describes each of its public"
        " names: parameters, return values, fields, and errors."
        " For an overview, see [the Python API in tables](../python.md). See [how to run the examples](../../tutorial/"
        "first-request.md#how-to-run-the-snippets-of-other-pages).\n\n| module | about |\n| --- | --- |\n" + rows
    )
    index = Page(f"{FOLDER}/index.md", start, "src/toolbus/__init__.py")
    return {index.path: index} | {path_of(path): _page(api, path) for path in api.modules}


def _page(api: API, path: str) -> Page:
    module = api.modules[path]
    names = api.names_of(path)
    here = [name for name in names if api.home(f"{path}.{name}") == f"{path}.{name}" and _is_ours(module, name)]
    parts = [f"# `{path}`\n\nThis page lists every public name of `{path}`.\n"]
    members = "".join(f"\n        - {name}" for name in here)
    parts.append(f"::: {path}\n    options:\n      members:{members or ' false'}\n")
    if elsewhere := [name for name in names if name not in here]:
        parts.append("## Names described elsewhere\n\n| name | described in |\n| --- | --- |")
        parts += [_row(api, path, name) for name in elsewhere]
    return Page(path_of(path), "\n".join(parts) + "\n", str(module.filepath))


def _is_ours(module: Any, name: str) -> bool:
    """Return whether the sources have the definition; names of other libraries and unpacked tuples have none."""
    return not module.members[name].is_alias or module.members[name].resolved


def _row(api: API, path: str, name: str) -> str:
    """The row of a name that another module describes, or another library."""
    home = api.home(f"{path}.{name}")
    shown = f'| <span id="{path}.{name}">`{name}`</span> | '
    if home == f"{path}.{name}":
        return f"{shown}`{api.modules[path].members[name].target_path}` |"
    return f"{shown}[`{home}`]({home.rpartition('.')[0]}.md#{home}) |"


def _first_line(member: Any) -> str:
    return member.docstring.value.splitlines()[0] if member.docstring else ""


def as_markdown(api: API, path: str, words: Mapping[str, str] = MappingProxyType({})) -> str:
    """A module's page in plain Markdown: signatures in fences, and docstrings.

    `words` has what follows the docstring of a name, by canonical path.
    """
    module = api.modules[path]
    parts = [f"# {path}", fenced(module.docstring.value) if module.docstring else ""]
    for name in api.names_of(path):
        home = api.home(f"{path}.{name}")
        if home != f"{path}.{name}":
            parts.append(f"## {name}\n\nDescribed as `{home}`.")
            continue
        parts += _described(module.members[name], name, "##", words)
    return "\n\n".join(part for part in parts if part) + "\n"


def _described(member: Any, name: str, heading: str, words: Mapping[str, str]) -> Iterator[str]:
    if member.is_alias:
        if not member.resolved:
            yield f"{heading} {name}\n\nFrom `{member.target_path}`."
            return
        member = member.final_target
    text = fenced(member.docstring.value) if member.docstring else ""
    text += f"\n\n{words[member.path]}" if member.path in words else ""
    yield f"{heading} {name}\n\n```python\n{_signature(member, name)}\n```\n\n{text}".rstrip()
    if member.is_class:
        for each in member.members.values():
            if not each.name.startswith("_"):
                yield from _described(each, f"{name}.{each.name}", heading + "#", words)


def _signature(member: Any, name: str) -> str:
    if member.is_function:
        shown = member.signature(return_type=True)
        return f"{'async ' if 'async' in member.labels else ''}def {shown}"
    if member.is_class:
        bases = ", ".join(map(str, member.bases))
        return f"class {name}({bases})" if bases else f"class {name}"
    annotation = f": {member.annotation}" if member.annotation else ""
    return f"{name}{annotation}" + (f" = {member.value}" if member.value and len(str(member.value)) < 200 else "")
