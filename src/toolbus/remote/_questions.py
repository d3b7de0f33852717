"""The questions of handlers on workers to the model of their session: `ToolContext.ask`.

A handler's worker asks the process that runs the request (`Asking`), which runs a sub-request there and answers
(`Answering`). Both send a sign of life every few seconds, so a lost message is sent again, and each side gives up when
the other one is silent. Knows requests, results and the transport's links. Must not know a broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar
from uuid import uuid4

import anyio
import anyio.abc
import msgspec

from ..core.limits import Limits
from ..core.output import OutputType
from ..core.turn import TurnState
from ..errors import ConfigurationError, DecodeError, LimitReached, MissingExtra, NotRunning, ToolbusError
from ..events import RequestCompleted, RequestEnding, Spent, ToolCallRequested
from ..instrumentation import Instrumentation, Work, continued_from
from ..messages import Message, PromptLike, Usage, UserMessage
from ..protocols import ModelSettings, RequestView
from ..records import JsonForm, Record, field, json_bytes, replace
from ..request_result import RequestResult, result_from
from ..schemas import json_schema_validator
from ..session import read_messages, read_prompt
from ._bodies import Reference, reference_in
from ._payloads import LargeBodies, TooLarge
from ._transport import Damaged, Key, Unavailable

BEAT_SECONDS = 2.0
"""The seconds between two messages in which a worker says that it still waits for an answer."""
SILENCE_SECONDS = 15.0
"""The silence after which each side gives up on the other one."""
_MAX_OF_CALL = 100
"""The questions of one call at the same time; a handler that asks more is refused."""
_MAY_BE_GIVEN = ("history", "instructions", "limits", "output", "settings")
_HEAD_BYTES = 2_048
_MAX_NAME_CHARS = 64
_MARK = b"?"
_logger = logging.getLogger("toolbus.remote")
_T = TypeVar("_T")


class _Asked(Record, kw_only=True, frozen=True):
    """A question. `output` is a JSON schema, and `carried` the trace in which the handler asks."""

    prompt: UserMessage
    history: tuple[Message, ...] = ()
    instructions: str = ""
    limits: Limits | None = None
    settings: ModelSettings | None = None
    output: dict[str, Any] | None = None
    carried: Mapping[str, str] = field(default_factory=dict[str, str])


class _Answered(Record, kw_only=True, frozen=True):
    """The result of a sub-request: all that a `RequestResult` is made of, except its history and its rounds.

    `last_text` is empty if the ending has the text.
    """

    ending: RequestEnding
    messages: list[Message]
    last_text: str
    usage: Usage
    cost: float
    started_at: float
    spent: Spent


_asked = JsonForm[_Asked](_Asked, "the question")
_answered = JsonForm[_Answered](_Answered, "the answer")


class _QuestionMessage(msgspec.Struct, omit_defaults=True):
    """One message about a question, as a line. `content` is JSON, or `payload` refers to it.

    To the session: "ask", "stay" (the handler still waits) and "stop". To the worker: "runs", "unknown" (no such
    question, and none can be asked now), "done", and "failed" with an error's `code` and text.
    """

    do: Literal["ask", "stay", "stop", "runs", "unknown", "done", "failed"]
    id: str
    request: str = ""
    call: str = ""
    worker: str = ""
    code: str = ""
    error: str = ""
    content: msgspec.Raw = msgspec.Raw(b"")
    payload: Reference | None = None

    @property
    def line(self) -> bytes:
        return _MARK + msgspec.json.encode(self)


_message = JsonForm[_QuestionMessage](_QuestionMessage, "a message about a question")


def is_question_message(line: bytes) -> bool:
    """Return whether a line is about a question, and not an event."""
    return line.startswith(_MARK)


def _read(line: bytes) -> _QuestionMessage:
    message = _message.read(line[1:])
    if message.payload is not None:
        reference_in(message.payload.line)
    if len(message.worker) > _MAX_NAME_CHARS:
        raise DecodeError("a message about a question: the name of its worker is too long")
    return message


async def _enclosed(
    message: _QuestionMessage, content: bytes, key: Key, large: LargeBodies, limit: int
) -> _QuestionMessage:
    """Return a message with its content, as a payload if it is long. Raises `Unavailable`, or `LimitReached`."""
    if len(content) + _HEAD_BYTES <= limit:
        message.content = msgspec.Raw(content)
        return message
    try:
        message.payload = await large.keep(key, lambda: content)
    except TooLarge as exc:
        raise LimitReached(f"a question to the model, or its answer, is {exc}") from exc
    return message


async def _read_content(message: _QuestionMessage, form: JsonForm[_T], large: LargeBodies) -> _T:
    """Return what a message contains. Raises `Unavailable`, `Damaged` and `DecodeError`."""
    if message.payload is None:
        return form.read(bytes(message.content))
    try:
        return await large.load(message.payload, form.read)
    except TooLarge as exc:
        raise DecodeError(f"a question to the model, or its answer, is {exc}") from exc


# ------------------------------------------------------------------------------------------------- on the worker


class Asking:
    """The questions of the handlers of one worker. `tell(node, line)` sends a line to a session's process."""

    def __init__(
        self,
        worker: str,
        tell: Callable[[str, bytes], None],
        large: LargeBodies,
        max_bytes: Callable[[], int],
        instrumentation: Sequence[Instrumentation],
    ) -> None:
        self._worker = worker
        self._tell = tell
        self._large = large
        self._max_bytes = max_bytes
        self._instrumentation = instrumentation
        self._waiting: dict[str, _Question] = {}

    def hear(self, line: bytes) -> None:
        """Take a message of a session's process. Raises `DecodeError`."""
        message = _read(line)
        question = self._waiting.get(message.id)
        if question is not None:
            question.hear(message)

    def question(
        self,
        requested: ToolCallRequested,
        node: Callable[[], str],
        mask: Callable[[Record], Record],
        deps: Any,
        prompt: PromptLike,
        options: Mapping[str, Any],
    ) -> _Question:
        """Return the question of a handler, to be run in its task. Raises `ConfigurationError`.

        `node` returns the process to ask, and `mask` a record without the secrets of the worker, whose `deps`
        validators get. This is called in the context of the handler, whose trace goes with the question.
        """
        wrong = [name for name in options if name not in _MAY_BE_GIVEN and options[name]]
        if wrong:
            raise ConfigurationError(
                f"context.ask({', '.join(f'{each}=' for each in wrong)}) of a handler on a worker: the process of the "
                f"session answers, with its own model and no tools; pass only {', '.join(_MAY_BE_GIVEN)}"
            )
        given = {name: value for name, value in options.items() if value and name in {"limits", "settings"}}
        instructions: Any = options.get("instructions") or ""
        if not isinstance(instructions, str):
            raise ConfigurationError("instructions of context.ask() of a handler on a worker have to be a text")
        wanted: Any = options.get("output")
        output: OutputType[Any] | None = None if wanted is None else OutputType(wanted, deps)
        asked = _Asked(
            prompt=read_prompt(prompt),
            history=tuple(read_messages(options.get("history") or ())),
            instructions=instructions,
            output=None if output is None else dict(output.spec.parameters),
            carried=Work("tool", self._instrumentation, requested).carried(),
            **given,
        )
        message = _QuestionMessage(
            do="ask", id=uuid4().hex, request=requested.request_id, call=requested.call_id, worker=self._worker
        )
        return _Question(self, message, json_bytes(mask(asked), list), node, output, asked.history)

    async def run(
        self, question: _Question, message: _QuestionMessage, content: bytes, node: Callable[[], str]
    ) -> _Answered:
        """Ask, and wait for the answer."""
        key = (message.request, message.call)
        ask = await _enclosed(message, content, key, self._large, self._max_bytes())
        stay = _QuestionMessage(
            do="stay", id=message.id, request=message.request, call=message.call, worker=self._worker
        )
        self._waiting[message.id] = question
        try:
            self._tell(node(), ask.line)
            while question.answer is None:
                await question.wait()
                if question.answer is None:
                    self._tell(node(), (stay if question.is_known else ask).line)
            return await _read_content(question.answer, _answered, self._large)
        finally:
            del self._waiting[message.id]
            stay.do = "stop"
            self._tell(node(), stay.line)


