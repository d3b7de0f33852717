"""The model calls of a session: their messages and tools, the provider that is asked, and the interceptors around it.

Nothing is decided here about the request: the outcome of a call is an input of the turn machine.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast

import orjson

from .._logs import logger
from .._option_checks import kind_of
from ..core.arguments import parse_arguments
from ..core.guidance import guidance_text
from ..core.message_list import Messages
from ..core.read_result import READ_RESULT
from ..core.transcript import repair
from ..core.turn import MODEL, CallModel, Elapsed, Input, ModelFailed, ModelReplied, TurnState, plan_text
from ..errors import (
    ApplicationError,
    ConfigurationError,
    ContextOverflow,
    Denied,
    InvalidArguments,
    ProviderError,
    ToolbusError,
)
from ..failures import log_exception, only_member, passes, words_of
from ..instrumentation import Work
from ..interceptors import Ask, Interceptor, edits_replies
from ..messages import AssistantMessage, Message, SystemMessage, ToolCall, Usage, UserMessage
from ..protocols import (
    MAX_REPLY_CALLS,
    Emit,
    KnowsMarks,
    ModelReply,
    ModelRequest,
    ModelSettings,
    NativeOutput,
    Provider,
    RequestView,
    ToolSource,
    ToolSpec,
)
from ..records import replace
from ..secrets import Marks, ReplyMask, RequestSecrets, find_marks, marked_in
from ..tools import ToolContext
from ._context_window import ContextWindow
from ._inputs import Instructions, is_blank, provider_list, read_instructions
from ._model_call import ModelCall, too_many_calls

if TYPE_CHECKING:
    from ._options import ProviderForRound, SessionOptions
    from ._view import SessionView

T = TypeVar("T")

_DEFAULT_SETTINGS = ModelSettings()
_TEXT, _NAME, _ARGUMENTS = {str}, attrgetter("name"), attrgetter("arguments")


def context_of(view: RequestView) -> ToolContext[Any]:
    """Return the context that the application's functions get of a request, outside of any tool call."""
    return ToolContext(
        deps=view.deps,
        request_id=view.request_id,
        conversation_id=view.conversation_id,
        messages=view.messages,
        metadata=view.metadata,
    )


