#!/usr/bin/env python3
"""Run toolbus, its examples, its benchmarks, or its whole test suite, from a fresh checkout.

    python3 dev.py ask "Which limits stop a request?" --dir src     runs `toolbus ask ...`
    python3 dev.py example                                          lists the examples
    python3 dev.py example graph_assistant                          runs one; its options follow its name
    python3 dev.py bench                                            measures what toolbus costs, for docs/performance.md
    python3 dev.py bench --quick --only cpu                         measures one figure; its options follow its name
    python3 dev.py soak --minutes 60                                looks for bugs for an hour, with new seeds
    python3 dev.py docs                                             builds the site of the documentation, and serves it
    python3 dev.py docs --build                                     only builds it, into .dev/docs/site
    python3 dev.py shape                                            prints sizes, longest parts and imports of packages
    python3 dev.py test                                             runs all that CI checks
    python3 dev.py test -k bus                                      runs only pytest, with these arguments
    python3 dev.py test --python 3.13                               runs pytest on another Python of this machine
    python3 dev.py test --coverage 95 -q                            runs pytest; fails if fewer percent of lines ran

It needs only a checkout, Python 3.11 or newer and a package registry. Everything that it makes lies in .venv, .dev and,
for another Python, a folder such as .venv-3.13; all of these may be deleted at any time.
`ask` installs toolbus with its extras; `example` adds what the examples need; `bench` adds what draws the plot, and, in
separate environments, the runtimes to compare with; `docs` adds what builds the site; `test` and `soak` add the tools
of development. The set-up runs again only when the lock file, pyproject.toml, this file, Python's minor version or the
checkout's path changes.

This file uses only the standard library, and names no registry: pip's and uv's configuration on the machine decides.
"""

import sys

if sys.version_info < (3, 11):
    sys.exit(
        f"toolbus needs Python 3.11 or newer, and {sys.executable} is {sys.version.split()[0]}.\n"
        "Run dev.py with a newer one by its name, such as: python3.11 dev.py ..."
    )

import argparse
import ast
import contextlib
import hashlib
import importlib.util
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sysconfig
import tempfile
import time
import tomllib
import urllib.request
import zipfile
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent
VENV = ROOT / os.environ.pop("TOOLBUS_DEV_VENV", ".venv")  # only `in_own_environment` sets another one
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
STAMP = VENV / ".toolbus-dev.json"  # it lies inside, so that it is deleted with the environment
STATE = ROOT / ".dev"
BYTECODE = STATE / "bytecode"

TOOLBUS_COMMANDS = ("ask", "chat", "resume", "store", "events", "tools", "replay", "simulate")
GROUPS: dict[str, list[str]] = {  # the groups of pyproject.toml that each command needs
    "ask": [],
    "example": ["examples"],
    "bench": ["examples", "bench"],
    "docs": ["docs"],
    "test": ["examples", "bench", "docs", "dev"],
}
COVERAGE_PERCENT = 95
QUICK_HALF_SECONDS = 1_800.0
"""The time that the quick half of the tests may take on each other Python, with its set-up. Two idle processors need
two to three minutes."""

CHECKS: dict[str, list[str]] = {
    "pyright": ["pyright"],
    "lint-imports": ["lint-imports"],
    "ruff check": ["ruff", "check"],
    "ruff format": ["ruff", "format", "--check"],
}
OTHER_SYSTEMS = {"macOS": "Darwin", "Windows": "Windows"}
"""The systems for which `dev.py test` checks the types, beside its own, each with pyright's name for it."""
DIFFERS = re.compile(
    r"^ *(?:import|from) (?:asyncio|fcntl|multiprocessing|os|readline|resource|select|signal|socket|subprocess|sys"
    r"|termios|threading|time)\b",
    re.MULTILINE,
)
"""An import of a module of the standard library that has other names on another system."""

UNREACHABLE = """the package registry cannot be reached. Check the network, then run the same command again.
  behind a proxy:              set HTTPS_PROXY
  with a mirror:               set PIP_INDEX_URL or UV_DEFAULT_INDEX (pip's configuration file is read too)
  with your own certificates:  set SSL_CERT_FILE"""
