"""The wheel, as somebody gets it who installs toolbus: bare, and with each extra."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
from environments import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from environments import Environment

# What imports an extra's package, by the extra: the public call that needs it.
ADAPTERS = {
    "anthropic": "import toolbus; toolbus.Runtime(provider='anthropic:some-model')",
    "code": (
        "import anyio, tempfile; from pathlib import Path; from toolbus.toolsets.code_context import CodeIndex; "
        "root = Path(tempfile.mkdtemp()); (root / 'a.py').write_text('def renew(): ...'); "
        "anyio.run(CodeIndex(root, cache_dir=root, rerank=True).hybrid_search, 'renew', 5)"
    ),
    "mcp": "from toolbus.toolsets.mcp import McpTools; McpTools([])",
    "mongo": "from toolbus.stores import MongoStore; MongoStore('mongodb://127.0.0.1')",
    "nats": "from toolbus.remote.nats import NatsExecutor; NatsExecutor('nats://127.0.0.1', pool='gpu')",
    "ollama": "import toolbus; toolbus.Runtime(provider='ollama:some-model')",
    "openai": "import toolbus; toolbus.Runtime(provider='openai:some-model')",
    "otel": "from toolbus.telemetry import OpenTelemetry; OpenTelemetry()",
    "web": "from toolbus.web import EventsResponse",
    "schema": "from toolbus.schemas import json_schema_validator as needs_it; needs_it({'type': 'object', 'required': ['x']})",
}
KEYS = "import os; os.environ['OPENAI_API_KEY'] = os.environ['ANTHROPIC_API_KEY'] = 'sk-none'; "
ANSWER = """
import anyio
from toolbus import Runtime
from toolbus.testing import ScriptedProvider, text

async def main():
    async with Runtime(provider=ScriptedProvider([text("Sunny.")])) as runtime:
        print((await runtime.run("Weather?")).text)

anyio.run(main, backend=BACKEND)
"""


def test_the_wheel_holds_the_typed_package_its_licence_and_nothing_else(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    roots = {name.split("/")[0] for name in names}
    assert roots == {"toolbus", f"toolbus-{version('toolbus')}.dist-info"}
    assert "toolbus/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    kinds = {name.rsplit(".", 1)[-1] for name in names if name.startswith("toolbus/")}
    assert kinds <= {"py", "typed", "html", "js", "css"}


def test_the_wheel_holds_every_module_of_the_source_tree(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.endswith(".py")}
    source = ROOT / "src"
    assert packed == {path.relative_to(source).as_posix() for path in source.rglob("*.py")}


def test_the_source_distribution_builds_the_same_modules(wheel: Path, tmp_path: Path):
    build = [sys.executable, "-m", "hatchling", "build", "--target"]
    subprocess.run([*build, "sdist", "--directory", str(tmp_path)], check=True, cwd=ROOT, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    subprocess.run(["tar", "-xzf", str(archive)], check=True, cwd=tmp_path)
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    subprocess.run([*build, "wheel", "--directory", str(tmp_path)], check=True, cwd=unpacked, capture_output=True)
    (again,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert first.namelist() == second.namelist()


def test_without_extras_the_package_imports_and_brings_only_the_core_dependencies(bare: Environment):
    found = bare.python(
        "import toolbus; from importlib.metadata import distributions as d; print(*sorted(x.name.lower() for x in d()))"
    )
    assert set(found.replace("_", "-").split()) == {
        *("toolbus", "anyio", "blinker", "msgspec", "orjson", "pydantic"),
        *("annotated-types", "idna", "pydantic-core", "typing-extensions", "typing-inspection"),
    }


def test_without_extras_a_request_is_answered_on_asyncio(bare: Environment):
    assert bare.python(ANSWER.replace("BACKEND", "'asyncio'")) == "Sunny."


def test_with_the_trio_extra_a_request_is_answered_on_trio(install: Callable[[str], Environment]):
    assert install("trio").python(ANSWER.replace("BACKEND", "'trio'")) == "Sunny."


@pytest.mark.parametrize("extra", ADAPTERS)
def test_a_missing_extra_is_named_by_the_error_of_what_needs_it(bare: Environment, extra: str):
    done = bare.run("python", "-c", KEYS + ADAPTERS[extra])
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("toolbus.errors.MissingExtra: ")
    assert f"pip install 'toolbus[{extra}]'" in done.stderr


@pytest.mark.parametrize("extra", ADAPTERS)
def test_with_its_extra_an_adapter_works(install: Callable[[str], Environment], extra: str):
    assert install(extra).python(KEYS + ADAPTERS[extra]) == ""


def test_every_extra_has_a_test_here(bare: Environment):
    extras = bare.python("from importlib.metadata import metadata as m; print(*m('toolbus').get_all('Provides-Extra'))")
    assert set(extras.split()) == {*ADAPTERS, "all", "cli", "postgres", "trio"}


@pytest.mark.parametrize("extra", ["", "cli"])
def test_the_command_tells_its_version_with_and_without_the_cli_extra(
    install: Callable[[str], Environment], extra: str
):
    done = install(extra).run("toolbus", "--version")
    assert (done.returncode, done.stdout.split()) == (0, ["toolbus", version("toolbus")])


@pytest.mark.parametrize("extra", ["", "cli"])
def test_a_question_is_answered_with_and_without_the_cli_extra(
    install: Callable[[str], Environment], tmp_path: Path, extra: str
):
    (tmp_path / "limits.py").write_text('"""Limits."""\n\nDEFAULT_TIMEOUT_SECONDS = 120\n', encoding="utf-8")
    done = install(extra).run("toolbus", "ask", "What is the default timeout?", "--dir", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "DEFAULT_TIMEOUT_SECONDS = 120" in done.stdout
    assert "limits.py:3" in done.stdout
    assert "\x1b[" not in done.stdout  # no terminal, no colours
