"""Who decides on calls that need approval: the person at the terminal, or `--approve` in advance."""

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

__all__ = ["Person", "arrange"]

Check: TypeAlias = Callable[[ApprovalRequested, dict[str, Any]], None]
"""Raises for arguments that the tool of a question does not take."""

_WHO = "The user"


def arrange(runtime: Runtime, options: argparse.Namespace, screen: Screen, stdout: TextIO) -> Person | None:
    """Whom to ask. None where calls are decided without asking; that is done on the loop's thread then."""
    decide = _approved
    if options.approve == "ask":
        nobody = _why_nobody_can_be_asked(options)
        if not nobody:
            return Person(screen, Questions(screen, stdout), _check_with(runtime))
        decide = _Denying(screen, nobody)
    elif options.approve == "none":
        decide = _denied
    elif not options.quiet:
        screen.tell("toolbus: --approve all: calls that need approval run without asking")
    bus = runtime.bus
    bus.connect(ApprovalRequested, lambda question: bus.publish(decide(question)))
    return None


def _why_nobody_can_be_asked(options: argparse.Namespace) -> str:
    for name in ("json", "events"):
        if getattr(options, name, False):
            return f"--{name}"
    if not is_terminal(sys.stdin):
        return "stdin is no terminal"
    return "" if is_terminal(sys.stderr) else "stderr is no terminal"


def _approved(question: ApprovalRequested) -> ApprovalDecided:
    return question.decided(approved=True, by="toolbus --approve all")


def _denied(question: ApprovalRequested) -> ApprovalDecided:
    reason = "no call that needs approval may run here (--approve none)"
    return question.decided(approved=False, by="toolbus", reason=reason)


class _Denying:
    """Denies where nobody can be asked, and says once how to allow it."""

    def __init__(self, screen: Screen, why: str) -> None:
        self._screen = screen
        self._why = why
        self._told = False

    def __call__(self, question: ApprovalRequested) -> ApprovalDecided:
        if not self._told:
            self._told = True
            self._screen.tell(
                f"toolbus: {display_name(question.name)} needs approval, and nobody can be asked ({self._why}); "
                "--approve all runs such calls without asking"
            )
        reason = f"it needs a person's approval, and nobody can be asked here ({self._why})"
        return question.decided(approved=False, by="toolbus", reason=reason)


def _check_with(runtime: Runtime) -> Check:
    def check(question: ApprovalRequested, arguments: dict[str, Any]) -> None:
        spec = runtime.tools.specs.get(question.name)
        if spec is not None and definition_of(spec) == question.definition:  # else a sub-request's; it checks itself
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
        """The decision, where "always" or "never" was the answer to a call of this tool before.

        The session remembers it too, and does not ask again; but calls that waited already, and those of
        sub-requests, come here.
        """
        answer = self._remembered.get(question.definition)
        return None if answer is None else _decided(question, answer, None)

    def decide(self, question: ApprovalRequested) -> ApprovalDecided:
        """Ask until there is an answer; the end of input is one, and denies. Raises what interrupts the reading."""
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
        """Valid arguments, typed by the person; the given ones for an empty line."""
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
            except Exception as exc:  # not JSON, not what the tool takes, or its own validator's fault
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
        by=_WHO,
        reason=answer.reason,
        remember=answer.remember,
    )