class _Question:
    """One question of a handler: `run` returns the result, and `spent` is what the model has used up for it."""

    def __init__(
        self,
        asking: Asking,
        message: _QuestionMessage,
        content: bytes,
        node: Callable[[], str],
        output: OutputType[Any] | None,
        history: Sequence[Message],
    ) -> None:
        self.spent = Spent()
        self.answer: _QuestionMessage | None = None
        self.is_known = False  # whether the session's process has said that it has the question
        self._asking = asking
        self._given = message, content, node
        self._output = output
        self._history = history
        self._heard_at = anyio.current_time()
        self._changed = anyio.Event()
        self._error: ToolbusError | None = None

    async def run(self) -> RequestResult[Any]:
        """Ask, and return the result. Raises what `ToolContext.ask` raises; `NotRunning` also if nobody answers."""
        try:
            found = await self._asking.run(self, *self._given)
        except (Unavailable, Damaged, DecodeError) as exc:
            raise NotRunning(f"the question to the model, or its answer, was lost: {exc}") from exc
        self.spent = found.spent
        ending = found.ending
        state = TurnState(
            request_id=ending.request_id,
            conversation_id=ending.conversation_id,
            output=self._output,
            messages=[*self._history, *found.messages],
            history_count=len(self._history),
            last_text=found.last_text,
            usage=found.usage,
            cost=found.cost,
            started_at=found.started_at,
            ending=ending,
        )
        return result_from(state, lambda _call_id: None, None)

    def hear(self, message: _QuestionMessage) -> None:
        """Take a message about the question."""
        self._heard_at = anyio.current_time()
        match message.do:
            case "done":
                self.answer = message
            case "failed":
                kind = _ERRORS.get(message.code, ConfigurationError)
                self._error = kind(message.error)
            case "unknown":
                self._error = NotRunning("the process of the session does not wait for this call any more")
            case _:
                self.is_known = True
                return
        self._changed.set()

    async def wait(self) -> None:
        """Wait for an answer, but no longer than until the next message is due. Raises an error that came instead."""
        with anyio.move_on_after(BEAT_SECONDS):
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        if self.answer is None and anyio.current_time() - self._heard_at > SILENCE_SECONDS:
            raise NotRunning(
                "the process that runs the request does not answer, so its model cannot be asked; the request may "
                "continue in another process, which knows nothing of this question"
            )