class Asker:
    """The model calls of one session. `error` is the exception that the newest `ModelFailed` was made from."""

    __slots__ = (
        "_answer",
        "_asked",
        "_for_round",
        "_guidance",
        "_has_system",
        "_instructions",
        "_looked_at",
        "_marked",
        "_native",
        "_secrets",
        "_settings",
        "_state",
        "_window",
        "error",
        "instrumentation",
        "interceptors",
        "providers",
    )

    def __init__(
        self, state: TurnState, providers: Sequence[Provider], options: SessionOptions, window: ContextWindow
    ) -> None:
        self._state = state
        self.providers = providers
        self._settings: ModelSettings = options.get("settings") or _DEFAULT_SETTINGS
        self._instructions: Instructions | None = options.get("instructions")
        self._guidance: bool = options.get("guidance", False)
        self._has_system = self._instructions is not None or self._guidance
        self._for_round: ProviderForRound | None = options.get("provider_for_round")
        self.interceptors: Sequence[Interceptor] = tuple(options.get("interceptors") or ())
        self.instrumentation = options.get("instrumentation") or ()
        window.instrumentation = self.instrumentation
        self._window = window
        self._asked: Provider = providers[0]  # the provider that was chosen last
        self._looked_at: Mapping[str, ToolSpec] | None = None  # the tools that were searched for marked fields
        self._marked: Mapping[str, Marks] = {}
        self._answer = None if state.output is None else find_marks(state.output.spec.parameters)
        self._secrets: RequestSecrets | None = None  # set once the request has a vault
        self.error: ToolbusError | None = None

    async def admit(self, prompt: UserMessage, view: SessionView) -> UserMessage | ToolbusError:
        """Return the prompt as the interceptors leave it, or the error by which it is refused.

        Raises nothing but cancellation.
        """
        message_id = prompt.message_id
        self._secrets = None if view.secrets.vault is None else view.secrets
        try:
            for each in self.interceptors:
                prompt = _returned(await each.on_prompt(prompt, context_of(view)), UserMessage, each, "on_prompt")
            has_nothing = is_blank(prompt)
        except BaseException as raised:
            if passes(raised):
                raise
            exc = only_member(raised)
            if isinstance(exc, ToolbusError):
                return self._masked(exc)
            request_id = view.request_id
            ids = {"request_id": request_id}
            log_exception(logger, logging.ERROR, "request %s: on_prompt failed", request_id, cause=exc, ids=ids)
            error = ApplicationError(f"on_prompt raised {words_of(exc)}")
            error.__cause__ = exc
            return self._masked(error)
        if has_nothing:
            return ApplicationError("on_prompt gave an empty message; raise Denied to refuse one")
        return prompt if prompt.message_id else UserMessage(content=prompt.content, message_id=message_id)

    def known(self, tools: ToolSource, view: SessionView) -> Mapping[str, ToolSpec]:
        """Return the present tools, by which a call is judged that the model made earlier, maybe in another process."""
        present = tools.specs
        if present is not self._looked_at or view.secrets.vault is not None:
            self._look_for_secrets(tools, view)
        return self._known(present)

    def _known(self, specs: Mapping[str, ToolSpec]) -> Mapping[str, ToolSpec]:
        """Return the present tools, with those for the structured output and for reading long results."""
        output = self._state.output
        if self._secrets is not None:
            specs = self._secrets.guarded(specs)
        readable = self._window.has_shortened and READ_RESULT.name not in specs
        if readable and output is not None and self._state.output_mode == "native":
            # Some providers hold replies to a schema only in a request without tools.
            readable = native_output(self._asked, output.spec) == "with_tools"
        if output is None and not readable:
            return specs
        own = [*([READ_RESULT] if readable else []), *([] if output is None else [output.spec])]
        return {**specs, **{each.name: each for each in own}}

    def _look_for_secrets(self, tools: ToolSource, view: SessionView) -> None:
        """Find the marked fields of the present tools. From the first one on, the request has a vault."""
        secrets = view.secrets
        if tools.specs is not self._looked_at:
            self._looked_at, self._marked = tools.specs, marked_in(tools)
        if self._marked or self._answer is not None:
            secrets.keep()
            secrets.marked, secrets.answer = self._marked, self._answer
            secrets.is_lenient = not isinstance(tools, KnowsMarks)
            secrets.open_output()
        self._secrets = None if secrets.vault is None else secrets
        self._window.shown = None if secrets.vault is None else secrets.vault.shown

    def _masked(self, exc: ToolbusError) -> ToolbusError:
        return exc if self._secrets is None else self._secrets.words(exc)

    def _reply_mask(self, secrets: RequestSecrets, call: ModelCall) -> ReplyMask:
        """Return the mask that takes the secrets out of a reply."""
        return secrets.reply(self._state.tools, emit=call.emit, feed=call.feed, note_kind=call.note_piece)

    def _offered(self, specs: Mapping[str, ToolSpec], command: CallModel) -> tuple[ToolSpec, ...]:
        """Return the tools that the model may call now.

        For the last answer after a limit, it is only the tool of the structured output.
        """
        if command.offer_tools:
            return tuple(specs.values())
        output = self._state.output
        return () if output is None else (output.spec,)

    def _is_native(self, offered: Sequence[ToolSpec], output: ToolSpec) -> bool:
        """Return whether the provider is to enforce the output's schema. Then the tool for the output is not offered.

        Raises `ConfigurationError` if `output_mode` demands it and the provider cannot.
        """
        state = self._state
        has_others = any(each is not output for each in offered)
        if state.output_mode == "native":
            check_native(self._asked, output, with_tools=has_others)
            return True
        may = state.output_mode == "auto" and not has_others and not state.native_refused
        return may and native_output(self._asked, output) != ""

    async def request(self, call: ModelCall, tools: ToolSource, view: SessionView) -> ModelRequest | ModelFailed:
        """Return the request for the model, shortened to its window, or the failure to make one.

        Raises nothing but cancellation.
        """
        self.error = None
        state, command = self._state, call.command
        try:
            present = tools.specs
            if present is not self._looked_at or view.secrets.vault is not None:
                self._look_for_secrets(tools, view)
            call.provider = self._asked = self._provider(command)
            self._window.look(present)
            state.tools = specs = self._known(present)
            offered = self._offered(specs, command)
            output = None if state.output is None else state.output.spec
            # Whether the provider enforces the output's schema in the newest reply.
            self._native = output is not None and self._is_native(offered, output)
            system = await self._system(specs, view) if self._has_system or state.plan else None
            if self._window.is_plain:
                messages: Sequence[Message] = Messages(state.messages, system)
            else:
                messages = await self._window.messages(system, offered, self._asked, call.replies)
                # When results were shortened just now, the tool for reading them is added.
                if (known := self._known(present)) != specs:
                    state.tools = specs = known
                    offered = self._offered(specs, command)
                    self._native = output is not None and self._is_native(offered, output)
                    messages = await self._window.messages(system, offered, self._asked, call.replies)
            schema = output.parameters if output is not None and self._native else None
            return ModelRequest(
                messages=messages,
                tools=offered if schema is None else tuple([each for each in offered if each is not output]),
                settings=self._settings,
                request_id=view.request_id,
                conversation_id=view.conversation_id,
                round=command.round,
                output_schema=schema,
            )
        except ContextOverflow as exc:
            self.error = self._masked(exc)
            # After a refusal by this model, another model may take the request.
            return ModelFailed(exc.code, str(exc), retryable=self._window.was_refused, lost=call.lost())
        except BaseException as exc:
            if passes(exc):
                raise
            return self._failed(exc, call)

    async def ask(self, call: ModelCall, request: ModelRequest, view: SessionView) -> Input:
        """Ask the model once, and return the outcome. Raises nothing but cancellation."""
        if self._state.phase is not MODEL:
            return Elapsed()  # The cost of a summary has ended the request.
        mask = None if self._secrets is None else self._reply_mask(self._secrets, call)
        try:
            if not self.interceptors:
                call.asking = 1
                emit = call.emit if mask is None else mask.emit
                if self.instrumentation:
                    reply = await self._observed(request, emit, mask)
                else:
                    reply = await self._asked.respond(request, emit)
                # This check and that of the texts are written out here, because they run for each reply.
                is_reply = reply.__class__ is ModelReply and reply.message.__class__ is AssistantMessage
                if not (is_reply and reply.usage.__class__ is Usage) and (wrong := _not_reply(reply)) is not None:
                    return self._failed(wrong, call)
                call.replies.append(reply)
                message, calls = reply.message, reply.message.tool_calls
                if len(calls) > MAX_REPLY_CALLS:
                    return self._failed(too_many_calls(reply.vendor), call)
                texts = message.text, message.reasoning, *map(_NAME, calls), *map(_ARGUMENTS, calls)
                if not _TEXT.issuperset(map(type, texts)) and (wrong := _not_text(message)) is not None:
                    return self._failed(wrong, call)
                self._window.answered(reply.usage)
                if self._state.needs_price:
                    _check_usage(reply, call)
                return ModelReplied(reply if mask is None else mask.whole(reply), None, self._native)
            return await self._intercepted(call, request, mask, view)
        except BaseException as raised:
            if passes(raised):
                raise
            return self._refused(only_member(raised), call, request)

    def _refused(self, exc: BaseException, call: ModelCall, request: ModelRequest) -> ModelFailed:
        """Return the failure for an exception of the provider or an interceptor."""
        if isinstance(exc, ContextOverflow):
            self.error = self._masked(exc)
            self._window.refused(exc, self._asked, request)
            return ModelFailed(exc.code, str(exc), retryable=True, lost=call.lost())
        if self.interceptors and not isinstance(exc, ProviderError):
            call.forget()
        return self._failed(exc, call)

    async def _intercepted(
        self, call: ModelCall, request: ModelRequest, mask: ReplyMask | None, view: SessionView
    ) -> ModelReplied | ModelFailed:
        """Ask the model through the interceptors, and return the outcome."""
        reply, replies = await self._through(self._innermost(call, request, mask), request, view), call.replies
        if len(reply.message.tool_calls) > MAX_REPLY_CALLS:
            if not replies:
                replies.append(reply)
            return self._failed(too_many_calls(reply.vendor), call)
        newest, usages = replies[-1] if replies else None, [each.usage for each in replies]
        if newest is not None and (len(replies) > 1 or reply is not newest) and reply.usage in (Usage(), *usages):
            # An interceptor has asked more than once, or made its own reply, and has not counted the others itself.
            vendor, model = reply.vendor or newest.vendor, reply.model or newest.model
            reply = replace(reply, usage=sum(usages, Usage()), vendor=vendor, model=model)
        replied = await self._screened(reply, view)
        # The reply is masked once more, because an interceptor may have put a secret into it.
        reply = replied.reply if mask is None else mask.whole(replied.reply)
        return ModelReplied(reply, replied.denied, self._native)

    async def _observed(self, request: ModelRequest, emit: Emit, mask: ReplyMask | None) -> ModelReply:
        """Return the provider's reply, asked for inside of the instrumentation."""
        shown = request
        if self._secrets is not None and not isinstance(request.messages, Messages):
            # An interceptor may have put a secret into them.
            shown = replace(request, messages=[self._secrets.mask(each) for each in request.messages])
        with Work("model", self.instrumentation, shown, self._asked) as work:
            reply = await self._asked.respond(request, emit)
            if isinstance(reply, ModelReply):  # pyright: ignore[reportUnnecessaryIsInstance] -- an application's own
                if mask is not None:
                    reply = mask.whole(reply)
                work.ended(reply)
            return reply

    def _failed(self, exc: BaseException, call: ModelCall) -> ModelFailed:
        """Return the failure for an exception. The replies of `call` that have come may not be used."""
        if isinstance(exc, ToolbusError):
            self.error = exc
        else:
            request_id = self._state.request_id
            text, ids = "request %s: the model could not be asked", {"request_id": request_id}
            log_exception(logger, logging.ERROR, text, request_id, cause=exc, ids=ids)
            self.error = ApplicationError(words_of(exc))
            self.error.__cause__ = exc
        failed = ModelFailed(self.error.code, str(self._masked(self.error)), lost=call.lost())
        if not isinstance(exc, ProviderError):
            return failed
        return replace(failed, retryable=exc.retryable, retry_after_seconds=exc.retry_after_seconds)

    def _provider(self, command: CallModel) -> Provider:
        """Return the model for this call. `provider_for_round` chooses the first one that is asked in a round."""
        if self._for_round is not None and command.provider == 0:
            chosen = self._for_round(command.round)
            if chosen is not None:
                return provider_list(chosen)[0]  # pyright: ignore[reportArgumentType] -- a name is refused there
        return self.providers[command.provider]

    async def _system(self, tools: Mapping[str, ToolSpec], view: SessionView) -> SystemMessage | None:
        """Return the instructions, with the guidance and the plan that each round adds; None if all are empty."""
        state = self._state
        parts: list[str] = []
        if self._instructions is not None:
            parts.append(await read_instructions(self._instructions, context_of(view)))
        if self._guidance:
            listed = {name: each for name, each in tools.items() if not (self._native and each.control == "output")}
            parts.append(guidance_text(listed, state.limits.max_rounds))
        if state.plan:
            parts.append(plan_text(state.plan))
        text = "\n\n".join(part for part in parts if part)
        if self._secrets is not None:
            text = self._secrets.keep().shown(text)
        return SystemMessage(text=text, message_id=f"{state.request_id}_i") if text else None

    def _innermost(self, call: ModelCall, original: ModelRequest, mask: ReplyMask | None) -> Ask:
        """Return the innermost `Ask`, which asks the provider. Every reply is added to `call.replies`."""
        emit: Emit = call.emit if mask is None else mask.emit
        if edits_replies(self.interceptors):
            emit = call.feed
        messages, tools = original.messages, original.tools

        async def ask(request: ModelRequest) -> ModelReply:
            # An interceptor that replaced the messages may have broken the rules of tool calling.
            if not isinstance(request.messages, Messages):
                request = replace(request, messages=repair(request.messages))
            if request.messages is not messages or request.tools is not tools:
                self._window.was_edited()
            call.asking += 1
            try:
                if self.instrumentation:
                    reply = await self._observed(request, emit, mask)
                else:
                    reply = await self._asked.respond(request, emit)
            finally:
                if not call.is_cut_short:  # Then `asking` says who was waited for.
                    call.asking -= 1
            if (wrong := _not_reply(reply)) is not None:
                raise wrong
            call.replies.append(reply)
            self._window.answered(reply.usage)
            if self._state.needs_price:
                _check_usage(reply, call)
            if len(reply.message.tool_calls) > MAX_REPLY_CALLS:
                raise too_many_calls(reply.vendor)
            if (wrong := _not_text(reply.message)) is not None:
                raise wrong
            return reply if mask is None else mask.whole(reply)

        return ask

    async def _through(self, ask: Ask, request: ModelRequest, view: SessionView) -> ModelReply:
        for each in reversed(self.interceptors):
            ask = _wrapped(each, context_of(view), ask)
        return await ask(request)

    async def _screened(self, reply: ModelReply, view: SessionView) -> ModelReplied:
        """Return the reply as the interceptors leave it: they see its calls or, if it has none, its text."""
        message = reply.message
        denied: dict[int, str] = {}
        if not message.tool_calls:
            text = message.text
            for each in self.interceptors:
                given = _returned(await each.on_answer(text, context_of(view)), str, each, "on_answer")
                if given != text and not each.edits_replies:
                    raise _edited(each, "on_answer")
                text = given
            if message.text.strip() and not text.strip():
                raise ApplicationError("on_answer gave an empty text; raise Denied to refuse an answer")
            if text != message.text:
                reply = replace(reply, message=AssistantMessage(text=text, reasoning=message.reasoning))
            return ModelReplied(reply)
        calls = [await self._screened_call(call, index, denied, view) for index, call in enumerate(message.tool_calls)]
        if any(after is not before for after, before in zip(calls, message.tool_calls, strict=True)):
            # The vendor's own data is dropped, because it describes the calls as they were.
            edited = AssistantMessage(text=message.text, tool_calls=tuple(calls), reasoning=message.reasoning)
            reply = replace(reply, message=edited)
        return ModelReplied(reply, denied)

    async def _screened_call(self, call: ToolCall, index: int, denied: dict[int, str], view: SessionView) -> ToolCall:
        try:
            written = parse_arguments(call.arguments)
        except InvalidArguments:
            return call  # The turn machine refuses it.
        arguments: dict[str, Any] = copy.deepcopy(written)
        try:
            for each in self.interceptors:
                given = await each.before_tool(call.name, arguments, context_of(view))
                arguments = cast("dict[str, Any]", _returned(given, dict, each, "before_tool"))
        except Exception as raised:
            exc = only_member(raised)
            if not isinstance(exc, Denied):
                raise
            denied[index] = str(exc) or "The call was denied."
        try:
            text = orjson.dumps(arguments)
        except TypeError as exc:
            raise ApplicationError(f"before_tool gave arguments of {call.name} that are not JSON: {exc}") from exc
        return call if text == orjson.dumps(written) else replace(call, arguments=text.decode())