ADVICE = (
    (("No space left on device", "os error 28", "Errno 28"), "the disk is full. Free some space and run it again."),
    (("Permission denied", "Read-only file system"), f"cannot write. Make {ROOT} and pip's and uv's caches writable."),
    (("Hash mismatch", "DO NOT MATCH"), "a package is not what uv.lock says. Do not trust the registry in use."),
    (
        (
            "Failed to fetch",
            "Request failed",
            "onnection",
            "dns error",
            "urlopen",
            "timed out",
            "ertificate",
            "No matching distribution",
        ),
        UNREACHABLE,
    ),
)

# The names of settings in pip's configuration, and the variables from which uv reads them.
PIP_SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}


class SetupError(Exception):
    """The environment could not be made; the text says why and what to do."""


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments name, and return the exit status."""
    try:
        status = _done(arguments)
        sys.stdout.flush()
    except SetupError as failure:
        print(f"dev.py: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # nobody reads the output any more, and Python would complain when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


def _done(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] not in (*TOOLBUS_COMMANDS, "example", "bench", "docs", "shape", "soak", "test"):
        print(__doc__)
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    command, *rest = arguments
    percent: float | None = None
    if command == "test":
        version, percent, rest = own_options(rest)
        if version:
            interpreter = find_python(version)
            if interpreter is None:
                raise SetupError(f"there is no Python {version} here: not on the PATH, nor among pyenv's and uv's.")
            measures = [] if percent is None else ["--coverage", f"{percent:g}"]
            again = [interpreter, str(Path(__file__)), "test", *measures, *(rest or side_by_side())]
            become(again, environment=in_own_environment(version))
    if command == "example" and (not rest or rest[0] not in examples()):
        return list_examples(rest)
    if command == "shape":
        become([sys.executable, str(ROOT / "benchmarks" / "shape.py"), *rest])
    needs_tests = command == "soak" or (command == "docs" and "--pictures" in rest)  # and their browser
    prepare("test" if needs_tests else "ask" if command in TOOLBUS_COMMANDS else command)
    if command in TOOLBUS_COMMANDS:
        become([str(BIN / "toolbus"), *arguments])
    if command == "example":
        os.environ["PYTHONPATH"] = str(ROOT)  # a change of folder would break the relative paths that the user gives
        become([str(PYTHON), "-m", f"examples.{rest[0]}", *rest[1:]])
    if command == "bench":
        os.environ.update(registry_settings(), UV=str(find_uv()))  # for the runtimes to compare with
        become([str(PYTHON), "-m", "benchmarks", *rest], folder=ROOT)
    if command in ("docs", "soak"):
        folder = {"docs": "docs_site"}.get(command, command)
        become([str(PYTHON), "-m", folder, *rest], folder=ROOT)
    if percent is not None:
        return run_measured(rest or side_by_side(), percent)
    if rest:
        become([str(PYTHON), "-m", "pytest", *rest], folder=ROOT)
    return check_everything()


def become(command: list[str], *, folder: Path | None = None, environment: Mapping[str, str] | None = None) -> NoReturn:
    """Replace this process by `command`, which receives its signals and determines its exit status."""
    if folder:
        os.chdir(folder)
    environment = activated() if environment is None else environment
    if os.name == "nt":  # on Windows, exec returns to the shell at once
        sys.exit(subprocess.run(command, check=False, env=environment).returncode)
    sys.stdout.flush()
    try:
        os.execve(command[0], command, environment)
    except OSError as error:
        raise SetupError(f"{command[0]} cannot be run: {error.strerror}. Delete {VENV} and run it again.") from error


def examples() -> dict[str, str]:
    """The examples by name, each with the first line of its docstring."""
    found: dict[str, str] = {}
    for path in sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "examples").glob("*/__main__.py")]):
        name = path.parent.name if path.stem == "__main__" else path.stem
        lines = (ast.get_docstring(ast.parse(path.read_bytes())) or "").splitlines()
        found[name] = lines[0] if lines else ""
    return found


def list_examples(arguments: Sequence[str]) -> int:
    """Print the names of the examples, and return the exit status."""
    known = examples()
    if arguments and arguments[0] not in ("-h", "--help"):
        print(f"dev.py: there is no example {arguments[0]!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    width = max(map(len, known))
    print("python3 dev.py example NAME [OPTIONS]\n")
    print("\n".join(f"  {name:{width}}  {says}" for name, says in known.items()))
    return 0


def with_bytecode(environment: Mapping[str, str]) -> dict[str, str]:
    """These variables, and those that make Python write its bytecode, under .dev, even if the machine forbids it.

    The suite starts about 150 interpreters, and each of them would compile all that it imports.
    """
    kept = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(BYTECODE)}


def activated() -> dict[str, str]:
    """The variables of a shell in which the environment is active."""
    return {
        **os.environ,
        "VIRTUAL_ENV": str(VENV),
        "PATH": os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)]),
        "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",  # otherwise, it would ask a registry for newer releases
    }


# ------------------------------------------------------------------------------------------------ other Pythons


def own_options(arguments: Sequence[str]) -> tuple[str, float | None, list[str]]:
    """The values of `--python` (empty if it was not given) and `--coverage`, and the arguments for pytest."""
    parser = argparse.ArgumentParser(prog="dev.py test", add_help=False, allow_abbrev=False)
    parser.add_argument("--python", metavar="VERSION", default="")
    parser.add_argument("--coverage", metavar="PERCENT", type=float)
    found, rest = parser.parse_known_args(arguments)
    if found.python and not re.fullmatch(r"\d+\.\d+", found.python):
        raise SetupError(f"--python takes a version such as 3.13, not {found.python!r}.")
    return found.python, found.coverage, rest


def in_own_environment(version: str) -> dict[str, str]:
    """The variables with which another Python runs this file, in an environment beside .venv."""
    return {**os.environ, "TOOLBUS_DEV_VENV": f".venv-{version}"}


def find_python(version: str) -> str | None:
    """The interpreter of this minor version that the machine has. None is downloaded."""
    with advised(), only_one():
        uv = find_uv()
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    # The Pythons of pyenv come first: its shims on the PATH fail for versions that are not selected, and uv then fails.
    of_pyenv = sorted((root / "versions").glob(f"{version}.*/bin"), key=_patch, reverse=True)
    path = os.pathsep.join([*map(str, of_pyenv), os.environ.get("PATH", os.defpath)])
    command = [uv, "python", "find", "--system", "--no-project", "--no-config", version]
    environment = {**os.environ, "PATH": path, "UV_PYTHON_DOWNLOADS": "never"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    return done.stdout.strip() if done.returncode == 0 else None


def _patch(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", folder.parent.name)]


def declared_pythons() -> list[str]:
    """The minor versions that pyproject.toml says toolbus runs on."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    return re.findall(r"^Programming Language :: Python :: (\d+\.\d+)$", "\n".join(classifiers), re.MULTILINE)


