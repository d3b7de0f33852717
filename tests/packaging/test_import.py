"""What `import toolbus` brings along. Asked where everything is installed, so that a leak would not go unseen."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from environments import Environment

ALLOWED = {
    *("toolbus", "anyio", "blinker", "orjson", "pydantic", "pydantic_core"),
    *("annotated_types", "idna", "sniffio", "typing_extensions", "typing_inspection"),
}
# Parts of toolbus that are imported by those who use them.
ON_DEMAND = {"toolbus.cli", "toolbus.testing", "toolbus.toolsets"}

HERE = Environment(Path(sys.prefix))


def imported_by(statement: str) -> set[str]:
    """The modules that `statement` adds to those of a fresh interpreter of the suite's own environment."""
    code = f"import sys; b = set(sys.modules); {statement}; import json; print(json.dumps([*({{*sys.modules}} - b)]))"
    return set(json.loads(HERE.python(code)))


def top_level(modules: set[str]) -> set[str]:
    """Their top-level names, without the standard library's."""
    names = {module.split(".")[0] for module in modules} - sys.stdlib_module_names
    return {name for name in names if not name.startswith("_sysconfigdata")}  # the platform's own part of the library


def test_importing_toolbus_imports_no_more_than_its_core_dependencies():
    assert top_level(imported_by("import toolbus")) - ALLOWED == set()


def test_importing_toolbus_leaves_its_adapters_and_its_command_alone():
    assert imported_by("import toolbus") & ON_DEMAND == set()


@pytest.mark.parametrize("package", ["rich", "openai", "trio", "jsonschema_rs"])
def test_a_leak_would_be_seen(package: str):
    assert package in top_level(imported_by(f"import toolbus, {package}"))


def of_toolbus(modules: set[str]) -> set[str]:
    return {module for module in modules if module.partition(".")[0] == "toolbus"}


def test_importing_toolbus_imports_nothing_but_what_its_own_module_needs():
    """Names come when they are used. What is not here costs more than all that is: see `benchmarks/instructions.py`."""
    modules = imported_by("import toolbus")
    assert of_toolbus(modules) == {"toolbus", "toolbus._lazy"}
    assert top_level(modules) == {"toolbus"}
    assert modules & {"asyncio", "dataclasses", "importlib.metadata", "inspect", "logging", "pathlib"} == set()


def test_telling_the_version_imports_two_modules_more():
    quietly = "import io, sys; out, sys.stdout = sys.stdout, io.StringIO(); {}; sys.stdout = out"
    modules = imported_by(quietly.format("from toolbus.cli import main; main(['--version'])"))
    assert of_toolbus(modules) == {"toolbus", "toolbus._lazy", "toolbus._version", "toolbus.cli"}
    assert top_level(modules) == {"toolbus"}
    more = modules - imported_by("import toolbus")
    assert {"toolbus.cli", "threading"} <= more
    assert len(more) <= 8, "threading and what it needs, by Python's version"


def test_a_runtime_imports_no_adapter_no_store_of_files_and_nothing_that_starts_processes():
    modules = imported_by("from toolbus import Runtime, tool")
    adapters = {each for each in modules if each.startswith("toolbus.providers.")}
    assert adapters == {"toolbus.providers._resolve", "toolbus.providers.vendors"}
    stores = {
        ".".join(each.split(".")[:3])
        for each in modules
        if each.startswith("toolbus.stores.") and not each.startswith("toolbus.stores._")
    }
    assert stores == {"toolbus.stores.memory"}
    assert modules & {"asyncio", "anyio.to_process", "http.client", "multiprocessing", "sqlite3", "ssl"} == set()
