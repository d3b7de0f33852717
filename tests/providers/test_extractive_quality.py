"""The provider finds its way in a tree that it has never seen: the standard library. The whole set is a benchmark."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
from extractive_loop import conversation_over

QUESTIONS = [
    ("How does shlex split handle quotes?", "shlex.py", r"in self\.quotes|quotes = "),
    ("What is the default timeout of socket.create_connection?", "socket.py", r"timeout=_GLOBAL_DEFAULT_TIMEOUT"),
    ("Which compression levels does gzip use by default?", "gzip.py", r"=_COMPRESS_LEVEL_BEST|_BEST = 9"),
    ("What happens when json.loads meets NaN?", "json/__init__.py", r"NaN"),
    ("How large can the lru_cache become by default?", "functools.py", r"maxsize=128"),
    ("Which exception is raised when a subprocess times out?", "subprocess.py", r"TimeoutExpired"),
    ("How does fnmatch translate a shell pattern to a regular expression?", "fnmatch.py", r"def translate"),
    ("What does contextlib.suppress do?", "contextlib.py", r"class suppress"),
    ("How does calendar know leap years?", "calendar.py", r"def isleap|leap years"),
    ("What happens when a queue is full?", "queue.py", r"class Full|raise Full"),
]
ENOUGH = 8 if sys.version_info < (3, 12) else 7  # as many as are right with the library of each version


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The standard library without its tests, and without the packages that happen to be installed: 700 files."""
    left_out = shutil.ignore_patterns(
        "site-packages", "test", "tests", "__pycache__", "config-*", "*.so", "*.exe", "*.whl"
    )
    shutil.copytree(sysconfig.get_path("stdlib"), tmp_path / "library", ignore=left_out, symlinks=True)
    return tmp_path / "library"


@pytest.mark.repeats("ten questions to a large tree")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the same pure code; once is enough for what takes seconds
async def test_it_quotes_the_right_lines_of_the_standard_library(anyio_backend: str, library: Path) -> None:
    missed: list[str] = []
    for question, file, pattern in QUESTIONS:
        talk = conversation_over(library)
        await talk.ask(question)
        assert 2 <= len(talk.rounds) <= 5
        if not talk.quotes(file, pattern):
            missed.append(question)
    assert len(QUESTIONS) - len(missed) >= ENOUGH, missed
