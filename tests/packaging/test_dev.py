"""dev.py sets up only what is needed, heals what was cut short, and says what to do when it cannot."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from environments import ROOT


@pytest.fixture
def plain() -> Any:
    """dev.py as a module."""
    specification = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    assert specification is not None
    assert specification.loader is not None
    module: Any = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def dev(plain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """dev.py as a module, at work in an empty folder; `dev.ran` gathers the commands that it would have run."""
    module = plain
    module.ran = []

    def run(command: list[object], _settings: object, **_options: bool) -> None:
        module.ran.append(" ".join(map(str, command)))
        if "venv" in command:
            (tmp_path / ".venv").mkdir(exist_ok=True)

    def uv() -> str:
        return "uv"

    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(module, "find_uv", uv)
    monkeypatch.setattr(module, "STATE", tmp_path / ".dev")
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "stamp.json")
    monkeypatch.setattr(module, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(module, "python_fits", (tmp_path / ".venv").exists)
    return module


def test_a_repeat_runs_nothing(dev: Any):
    dev.prepare("ask")
    assert len(dev.ran) == 4
    dev.prepare("ask")
    assert len(dev.ran) == 4


def test_the_environment_of_the_tests_answers_questions_too_but_not_the_other_way_round(dev: Any):
    dev.prepare("ask")
    dev.prepare("test")
    assert "--group dev" in dev.ran[4]
    count = len(dev.ran)
    dev.prepare("ask")
    assert len(dev.ran) == count


def test_the_environment_of_the_examples_lies_between_the_two(dev: Any):
    dev.prepare("example")
    assert "--group examples" in dev.ran[1]
    assert "--group dev" not in dev.ran[1]
    count = len(dev.ran)
    dev.prepare("ask")
    assert len(dev.ran) == count
    dev.prepare("test")
    assert len(dev.ran) > count


def test_the_environment_of_the_benchmarks_holds_what_draws_and_the_examples_too(dev: Any):
    dev.prepare("bench")
    assert "--group bench" in dev.ran[1]
    assert "--group dev" not in dev.ran[1]
    count = len(dev.ran)
    dev.prepare("example")
    assert len(dev.ran) == count
    dev.prepare("test")
    assert len(dev.ran) > count


def test_the_site_of_the_documentation_needs_a_group_of_its_own_and_takes_none_away(dev: Any):
    dev.prepare("example")
    dev.prepare("docs")
    assert "--group docs --group examples" in dev.ran[-3]
    count = len(dev.ran)
    dev.prepare("example")
    dev.prepare("docs")
    assert len(dev.ran) == count


def test_the_benchmarks_get_their_options_and_learn_of_uv_and_the_registry(dev: Any, monkeypatch: pytest.MonkeyPatch):
    def become(command: list[str], folder: Path) -> None:
        assert (folder, os.environ["UV"], os.environ["UV_DEFAULT_INDEX"]) == (ROOT, "uv", "mirror")
        sys.exit(" ".join(command[1:]))

    def registry_settings() -> dict[str, str]:
        return {"UV_DEFAULT_INDEX": "mirror"}

    monkeypatch.setattr(dev, "become", become)
    monkeypatch.setattr(dev, "registry_settings", registry_settings)
    monkeypatch.setattr(dev.os, "environ", {**os.environ})
    with pytest.raises(SystemExit, match=r"^-m benchmarks --quick --only cpu$"):
        dev.main(["bench", "--quick", "--only", "cpu"])


def test_a_soak_gets_its_options_in_the_environment_of_the_tests(dev: Any, monkeypatch: pytest.MonkeyPatch):
    def become(command: list[str], folder: Path) -> None:
        assert folder == ROOT
        sys.exit(" ".join(command[1:]))

    monkeypatch.setattr(dev, "become", become)
    with pytest.raises(SystemExit, match=r"^-m soak --minutes 1 --only kills$"):
        dev.main(["soak", "--minutes", "1", "--only", "kills"])
    assert "--group dev" in dev.ran[1]


def test_a_soak_of_a_few_seconds_tells_in_a_table_what_it_has_done_and_with_which_seed():
    done = subprocess.run(
        [sys.executable, "-m", "soak", "--minutes", "0.01", "--only", "simulation", "--seed", "20000"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first == "simulation: seed 20000, for 1 s"
    assert re.fullmatch(r"ok +simulation +\d+ s  seed 20000: [1-9]\d* requests of [1-9]\d* seeds, from 20000 on", last)


def test_an_example_starts_by_its_name_and_gets_its_options(dev: Any, monkeypatch: pytest.MonkeyPatch):
    def become(command: list[str]) -> None:
        sys.exit(" ".join(command[1:]))

    monkeypatch.setattr(dev, "become", become)
    monkeypatch.setenv("PYTHONPATH", "")
    with pytest.raises(SystemExit, match=r"^-m examples\.status_line --slowly$"):
        dev.main(["example", "status_line", "--slowly"])


def test_without_a_name_the_examples_are_listed_each_with_what_it_is_about(
    dev: Any, capsys: pytest.CaptureFixture[str]
):
    assert dev.main(["example"]) == 0
    listed = capsys.readouterr().out.splitlines()[2:]
    names = {path.stem for path in (ROOT / "examples").glob("[!_]*") if path.is_dir() or path.suffix == ".py"}
    assert {line.split()[0] for line in listed} == names - {"__pycache__"}
    assert all(len(line.split()) > 3 for line in listed)
    assert dev.main(["example", "no_such"]) == 2
    assert "there is no example 'no_such'" in capsys.readouterr().err
    assert dev.ran == []


def test_an_environment_made_by_hand_is_used_as_it_is(dev: Any):
    dev.VENV.mkdir()
    dev.prepare("ask")
    assert not [command for command in dev.ran if command.startswith("uv venv")]
    assert "pip install" in dev.ran[-1]  # which, other than sync, removes nothing


@pytest.mark.parametrize("spoiled", [{"key": None}, {"root": "elsewhere"}])
def test_an_environment_that_was_cut_short_or_has_moved_is_made_anew(dev: Any, spoiled: dict[str, str | None]):
    dev.prepare("test")
    stamp = {**json.loads(dev.STAMP.read_text()), **spoiled}
    dev.STAMP.write_text(json.dumps({name: value for name, value in stamp.items() if value}))
    dev.ran.clear()
    if "root" in spoiled:  # what a moved checkout does to the key as well
        dev.fingerprint = lambda: "another"
    dev.prepare("test")
    assert dev.ran[0].startswith("uv venv --quiet --clear")


def test_a_set_up_that_fails_is_not_taken_for_done(dev: Any, monkeypatch: pytest.MonkeyPatch):
    def run(command: list[object], _settings: object, **_options: bool) -> None:
        dev.VENV.mkdir(exist_ok=True)
        if "pip" in command:
            raise dev.SetupError("no network")

    monkeypatch.setattr(dev, "run", run)
    with pytest.raises(dev.SetupError, match="no network"):
        dev.prepare("ask")
    assert "key" not in json.loads(dev.STAMP.read_text())


def test_a_lock_file_that_is_gone_or_damaged_is_reported(dev: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    with pytest.raises(dev.SetupError, match=r"pyproject\.toml"):
        dev.prepare("ask")
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "uv.lock").write_text("<<<<<<< ours", encoding="utf-8")  # a merge that is not finished, say
    monkeypatch.setattr(dev, "find_uv", lambda: dev.locked_package("uv"))
    with pytest.raises(dev.SetupError, match=r"uv\.lock: Invalid statement"):
        dev.prepare("ask")


def test_a_command_that_is_gone_from_the_environment_is_reported(
    dev: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(dev, "BIN", tmp_path)
    assert dev.main(["ask", "q"]) == 1
    reported = f"dev.py: {tmp_path / 'toolbus'} cannot be run: No such file or directory. Delete {dev.VENV}"
    assert reported in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["example"], ["example", "nope"]])
def test_output_that_nobody_reads_is_passed_over(dev: Any, arguments: list[str], monkeypatch: pytest.MonkeyPatch):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", encoding="utf-8") as nobody:
        monkeypatch.setattr("sys.stdout", nobody)
        assert dev.main(arguments) == (2 if arguments[1:] else 141)


def test_what_the_cache_does_not_have_is_asked_of_the_registry(dev: Any, monkeypatch: pytest.MonkeyPatch):
    recorded = dev.run

    def run(command: list[object], settings: object, **_options: bool) -> None:
        recorded(command, settings)
        if "--offline" in command:
            raise dev.SetupError("not in the cache")

    monkeypatch.setattr(dev, "run", run)
    dev.prepare("ask")
    assert dev.ran[-2] == f"{dev.ran[-1]} --offline"


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("failed to copy file: No space left on device (os error 28)", "the disk is full"),
        ("error: Request failed after 3 retries\n cause: dns error", "the package registry cannot be reached"),
        ("<urlopen error [Errno -3] Temporary failure in name resolution>", "the package registry cannot be reached"),
        ("ERROR: No matching distribution found for uv==0.13.9", "the package registry cannot be reached"),
        ("invalid peer certificate: UnknownIssuer", "SSL_CERT_FILE"),
        ("[Errno 30] Read-only file system: '.dev'", "cannot write"),
        ("Hash mismatch for rich", "not what uv.lock says"),
        ("something new", "the set-up failed"),
    ],
)
def test_a_failure_says_what_to_do_and_quotes_its_cause(dev: Any, output: str, advice: str):
    text = dev.advise(output)
    assert advice in text
    assert output in text


def test_pips_settings_reach_uv_unless_uv_has_its_own(dev: Any, monkeypatch: pytest.MonkeyPatch):
    def listing(*_command: object, **_options: object) -> subprocess.CompletedProcess[str]:
        lines = ["global.index-url='mirror'", ":env:.index-url='nearer'", "global.cert='own.pem'", "global.timeout='9'"]
        return subprocess.CompletedProcess([], 0, "\n".join(lines))

    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "SSL_CERT_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(dev.subprocess, "run", listing)

    def found(_name: str) -> bool:
        return True

    monkeypatch.setattr(dev.importlib.util, "find_spec", found)  # an environment of dev.py's own has no pip
    settings = dev.registry_settings()
    assert (settings["UV_DEFAULT_INDEX"], settings["SSL_CERT_FILE"]) == ("nearer", "own.pem")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "uv's own")
    assert "UV_DEFAULT_INDEX" not in dev.registry_settings()


@pytest.mark.parametrize(
    ("system", "machine", "libc", "tag"),
    [
        ("Linux", "x86_64", "glibc", "manylinux_2_17_x86_64"),
        ("Linux", "aarch64", "", "musllinux_1_1_aarch64"),
        ("Darwin", "arm64", "", "macosx_11_0_arm64"),
        ("Windows", "AMD64", "", "win_amd64"),
    ],
)
def test_without_pip_the_locked_uv_for_this_machine_is_found(
    dev: Any, monkeypatch: pytest.MonkeyPatch, system: str, machine: str, libc: str, tag: str
):
    monkeypatch.setattr(dev.platform, "system", lambda: system)
    monkeypatch.setattr(dev.platform, "machine", lambda: machine)
    monkeypatch.setattr(dev.platform, "libc_ver", lambda: (libc, ""))
    (found,) = [wheel["url"] for wheel in dev.locked_package("uv")["wheels"] if dev._suits(wheel["url"])]
    assert tag in found


# ------------------------------------------------------------------------------------------------ other Pythons


class Became(Exception):
    """What dev.py would have become."""


@pytest.fixture
def becoming(dev: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """dev.py on a machine that has Python 3.13 too."""

    def become(command: list[str], *, environment: dict[str, str]) -> None:
        raise Became(command, environment["TOOLBUS_DEV_VENV"])

    monkeypatch.setattr(dev, "become", become)
    monkeypatch.setattr(dev, "find_python", {"3.13": "/there/python3.13"}.get)
    return dev


def test_the_tests_run_on_another_python_in_an_environment_of_its_own(becoming: Any):
    for option in (["--python", "3.13"], ["--python=3.13"]):
        with pytest.raises(Became) as became:
            becoming.main(["test", *option, "-k", "bus"])
        file = str(Path(becoming.__file__))
        assert became.value.args == (["/there/python3.13", file, "test", "-k", "bus"], ".venv-3.13")
    assert becoming.ran == []


def test_without_further_arguments_the_whole_suite_runs_on_another_python_side_by_side(becoming: Any):
    with pytest.raises(Became) as became:
        becoming.main(["test", "--python", "3.13"])
    assert became.value.args[0][3:] == becoming.side_by_side()


@pytest.mark.parametrize(
    ("version", "reported"),
    [
        ("3.12", "there is no Python 3.12 here: "),
        ("three", "--python takes a version such as 3.13, not 'three'"),
    ],
)
def test_a_python_that_is_not_there_is_reported_in_a_line(
    becoming: Any, version: str, reported: str, capsys: pytest.CaptureFixture[str]
):
    assert becoming.main(["test", "--python", version]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dev.py: {reported}")


def test_a_process_for_another_python_works_in_that_environment_and_hands_it_to_nobody(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOOLBUS_DEV_VENV", ".venv-3.13")
    specification = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    assert specification is not None
    assert specification.loader is not None
    module: Any = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    assert module.VENV == ROOT / ".venv-3.13"
    assert module.PYTHON.is_relative_to(module.VENV)
    assert "TOOLBUS_DEV_VENV" not in os.environ


def test_pyenvs_interpreters_come_before_its_shims_the_newest_first_and_none_is_downloaded(
    dev: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for version in ("3.13.9", "3.13.10", "3.12.1"):
        (tmp_path / "versions" / version / "bin").mkdir(parents=True)
    asked: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append((command, options["env"]))
        return subprocess.CompletedProcess(command, 0, "/there/python3.13\n")

    monkeypatch.setattr(dev.subprocess, "run", run)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", "shims")
    assert dev.find_python("3.13") == "/there/python3.13"
    ((command, variables),) = asked
    assert command[:3] == ["uv", "python", "find"]
    bins = [str(tmp_path / "versions" / version / "bin") for version in ("3.13.10", "3.13.9")]
    assert variables["PATH"].split(os.pathsep) == [*bins, "shims"]
    assert variables["UV_PYTHON_DOWNLOADS"] == "never"


def test_the_pythons_that_the_package_declares_are_tested(
    dev: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    missing = {"3.99"}

    def find_python(version: str) -> str | None:
        return None if version in missing else f"/there/python{version}"

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        dev.ran.append(" ".join([options["env"]["TOOLBUS_DEV_VENV"], *command[2:5]]))
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(dev, "find_python", find_python)

    def run_tests(_environment: object) -> Any:
        return "pytest", True, 0.0, ""

    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    monkeypatch.setattr(dev, "declared_pythons", lambda: [running, "3.98", "3.99"])
    monkeypatch.setattr(dev, "checks", dict)
    monkeypatch.setattr(dev, "run_tests", run_tests)
    monkeypatch.setattr(dev.subprocess, "run", run)
    monkeypatch.chdir(ROOT)
    dev.STATE.mkdir()
    assert dev.check_everything() == 1
    assert dev.ran == [f".venv-3.98 test --coverage {dev.COVERAGE_PERCENT}"]  # on the newest one that is here
    reported = capsys.readouterr().out
    assert "FAILED  pytest 3.98 " in reported
    assert "skipped: no Python 3.99 here\n" in reported
    missing.add("3.98")
    assert dev.check_everything() == 0
    assert "skipped: no Python 3.99 here, so coverage was not measured" in capsys.readouterr().out


def test_the_files_that_can_differ_are_checked_for_macos_and_windows_too(dev: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dev, "ROOT", ROOT)
    commands = dev.checks()
    assert commands["pyright"] == ["pyright"]
    for name, platform in (("for macOS", "Darwin"), ("for Windows", "Windows")):
        command, option, value, *files = commands[name]
        assert (command, option, value) == ("pyright", "--pythonplatform", platform)
        assert {str(ROOT / "dev.py"), str(ROOT / "src/toolbus/cli/_host.py")} <= set(files)
        assert str(ROOT / "src/toolbus/core/history.py") not in files


@pytest.mark.parametrize(("tests", "report", "status"), [(0, 0, 0), (1, 0, 1), (0, 2, 2)])
def test_a_measured_run_fails_with_its_tests_and_if_too_few_lines_ran(
    dev: Any, monkeypatch: pytest.MonkeyPatch, tests: int, report: int, status: int
):
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        words = command[3:]
        dev.ran.append(" ".join(words))
        Path(options["env"]["COVERAGE_FILE"]).touch()
        return subprocess.CompletedProcess(command, {"run": tests, "report": report}.get(words[0], 0))

    monkeypatch.setattr(dev.subprocess, "run", run)
    monkeypatch.setattr(dev, "ROOT", dev.STATE.parent)
    dev.STATE.mkdir()
    monkeypatch.chdir(dev.STATE.parent)
    assert dev.run_measured(["-k", "bus"], 95.0) == status
    assert dev.ran[0] == "run -m pytest -k bus"
    assert dev.ran[-1].endswith("--fail-under=95")


def test_the_quick_half_on_another_python_is_ended_in_time(dev: Any, monkeypatch: pytest.MonkeyPatch):
    def run(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(dev, "find_python", {"3.13": "/there/python3.13"}.get)
    monkeypatch.setattr(dev.subprocess, "run", run)
    _, passed, _, remark = dev.run_quickly("3.13")
    assert not passed
    assert remark.startswith(f"ended after {dev.QUICK_HALF_SECONDS:g} s")


def test_the_declared_pythons_are_those_of_pyproject(dev: Any):
    assert dev.declared_pythons() == ["3.11", "3.12", "3.13", "3.14"]


def test_the_quick_half_leaves_out_what_repeats_and_the_longest_files(pytestconfig: pytest.Config):
    sample = [
        "tests/bus/test_bus_arbitration.py",
        "tests/fuzz/test_fuzzed_documents.py",
        "tests/durability/test_kill.py",
    ]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *sample]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    found: list[set[str]] = []
    for option in ([], ["--quick"]):
        done = subprocess.run([*command, *option], cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
        found.append({line for line in done.stdout.splitlines() if "::" in line})
    whole, quick = found
    assert quick < whole
    assert any("test_bus_arbitration" in name for name in quick)
    assert not [name for name in quick if "trio" in name or "test_kill" in name]


def test_without_a_command_it_tells_how_it_is_used(dev: Any, capsys: pytest.CaptureFixture[str]):
    assert dev.main([]) == 2
    assert dev.main(["--help"]) == 0
    assert dev.main(["tset"]) == 2
    assert 'python3 dev.py ask "' in capsys.readouterr().out


def test_it_names_no_registry():
    assert "://" not in (ROOT / "dev.py").read_text(encoding="utf-8")


def test_the_progress_of_a_long_step_is_shown_on_a_screen_that_disappears(
    plain: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    asked: list[tuple[list[str], bool]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append((command, "UV_NO_PROGRESS" in options["env"]))
        return subprocess.CompletedProcess(command, len(asked) - 1)

    monkeypatch.setattr(plain.subprocess, "run", run)
    plain.run(["uv", "--quiet", "x"], {"UV_NO_PROGRESS": "1"}, show=True)
    assert asked == [(["uv", "x"], False)]
    assert capsys.readouterr().err == "\x1b[?1049h\x1b[?1049l"