# ------------------------------------------------------------------------------------------------ set-up


def prepare(needed: str) -> None:
    """Install what `needed`, a name in GROUPS, needs. If all of it is installed, this takes milliseconds."""
    began = time.monotonic()
    with advised():
        key = fingerprint()
        if _is_ready(needed, key):
            return
        with only_one():
            if _is_ready(needed, key):  # another process has just installed it
                return
            say(f"setting up {VENV.name} for `{needed}`; the next run needs none of this")
            make_environment(needed, key)
    say(f"ready after {time.monotonic() - began:.1f} s")


def fingerprint() -> str:
    """A digest of everything that the environment is made from."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {sysconfig.get_platform()} {ROOT}".encode())
    for path in (ROOT / "pyproject.toml", ROOT / "uv.lock", Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def read_stamp() -> dict[str, Any]:
    """The record of what the environment was made from, or an empty one. Without "key", the set-up was cut short."""
    try:
        return json.loads(STAMP.read_bytes())
    except (OSError, ValueError):
        return {}


def _is_ready(needed: str, key: str) -> bool:
    stamp = read_stamp()
    return stamp.get("key") == key and {*GROUPS[needed]} <= {*stamp["holds"]} and PYTHON.exists()


def make_environment(needed: str, key: str) -> None:
    """Install what the lock file says. An environment that is incomplete or was moved is made anew."""
    before = read_stamp()
    held: list[str] = before["holds"] if before.get("key") == key else []
    groups = sorted({*GROUPS[needed], *held})
    sound = not before or ("key" in before and before["root"] == str(ROOT))
    settings = registry_settings()
    uv = find_uv()
    if not (sound and python_fits()):
        run([uv, "venv", "--quiet", "--clear", "--no-project", "--python", sys.executable, VENV], settings)
    write_stamp({"root": str(ROOT)})
    # The lock file names one registry. So the locked releases and hashes are exported, and installed from the
    # registry that the machine is configured for.
    chosen = [part for group in groups for part in ("--group", group)]
    packages, build = STATE / "packages.txt", STATE / "build.txt"
    export = [uv, "export", "--quiet", "--frozen", "--output-file"]
    run([*export, packages, "--all-extras", "--no-default-groups", *chosen], settings)
    run([*export, build, "--only-group", "build"], settings)
    # The other commands install what is missing; `test` also removes what is not in the lock file.
    verb = ["sync"] if needed == "test" else ["install", "--requirements"]
    install = [uv, "pip", *verb, packages, "--quiet", "--python", PYTHON, "--build-constraints", build]
    try:  # thanks to the hashes, a file in uv's cache is as good as one from the registry
        say("installing the packages that uv.lock names, from uv's cache")
        run([*install, "--offline"], settings)
    except SetupError:
        say("some are not in the cache; getting them from the package registry")
        run(install, settings, show=sys.stderr.isatty() and os.environ.get("TERM") not in (None, "dumb"))
    write_stamp({"root": str(ROOT), "holds": groups, "key": key})


def python_fits() -> bool:
    """Return whether the environment exists, works, and has the minor version of the running Python."""
    with contextlib.suppress(OSError):
        asked = [PYTHON, "-c", "import sys; print(*sys.version_info[:2])"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
        return found.stdout.split() == [str(part) for part in sys.version_info[:2]] and (VENV / "pyvenv.cfg").exists()
    return False


def write_stamp(stamp: Mapping[str, Any]) -> None:
    """Replace the stamp in one step."""
    partial = STAMP.with_suffix(".partial")
    partial.write_text(json.dumps(stamp), encoding="utf-8")
    partial.replace(STAMP)


@contextlib.contextmanager
def only_one() -> Generator[None]:
    """Wait until no other set-up of this checkout runs. The system releases the lock if its holder is killed."""
    STATE.mkdir(exist_ok=True)
    (STATE / ".gitignore").write_text("*\n", encoding="utf-8")
    with (STATE / "lock").open("a") as file:
        if sys.platform == "win32":
            import msvcrt

            while True:
                with contextlib.suppress(OSError):  # it gives up after ten seconds
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
                    break
        else:
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another set-up of this checkout is running; waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ------------------------------------------------------------------------------------------------ uv


def find_uv() -> Path:
    """The uv that the lock file names, installed under .dev at the first use."""
    locked = locked_package("uv")
    home = STATE / f"uv-{locked['version']}"
    program = home / "bin" / ("uv.exe" if os.name == "nt" else "uv")
    if not program.exists():
        say(f"getting uv {locked['version']}, which installs the rest")
        with tempfile.TemporaryDirectory(dir=STATE) as folder:
            partial = Path(folder, "uv")
            if importlib.util.find_spec("pip"):
                install_with_pip(locked, partial)
            else:
                download(locked, partial)
            shutil.rmtree(home, ignore_errors=True)
            partial.replace(home)
    return program


def locked_package(name: str) -> dict[str, Any]:
    """The lock file's entry for one package."""
    try:
        lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    except ValueError as error:
        raise SetupError(f"{ROOT / 'uv.lock'}: {error}. Restore the file.") from error
    return next(package for package in lock["package"] if package["name"] == name)


