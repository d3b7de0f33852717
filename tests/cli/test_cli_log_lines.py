"""Warnings of the library, which a command shows as lines on stderr, and nowhere else."""

from __future__ import annotations

import io
import logging

import pytest

from toolbus.cli._log_lines import warnings_shown
from toolbus.cli._terminal.screen import Screen


def test_warnings_are_shown_as_one_line_each_and_not_logged_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    logger, err = logging.getLogger("toolbus.mcp"), io.StringIO()
    before = logger.level
    with warnings_shown(Screen(None, err), "toolbus.mcp"):
        logger.info("nobody asks for this")
        logger.warning("a server\nis %s", "away")
    assert len(err.getvalue().splitlines()) == 1
    assert err.getvalue().startswith("toolbus: a server")
    assert caplog.messages == []
    logger.warning("later")
    assert (caplog.messages, logger.level) == (["later"], before)
    assert "later" not in err.getvalue()


def test_a_warning_whose_arguments_do_not_fit_fails_nobody_who_logs_it() -> None:
    err = io.StringIO()
    with warnings_shown(Screen(None, err), "toolbus.mcp"):
        logging.getLogger("toolbus.mcp").warning("%d servers", "some")
    assert err.getvalue() == "WARNING toolbus.mcp: '%d servers' with ('some',)\n"
