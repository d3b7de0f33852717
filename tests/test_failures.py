"""The line of an exception that is the application's own."""

from __future__ import annotations

import importlib.util
import json
import logging
from pathlib import Path
from types import ModuleType

import pytest

from toolbus.errors import ConfigurationError
from toolbus.failures import line_of, log_exception, raised_at
from toolbus.tools import Tool

APP = "def run(f):\n    return f()\n"
LIBRARY = "def fail():\n    return {}['sky']\n\ndef run(f):\n    return f()\n"


def module(path: Path, source: str) -> ModuleType:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def raised_by(run: object, *given: object) -> BaseException:
    assert callable(run)
    with pytest.raises(BaseException) as caught:
        run(*given)
    caught.value.__traceback__ = caught.tb.tb_next  # without this test's own frame
    return caught.value


def test_the_innermost_line_of_the_application_counts_and_not_that_of_a_library(tmp_path: Path) -> None:
    app = module(tmp_path / "app.py", APP)
    library = module(tmp_path / "site-packages" / "library.py", LIBRARY)
    assert raised_at(raised_by(app.run, library.fail)) == f"KeyError at {tmp_path / 'app.py'}:2"
    assert raised_at(raised_by(library.run, lambda: app.run(library.fail))) == f"KeyError at {tmp_path / 'app.py'}:2"
    decoding = raised_by(app.run, lambda: json.loads("{"))
    assert line_of(decoding).startswith(__file__)


def test_the_outermost_line_counts_if_the_application_is_an_installed_package(tmp_path: Path) -> None:
    library = module(tmp_path / "site-packages" / "library.py", LIBRARY)
    where = tmp_path / "site-packages" / "library.py"
    assert raised_at(raised_by(library.run, library.fail)) == f"KeyError at {where}:5"


def test_lines_of_toolbus_and_of_python_never_count() -> None:
    assert line_of(raised_by(Tool, "a b")) == ""
    assert raised_at(raised_by(Tool, "a b")) == ConfigurationError.__name__
    assert raised_at(raised_by(json.loads, "{")) == "JSONDecodeError"


def test_a_group_is_named_by_its_first_exception_with_the_line_that_there_is() -> None:
    def fail() -> None:
        raise ExceptionGroup("two", [ValueError("a"), KeyError("b")])

    shown = raised_at(raised_by(fail))
    assert shown.startswith(f"ValueError at {__file__}:")


def test_a_chain_of_causes_that_is_too_long_is_logged_without_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def logged(length: int) -> logging.LogRecord:
        first = last = ValueError("0")
        for number in range(1, length):
            last.__cause__ = ValueError(str(number))
            last = last.__cause__
        log_exception(logging.getLogger("toolbus"), logging.ERROR, "It failed", cause=first, ids={})
        return caplog.records[-1]

    assert logged(100).exc_info is not None
    assert logged(102).exc_info is None
    assert logged(102).getMessage() == "It failed (ValueError, which cannot be printed)"