def install_with_pip(locked: Mapping[str, Any], target: Path) -> None:
    """Download it with the machine's pip and its configuration, and compare it with the hashes of the lock file."""
    hashes = " ".join(f"--hash={wheel['hash']}" for wheel in locked["wheels"])
    requirement = target.with_suffix(".txt")
    requirement.write_text(f"uv=={locked['version']} {hashes}\n", encoding="utf-8")
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "--disable-pip-version-check"]
    run(
        [sys.executable, "-m", "pip", "install", *options, "--target", target, "--requirement", requirement],
        {"PIP_USER": "0"},  # it contradicts --target
    )


def download(locked: Mapping[str, Any], target: Path) -> None:
    """Download the wheel that the lock file names, and compare its hash: for a Python without pip, such as Debian's."""
    wheel = next((wheel for wheel in locked["wheels"] if _suits(wheel["url"])), None)
    if wheel is None:
        raise SetupError("this Python has no pip, and uv no wheel for this machine. Install pip and run it again.")
    with urllib.request.urlopen(wheel["url"], timeout=60) as response:  # the address comes from uv.lock, and uses https
        content = response.read()
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != wheel["hash"]:
        raise SetupError(advise("Hash mismatch"))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.namelist():
            if "/scripts/uv" in member:
                path = target / "bin" / member.rsplit("/", 1)[-1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(member))
                path.chmod(0o755)