_ERRORS: dict[str, type[ToolbusError]] = {each.code: each for each in (LimitReached, NotRunning, ConfigurationError)}


# ------------------------------------------------------------------------------------------ beside the session


class _OpenQuestion:
    """One question of a worker, until the worker has its answer."""

    def __init__(self, message: _QuestionMessage) -> None:
        self.message = message
        self.scope = anyio.CancelScope()
        self.says = _QuestionMessage(do="runs", id=message.id)
        self.heard_at = anyio.current_time()
        self.child: Any = None  # the sub-request, until its consumption was reported

    @property
    def key(self) -> Key:
        return (self.message.request, self.message.call)


class Answering:
    """The questions about the calls of one executor. A question of a call that is not open here is not answered.

    `view_of` returns the view of the request of a call that is open. `spent` is called with what a question has used
    up, and `keeps` for a call of which the broker keeps something. `tell(worker, line)` sends a line to a worker.
    """

    def __init__(
        self,
        group: anyio.abc.TaskGroup,
        large: LargeBodies,
        max_bytes: Callable[[], int],
        tell: Callable[[str, bytes], Any],
        *,
        view_of: Callable[[Key], RequestView | None],
        spent: Callable[[Key, Spent], None],
        keeps: Callable[[Key], None],
    ) -> None:
        self._group = group
        self._large = large
        self._max_bytes = max_bytes
        self._tell = tell
        self._view_of = view_of
        self._spent = spent
        self._keeps = keeps
        self._open: dict[str, _OpenQuestion] = {}

    def hear(self, line: bytes) -> None:
        """Take a message of a worker. Raises `DecodeError`."""
        message = _read(line)
        question = self._open.get(message.id)
        if question is not None and question.key == (message.request, message.call):
            question.heard_at = anyio.current_time()
            if message.do == "stop":
                self._end(question)
            else:
                self._say(question.message.worker, question.says)
        elif message.do == "ask" and question is None:
            self._take(message)
        elif message.do == "stay":
            self._say(message.worker, _QuestionMessage(do="unknown", id=message.id))

    def settle(self, key: Key) -> None:
        """Stop answering the questions of a call that is settled."""
        for question in [each for each in self._open.values() if each.key == key]:
            self._end(question)

    def look(self) -> None:
        """Stop answering the workers that are silent."""
        now = anyio.current_time()
        for question in [each for each in self._open.values() if now - each.heard_at > SILENCE_SECONDS]:
            self._end(question)

    def _end(self, question: _OpenQuestion) -> None:
        del self._open[question.message.id]
        question.scope.cancel()
        # The call may be settled before the sub-request has ended.
        self._report(question)

    def _report(self, question: _OpenQuestion) -> None:
        child, question.child = question.child, None
        if child is not None:
            self._spent(question.key, child.spent)

    def _take(self, message: _QuestionMessage) -> None:
        key = (message.request, message.call)
        view = self._view_of(key)
        if (
            view is None
            or view.is_stopping
            or view.is_released
            or (message.payload is not None and message.payload.key != key)
        ):
            self._say(message.worker, _QuestionMessage(do="unknown", id=message.id))
        elif sum(each.key == key for each in self._open.values()) >= _MAX_OF_CALL:
            error = f"the call has {_MAX_OF_CALL} questions to the model already"
            self._say(message.worker, _QuestionMessage(do="failed", id=message.id, code=LimitReached.code, error=error))
        else:
            question = self._open[message.id] = _OpenQuestion(message)
            self._say(message.worker, question.says)
            self._group.start_soon(self._answer, question, view)

    def _say(self, worker: str, message: _QuestionMessage) -> None:
        self._group.start_soon(self._tell, worker, message.line)

    async def _answer(self, question: _OpenQuestion, view: RequestView) -> None:
        with question.scope:
            try:
                question.says = await self._answered(question, view)
            except ToolbusError as exc:
                question.says = _QuestionMessage(do="failed", id=question.message.id, code=exc.code, error=str(exc))
            except (Unavailable, Damaged) as exc:
                question.says = _QuestionMessage(
                    do="failed", id=question.message.id, code=NotRunning.code, error=str(exc)
                )
            except Exception:  # A bug in toolbus must not end the executor, and with it all other calls.
                _logger.exception("a question of call %s could not be answered", question.message.call)
                question.says = _QuestionMessage(
                    do="failed", id=question.message.id, error="the question could not be answered"
                )
            self._say(question.message.worker, question.says)

    async def _answered(self, question: _OpenQuestion, view: RequestView) -> _QuestionMessage:
        if question.message.payload is not None:
            self._keeps(question.key)
        asked = await _read_content(question.message, _asked, self._large)
        metadata = {**(view.metadata or {}), **asked.carried}
        options = {"limits": asked.limits, "settings": asked.settings, "instructions": asked.instructions or None}
        child = view.child(
            question.message.call,
            asked.prompt,
            history=list(asked.history),
            output=None if asked.output is None else _SchemaOutput(asked.output),
            **{name: value for name, value in options.items() if value is not None},
        )
        question.child = child
        try:
            with continued_from(metadata, view.instrumentation):
                await child.run()
        finally:
            self._report(question)
        state: TurnState = child.snapshot().view.state
        assert state.ending is not None
        found = _Answered(
            ending=state.ending,
            messages=state.messages[state.history_count :],
            last_text="" if isinstance(state.ending, RequestCompleted) else state.last_text,
            usage=state.usage,
            cost=state.cost,
            started_at=state.started_at,
            spent=child.spent,
        )
        content = json_bytes(found)
        message = await _enclosed(
            _QuestionMessage(do="done", id=question.message.id), content, question.key, self._large, self._max_bytes()
        )
        if message.payload is not None:
            self._keeps(question.key)
        return message


class _SchemaOutput(OutputType[Any]):
    """The structured output of a type that only the worker knows, which reads the answer once more."""

    __slots__ = ("_check_schema",)

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            self._check_schema = json_schema_validator(schema)
        except MissingExtra:
            self._check_schema = json_schema_validator({"type": "object"})
        super().__init__(dict)
        self._wrapped = schema.get("properties", {}).keys() == {"value"}
        self.spec = replace(self.spec, parameters=schema)

    def _check(self, arguments: Mapping[str, Any]) -> None:
        self._check_schema(arguments)
        super()._check(arguments)
