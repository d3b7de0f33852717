"""The wheel, as somebody gets it who installs toolbus: bare, and with each extra."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from environments import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

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
    assert kinds <= {"py", "typed", "html", "js", "mjs", "css", "txt"}


def test_what_only_pages_need_is_small(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        sizes = [each.compress_size for each in archive.infolist() if each.filename.startswith("toolbus/web/")]
    assert 50_000 < sum(sizes) < 150_000


def test_the_wheel_holds_every_file_of_the_source_tree(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("toolbus/")}
    files = [path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert packed == {path.relative_to(ROOT / "src").as_posix() for path in files}


def build(target: str, source: Path, folder: Path, seconds: int) -> Path:
    """Build in a folder of its own, at a time that `SOURCE_DATE_EPOCH` gives."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    variables = {**os.environ, "SOURCE_DATE_EPOCH": str(seconds)}
    subprocess.run(command, check=True, cwd=source, capture_output=True, env=variables)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"), 1_700_000_000)


def test_the_same_sources_build_the_same_bytes_also_from_the_source_distribution(
    sdist: Path, wheel: Path, tmp_path: Path
):
    subprocess.run(["tar", "-xzf", str(sdist), "--touch"], check=True, cwd=tmp_path)  # files get the time of now
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    again = build("sdist", unpacked, tmp_path / "2", 1_700_000_000)
    assert again.read_bytes() == sdist.read_bytes()
    wheels = [
        build("wheel", ROOT, tmp_path / "3", 1_700_000_000),
        build("wheel", unpacked, tmp_path / "4", 1_700_000_000),
    ]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    assert wheel.read_bytes() != wheels[0].read_bytes(), "SOURCE_DATE_EPOCH has no effect, so the test shows nothing"


def test_the_source_distribution_holds_what_its_own_tests_and_pages_need(sdist: Path):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"README.md", "LICENSE", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CITATION.cff", "dev.py", "uv.lock"}
    wanted |= {"tests/conftest.py", "docs/README.md", "docs_site/zensical.yml", "examples/quickstart.py"}
    assert wanted <= names
    assert [name for name in names if "__pycache__" in name or name.startswith((".dev", ".venv"))] == []


def test_the_citation_names_the_version_and_the_licence_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = dict(re.findall(r"^([a-z-]+): (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE))
    assert (cited["title"], cited["version"], cited["license"]) == ("toolbus", project["version"], project["license"])


def test_type_checkers_know_every_type_of_the_installed_package(install: Callable[[str], Environment], tmp_path: Path):
    # The responses of `toolbus.web` are subclasses of Starlette's, so their types are known where it is installed.
    with_web = install("web")
    pyright = [
        Path(sys.executable).with_name("pyright"),
        "--verifytypes",
        "toolbus",
        "--ignoreexternal",
        "--outputjson",
    ]
    path = os.pathsep.join([str(with_web.folder / "bin"), os.environ["PATH"]])  # the package that pyright finds
    variables = {**os.environ, "PATH": path, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(pyright, check=False, cwd=tmp_path, capture_output=True, text=True, env=variables)
    report = json.loads(done.stdout)["typeCompleteness"]
    assert report["packageRootDirectory"].startswith(str(with_web.folder))
    assert report["exportedSymbolCounts"]["withUnknownType"] == 0
    assert report["exportedSymbolCounts"]["withKnownType"] > 1_000
    assert report["missingClassDocStringCount"] == 0


def test_mypy_accepts_a_typical_application_of_the_installed_package(
    install: Callable[[str], Environment], tmp_path: Path
):
    shutil.copy(ROOT / "tests/typing/typical_use.py", tmp_path)
    options = [
        "--strict",
        "--python-executable",
        str(install("web").folder / "bin/python"),
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    command = [sys.executable, "-m", "mypy", *options, "typical_use.py"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


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


@pytest.fixture(scope="module")
def refused(bare: Environment) -> dict[str, list[str]]:
    """The errors of what needs an extra, by the extra: the last lines of their tracebacks."""
    program = (
        f"import json, traceback; {KEYS}errors = {{}}\n"
        f"for extra, code in {ADAPTERS!r}.items():\n"
        "    try:\n"
        "        exec(code, {})\n"
        "    except Exception as exc:\n"
        "        errors[extra] = traceback.format_exception_only(exc)\n"
        "print(json.dumps(errors))"
    )
    return json.loads(bare.python(program))


@pytest.mark.parametrize("extra", ADAPTERS)
def test_a_missing_extra_is_named_by_the_error_of_what_needs_it(refused: dict[str, list[str]], extra: str):
    [line] = refused[extra]
    assert line.startswith("toolbus.errors.MissingExtra: ")
    assert f"pip install 'toolbus[{extra}]'" in line


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
    assert "**`limits.py:3`**" in done.stdout
    assert "\x1b[" not in done.stdout  # no terminal, no colours