def _returned(given: object, kind: type[T], interceptor: Interceptor, method: str) -> T:
    """Return the value that an interceptor's method has returned, if it is of the right kind.

    Raises `ApplicationError` otherwise. The usual mistake is a method without a `return`.
    """
    if not isinstance(given, kind):
        name = f"{type(interceptor).__name__}.{method}"
        raise ApplicationError(f"{name} gave {kind_of(given)}; it has to return a {kind.__name__}")
    return given


def _edited(interceptor: Interceptor, method: str) -> ApplicationError:
    """Return the error of an interceptor whose reply may differ from the one that was streamed."""
    name = f"{type(interceptor).__name__}.{method}"
    return ApplicationError(f"{name} has changed the reply or asked twice; edits_replies = False rules both out")


def _wrapped(interceptor: Interceptor, context: ToolContext[Any], ask: Ask) -> Ask:
    async def asked(request: ModelRequest) -> ModelReply:
        replies: list[ModelReply | None] = []  # None for a call of the model that has failed

        async def noted(request: ModelRequest) -> ModelReply:
            replies.append(None)
            replies[-1] = reply = await ask(request)
            return reply

        given = await interceptor.around_model(request, context, ask if interceptor.edits_replies else noted)
        reply = _returned(given, ModelReply, interceptor, "around_model")
        if replies not in ([], [reply]):
            raise _edited(interceptor, "around_model")
        return reply

    return asked


