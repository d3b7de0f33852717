"""Decisions on tool calls that need approval: by the person at the terminal, or in advance by `--approve`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, TextIO, TypeAlias

from ..core.approval import definition_of
from ..core.arguments import parse_arguments
from ..core.plain_text import one_line
from ..events import ApprovalDecided, ApprovalRequested
from ..runtime import Runtime
from ..status import display_name
from ._terminal.approval_question import Answer, argument_rows, arguments_in_line, help_for, prompt_for, read_answer
from ._terminal.prompt import Questions
from ._terminal.screen import Line, Screen, is_terminal
from ._terminal.text import cells, indented, visible_json

Check: TypeAlias = Callable[[ApprovalRequested, dict[str, Any]], None]
"""A function that raises for arguments which the tool of a question does not accept."""

_DECIDED_BY = "The user"


def connect_approval(runtime: Runtime, options: argparse.Namespace, screen: Screen, stdout: TextIO) -> Person | None:
    """Return the person to ask, or None where calls are decided without asking.

    In the latter case a listener on the bus decides them, on the loop's thread.
    """
    decide = _approved
    if options.approve == "ask":
        nobody = _why_nobody_can_be_asked(options)
        if not nobody:
            return Person(screen, Questions(screen, stdout), _check_with(runtime))
        decide = _Denying(screen, nobody)
    elif options.approve == "none":
        decide = _denied
    elif not options.quiet:
        screen.report("toolbus: --approve all: calls that need approval run without asking")
    bus = runtime.bus
    bus.connect(ApprovalRequested, lambda question: bus.publish(decide(question)))
    return None


def _why_nobody_can_be_asked(options: argparse.Namespace) -> str:
    for name in ("json", "events"):
        if getattr(options, name, False):
            return f"--{name}"
    if not is_terminal(sys.stdin):
        return "stdin is not a terminal"
    return "" if is_terminal(sys.stderr) else "stderr is not a terminal"


def _approved(question: ApprovalRequested) -> ApprovalDecided:
    return question.decided(approved=True, by="toolbus --approve all")


def _denied(question: ApprovalRequested) -> ApprovalDecided:
    reason = "no call that needs approval may run here (--approve none)"
    return question.decided(approved=False, by="toolbus", reason=reason)


class _Denying:
    """Denies calls where nobody can be asked, and reports once how to allow them."""

    def __init__(self, screen: Screen, why: str) -> None:
        self._screen = screen
        self._why = why
        self._is_reported = False

    def __call__(self, question: ApprovalRequested) -> ApprovalDecided:
        if not self._is_reported:
            self._is_reported = True
            self._screen.report(
                f"toolbus: {display_name(question.name)} needs approval, and nobody can be asked ({self._why}); "
                "--approve all runs such calls without asking"
            )
        reason = f"it needs a person's approval, and nobody can be asked here ({self._why})"
        return question.decided(approved=False, by="toolbus", reason=reason)


def _check_with(runtime: Runtime) -> Check:
    def check(question: ApprovalRequested, arguments: dict[str, Any]) -> None:
        spec = runtime.tools.specs.get(question.name)
        # A different definition belongs to a sub-request's own tool; the sub-request checks its arguments itself.
        if spec is not None and definition_of(spec) == question.definition:
            spec.validate(arguments)

    return check


class Person:
    """The person at the terminal. To be called on the main thread, with the screen held."""

    def __init__(self, screen: Screen, questions: Questions, check: Check) -> None:
        self._screen = screen
        self._questions = questions
        self._check = check
        self._remembered: dict[str, Answer] = {}

    def known(self, question: ApprovalRequested) -> ApprovalDecided | None:
        """Return the decision if an earlier call of this tool was answered with "always" or "never", else None.

        The session remembers such an answer too, and does not ask again. Calls that were already waiting and calls of
        sub-requests still arrive here.
        """
        answer = self._remembered.get(question.definition)
        return None if answer is None else _decided(question, answer, None)

    def decide(self, question: ApprovalRequested) -> ApprovalDecided:
        """Ask until there is an answer. The end of input denies the call. Raises whatever interrupts the reading."""
        try:
            answer, arguments = self._answer(question)
        except EOFError:
            self._screen.ask("\n")
            answer, arguments = Answer("deny"), question.arguments
        if answer.remember and question.definition:
            self._remembered[question.definition] = answer
        return _decided(question, answer, arguments if arguments != question.arguments else None)

    def _answer(self, question: ApprovalRequested) -> tuple[Answer, dict[str, Any]]:
        name, arguments = display_name(question.name), question.arguments
        self._show(name, arguments)
        while True:
            answer = read_answer(self._read(prompt_for(self._screen.width, self._screen.arrow)))
            if answer.what == "edit":
                arguments = self._edited(question, arguments)
                self._show(name, arguments)
            elif answer.what == "help":
                self._screen.ask(help_for(name, self._screen.width) + "\n")
                self._show(name, arguments, whole=True)
            else:
                return answer, arguments

    def _show(self, name: str, arguments: dict[str, Any], *, whole: bool = False) -> None:
        line, width = arguments_in_line(arguments), self._screen.width
        if cells(name) + cells(line) + 4 <= width:
            self._screen.ask_about(Line(mark="ask", name=name, detail=line))
            return
        self._screen.ask_about(Line(mark="ask", name=name))
        rows = argument_rows(arguments, max(width - 4, 10), ellipsis=self._screen.ellipsis, whole=whole)
        self._screen.ask("".join(f"    {row}\n" for row in rows))

    def _edited(self, question: ApprovalRequested, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return valid arguments that the person has typed, or the given ones for an empty line."""
        written = visible_json(arguments)
        prompt = f"  Arguments, as JSON {self._screen.arrow} "
        if not self._questions.can_prefill:
            self._screen.ask(f"  {written}\n  Type new arguments as JSON; an empty line keeps these.\n")
        while True:
            line = self._read(prompt, written).strip()
            if not line:
                return arguments
            try:
                edited = parse_arguments(line)
                self._check(question, edited)
            except Exception as exc:
                # The line is not JSON, the tool does not accept it, or the tool's own validator has failed.
                self._screen.ask(indented(one_line(str(exc)) or type(exc).__name__, self._screen.width) + "\n")
                written = line
            else:
                return edited

    def _read(self, prompt: str, prefill: str = "") -> str:
        line = self._questions.read(prompt, prefill)
        if not line:
            raise EOFError
        return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _decided(question: ApprovalRequested, answer: Answer, arguments: dict[str, Any] | None) -> ApprovalDecided:
    approved = answer.what == "run"
    return question.decided(
        approved=approved,
        arguments=arguments if approved else None,
        by=_DECIDED_BY,
        reason=answer.reason,
        remember=answer.remember,
    )