def _suits(address: str) -> bool:
    """Return whether a wheel's platform tags (the end of its name, separated by dots) fit this machine."""
    linux = "manylinux_2_17" if platform.libc_ver()[0] == "glibc" else "musllinux"
    kind = {"Linux": linux, "Darwin": "macosx", "Windows": "win"}.get(platform.system(), "?")
    tags = address.removesuffix(".whl").rsplit("-", 1)[-1].split(".")
    return any(tag.startswith(kind) and tag.endswith("_" + platform.machine().lower()) for tag in tags)


def registry_settings() -> dict[str, str]:
    """The variables for uv: it downloads no Python, and uses pip's registry unless its own configuration names one."""
    settings = {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
    if importlib.util.find_spec("pip"):
        listing = [sys.executable, "-m", "pip", "config", "list"]
        lines = subprocess.run(listing, capture_output=True, text=True, check=False).stdout.splitlines()
        for line in sorted(lines, key=lambda line: (line.startswith(":env:"), line.startswith("install."))):
            name, _, value = line.partition("=")
            variable = PIP_SETTINGS.get(name.rpartition(".")[2])
            if variable and variable not in os.environ and "UV_INDEX_URL" not in os.environ:
                settings[variable] = str(ast.literal_eval(value))
    return settings


def run(command: Sequence[str | Path], settings: Mapping[str, str], *, show: bool = False) -> None:
    """Run a step of the set-up, silently unless it fails.

    With `show`, a terminal has the step's progress bars on its second screen, which disappears at the end.
    """
    if show:
        environment = {**os.environ, **settings}
        environment.pop("UV_NO_PROGRESS", None)
        visible = [str(part) for part in command if part != "--quiet"]
        print("\x1b[?1049h", end="", file=sys.stderr, flush=True)
        try:
            seen = subprocess.run(visible, check=False, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL)
            if seen.returncode == 0:
                return  # otherwise it runs once more below, for the output that `advise` reads
        finally:
            print("\x1b[?1049l", end="", file=sys.stderr, flush=True)
    done = subprocess.run(
        [str(part) for part in command],
        check=False,
        cwd=ROOT,
        env={**os.environ, **settings},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        raise SetupError(advise(done.stdout))


@contextlib.contextmanager
def advised() -> Generator[None]:
    """Turn errors of the system during the set-up into a `SetupError` that says what to do."""
    try:
        yield
    except (OSError, HTTPException, zipfile.BadZipFile) as error:  # an HTTPException is a download that was cut short
        raise SetupError(advise(str(error))) from error


def advise(output: str) -> str:
    """Return what to do about a failure, followed by the output of the tool that failed."""
    advice = next((text for signs, text in ADVICE if any(sign in output for sign in signs)), "the set-up failed.")
    return f"{advice}\n\nIn full:\n{output.strip()[-2000:]}"


def say(line: str) -> None:
    """Print a line to standard error, since standard output belongs to the answer."""
    print(f"dev.py: {line}", file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------ checks


def checks() -> dict[str, list[str]]:
    """Return the commands that check everything except by tests.

    For other systems, pyright checks only the files that can differ, which takes a third of the time.
    """
    files = [Path(__file__), *(ROOT / "src").rglob("*.py")]
    differing = [str(file) for file in sorted(files) if DIFFERS.search(file.read_text(encoding="utf-8"))]
    others = {
        f"for {name}": ["pyright", "--pythonplatform", platform, *differing] for name, platform in OTHER_SYSTEMS.items()
    }
    return {**CHECKS, **others}


def check_everything() -> int:
    """Run all that CI checks, each step even if an earlier one failed, and print one summary at the end."""
    os.chdir(ROOT)
    environment = activated()
    commands = checks()
    summary: list[tuple[str, bool, float, str]] = []

    def step(name: str) -> None:
        began = time.monotonic()
        done = subprocess.run(
            [str(BIN / commands[name][0]), *commands[name][1:]],
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        summary.append((name, done.returncode == 0, time.monotonic() - began, ""))
        if done.returncode:
            print(f"\n{name} failed:\n{done.stdout}", flush=True)

    # pyright needs only one processor, for a sixth of the tests' time. So the tests begin beside it.
    with ThreadPoolExecutor(1) as pool:
        steps = pool.map(step, commands)
        summary.append(run_tests(environment))
        list(steps)
    others = [each for each in declared_pythons() if each != "{}.{}".format(*sys.version_info)]
    measured = next((each for each in reversed(others) if find_python(each)), others[-1])
    summary += [run_quickly(each, measures=each == measured) for each in others]
    print()
    for name, passed, seconds, remark in summary:
        print(f"{'ok' if passed else 'FAILED':7} {name:13} {seconds:6.1f} s  {remark}".rstrip())
    return 0 if all(passed for _, passed, _, _ in summary) else 1


def side_by_side() -> list[str]:
    """Options with which pytest runs in many processes, since tests share nothing.

    There is one process more than processors, because some tests wait for servers, disks and other processes. With two
    more, the suite took longer: each has to collect all tests, and they slow each other down.
    """
    return ["-n", str((os.cpu_count() or 1) + 1), "--dist", "worksteal"]


def run_quickly(version: str, *, measures: bool = False) -> tuple[str, bool, float, str]:
    """Run the quick half of the tests on another Python, if the machine has it.

    With `measures` it also fails if too few lines ran. That costs next to nothing from Python 3.12 on, and doubles the
    time on 3.11, so the run of all tests does not measure.
    """
    began = time.monotonic()
    name = f"pytest {version}"
    interpreter = find_python(version)
    if interpreter is None:
        return (
            name,
            True,
            0.0,
            f"skipped: no Python {version} here{', so coverage was not measured' if measures else ''}",
        )
    chosen = [*(["--coverage", str(COVERAGE_PERCENT)] if measures else []), "--quick", "-q", *side_by_side()]
    command = [interpreter, str(Path(__file__)), "test", *chosen]
    environment = with_bytecode(in_own_environment(version))
    try:
        done = subprocess.run(
            command, check=False, env=environment, stdin=subprocess.DEVNULL, timeout=QUICK_HALF_SECONDS
        )
    except subprocess.TimeoutExpired:
        remark = f"ended after {QUICK_HALF_SECONDS:g} s, which is all that the quick half may take"
        return name, False, time.monotonic() - began, remark
    remark = f"the quick half{f', which has to run {COVERAGE_PERCENT} % of all lines' if measures else ''}"
    return name, done.returncode == 0, time.monotonic() - began, remark


def run_tests(environment: dict[str, str]) -> tuple[str, bool, float, str]:
    """Run all tests."""
    began = time.monotonic()
    command = [str(PYTHON), "-m", "pytest", *side_by_side()]
    tests = subprocess.run(command, check=False, env=with_bytecode(environment), stdin=subprocess.DEVNULL)
    # The bytecode of modules that tests wrote is never used again.
    temporary = Path(tempfile.gettempdir()).resolve()
    shutil.rmtree(BYTECODE.joinpath(*temporary.parts[1:]), ignore_errors=True)
    return "pytest", tests.returncode == 0, time.monotonic() - began, ""


def run_measured(arguments: Sequence[str], percent: float) -> int:
    """Run pytest, and report which lines of toolbus did not run. Returns 1 if fewer than `percent` did."""
    os.chdir(ROOT)
    coverage = [str(PYTHON), "-m", "coverage"]
    with tempfile.TemporaryDirectory(dir=STATE) as folder:
        environment = {**with_bytecode(activated()), "COVERAGE_FILE": str(Path(folder, "coverage"))}
        if sys.version_info >= (3, 12):
            environment["COVERAGE_CORE"] = "sysmon"  # lines only, and quick
        tests = subprocess.run([*coverage, "run", "-m", "pytest", *arguments], check=False, env=environment)
        subprocess.run([*coverage, "combine", "--quiet"], check=False, env=environment)
        report = [*coverage, "report", "--skip-covered", "--precision=1", f"--fail-under={percent:g}"]
        missed = subprocess.run(report, check=False, env=environment)
        with contextlib.suppress(FileNotFoundError):  # Nothing was measured.
            shutil.copyfile(environment["COVERAGE_FILE"], ROOT / ".coverage")  # `coverage html` reads this file
    return tests.returncode or missed.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