def native_output(provider: Provider, output: ToolSpec) -> NativeOutput:
    """Return the provider's ability to enforce the output's schema; "" if it cannot."""
    can: Callable[[Mapping[str, Any]], NativeOutput] | None = getattr(provider, "native_output", None)
    return "" if can is None else can(output.parameters)


def _not_reply(reply: Any) -> ApplicationError | None:
    """Return the error for what an application's own provider gives instead of a reply, if there is any."""
    if not isinstance(reply, ModelReply):
        return ApplicationError(f"the provider gave {kind_of(reply)}, not a ModelReply")
    for name, kind in (("message", AssistantMessage), ("usage", Usage)):
        part = getattr(reply, name)
        if not isinstance(part, kind):
            return ApplicationError(f"the provider gave the {name} as {kind_of(part)}; pass {kind.__name__}(...)")
    return None


def _not_text(message: AssistantMessage) -> ApplicationError | None:
    """Return the error for what an application's own provider gives as something other than text, if there is any.

    It may give None for no text, and the arguments of a call as the object that they mean.
    """
    wrong: tuple[str, object, str] | None = None
    if type(message.text) is not str:
        wrong = "text", message.text, "a string, which may be empty"
    elif type(message.reasoning) is not str:
        wrong = "reasoning", message.reasoning, "a string, which may be empty"
    for each in message.tool_calls:
        if type(each.name) is not str:
            wrong = "name of a call", each.name, "a string"
        elif type(each.arguments) is not str:
            wrong = f"arguments of {each.name}", each.arguments, "the text of their JSON"
    if wrong is None:
        return None
    return ApplicationError(f"the provider gave the {wrong[0]} as {kind_of(wrong[1])}; pass {wrong[2]}")


def _check_usage(reply: ModelReply, call: ModelCall) -> None:
    """Report a reply that no limit of costs can count, because its provider does not say what it took."""
    if not (reply.usage.input_tokens or reply.usage.output_tokens):
        call.report_no_usage(reply)


def check_native(provider: Provider, output: ToolSpec, *, with_tools: bool) -> None:
    """Raise `ConfigurationError` if a provider cannot do what `output_mode="native"` demands."""
    can = native_output(provider, output)
    if not can:
        problem = "cannot hold replies to the schema of this output, or its server has refused it"
    elif with_tools and can != "with_tools":
        problem = "can hold replies to a schema only in a request without tools"
    else:
        return
    raise ConfigurationError(f"output_mode is 'native', and the provider {provider!r} {problem}; say 'auto' or 'tool'")


def check_together(view: SessionView) -> None:
    """Raise `ConfigurationError` for options, tools and providers that cannot be used together."""
    state, tools = view.state, view.tools
    specs = tools.specs
    needs_deps: Mapping[str, str] = getattr(tools, "needs_deps", {})  # A source of definitions has no handlers.
    if view.deps is None:
        for name, wanted in needs_deps.items():
            raise ConfigurationError(
                f"tool {name!r} takes a ToolContext[{wanted}], and there are no deps; "
                "pass deps= to the runtime or to the request"
            )
    if state.output is not None and state.output_mode == "native":
        for provider in view.providers:
            check_native(provider, state.output.spec, with_tools=bool(specs))
    if state.needs_price and not state.prices:
        raise ConfigurationError(
            "max_cost is set, and there is no price table; pass prices, for example {'*': Price(...)}"
        )
    if state.output is not None and state.output.spec.name in specs:
        raise ConfigurationError(f"a tool is named {state.output.spec.name}, which output= needs; give it another name")
