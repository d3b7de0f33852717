"""`Tool`, the `@tool` decorator, the `ToolContext` of a handler, and `ToolRegistry`.

Knows schemas and results. Must not know the bus, or what runs a handler; see `toolbus.dispatcher`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, Unpack, cast, overload

from .._option_checks import TEXT, check, is_async, kind_of, listed, shown
from ..errors import ConfigurationError, InvalidArguments, MissingExtra, NotRunning
from ..messages import Message, PromptLike, UserMessage
from ..protocols import KnowsMarks, ToolSpec
from ..schemas import (
    ArgumentBinder,
    binder_for,
    context_parameter,
    describe,
    hints_of,
    json_schema_validator,
    never_null,
    without_nulls,
)
from ..secrets import Marks, find_marks
from ._options import Isolation, ToolOptions, check_options, check_running

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeForm, TypeVar  # as in Python 3.13 and later

    from ..request_result import OutputT, RequestResult

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
    DepsT = TypeVar("DepsT", default=Any)
else:
    from typing import ParamSpec, TypeVar

    P, R, DepsT = ParamSpec("P"), TypeVar("R"), TypeVar("DepsT")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # the function names that both OpenAI and Anthropic accept
_SPEC_FIELDS = frozenset(each.name for each in dataclasses.fields(ToolSpec))
_UNIONS = (typing.Union, types.UnionType)  # `A | B` is of the second, and from Python 3.14 on of the first


class ToolContext(Generic[DepsT]):
    """The call that a handler works for. A handler gets it as the parameter that is annotated `ToolContext[MyDeps]`.

    `deps` is the object that the application gave to the runtime or the request. `messages` is the transcript as of
    this round, read-only; on a worker it is empty unless the tool has `needs_transcript=True`. `attempt` counts from 1.
    `idempotency_key` is the same for every run of this call, also after a restart.
    """

    __slots__ = (
        "_ask",
        "_progress",
        "attempt",
        "call_id",
        "conversation_id",
        "deps",
        "idempotency_key",
        "messages",
        "metadata",
        "name",
        "request_id",
    )

    def __init__(
        self,
        *,
        deps: DepsT,
        name: str = "",
        request_id: str = "",
        conversation_id: str = "",
        call_id: str = "",
        attempt: int = 1,
        idempotency_key: str = "",
        messages: Sequence[Message] = (),
        metadata: Mapping[str, Any] | None = None,
        progress: Callable[[str, float | None, float | None], Awaitable[None]] | None = None,
        ask: Callable[..., Awaitable[Any]] | None = None,
    ) -> None:
        self.deps = deps
        self.name = name
        self.request_id = request_id
        self.conversation_id = conversation_id
        self.call_id = call_id
        self.attempt = attempt
        self.idempotency_key = idempotency_key
        self.messages = messages
        self.metadata = metadata
        self._progress = progress
        self._ask = ask

    @property
    def last_user_message(self) -> str:
        """The text of the newest user message; empty if there is no such message."""
        for message in reversed(self.messages):
            if isinstance(message, UserMessage):
                return message.text
        return ""

    async def progress(self, message: str = "", *, done: float | None = None, total: float | None = None) -> None:
        """Publish the progress of the call (`ToolCallProgress`). A checkpoint; does nothing outside a runtime.

        `done` and `total` are in any unit. In a sync handler: `anyio.from_thread.run(context.progress, "half way")`.
        """
        if self._progress is not None:
            await self._progress(message, done, total)

    @overload
    async def ask(self, prompt: PromptLike, *, output: None = None, **options: Any) -> RequestResult[None]: ...
    @overload
    async def ask(
        self, prompt: PromptLike, *, output: TypeForm[OutputT], **options: Any
    ) -> RequestResult[OutputT | None]: ...
    async def ask(self, prompt: PromptLike, **options: Any) -> RequestResult[Any]:
        """Run a child request (a sub-agent) for this call and return its `RequestResult`; `prompt` as in `Runtime.run`.

        `options` are `provider` (by default the one of the calling request), `tools` (by default none), `output`,
        `history` (the messages before the prompt, such as `context.messages`), and those of `SessionOptions`. The child
        runs in this task and is cancelled with it. Its limits are what the calling request has left, its deadline is
        this call's, and what it spends counts for the calling request. While it runs, the call holds no slot of the
        dispatcher. A child that was stopped or has failed raises nothing: its result has an `output` only if the model
        gave one. Raises `LimitReached` if nothing is left, and `NotRunning` outside a dispatcher or after the end of
        the call.

        On a worker for remote calls, the session's process runs the child, and of the options only `history`,
        `instructions`, `limits`, `output` and `settings` may be given. Raises `NotRunning` there if that process is
        gone, within 15 seconds.
        """
        if self._ask is None:
            raise NotRunning("ask() works in the handler of a tool; an interceptor, for example, asks another Runtime")
        return await self._ask(prompt, **options)


def _is_context(annotation: Any) -> bool:
    return _context_in(annotation) is not None


def _context_in(annotation: Any) -> Any:
    """Return the `ToolContext[...]` in the annotation of a parameter; None for any other parameter."""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in _UNIONS:  # for example, `ToolContext[Deps] | None`
        return next((each for each in map(_context_in, typing.get_args(annotation)) if each is not None), None)
    return annotation if annotation is ToolContext or typing.get_origin(annotation) is ToolContext else None


def _deps_of(context: Any) -> str:
    """Return the name of the type of deps in a `ToolContext[Deps]`, or "" if a request without deps will do."""
    (deps,) = typing.get_args(context) or (Any,)
    if deps in (Any, object, types.NoneType) or isinstance(deps, TypeVar) or types.NoneType in typing.get_args(deps):
        return ""
    return str(deps) if typing.get_origin(deps) in _UNIONS else getattr(deps, "__name__", str(deps))


class Tool(Generic[P, R]):
    """A tool: the definition that the model sees, and the handler that runs its calls.

    Make one with `@tool`, or directly from a bound method or for a schema that you already have:

        Tool(handler=database.lookup)
        Tool("lookup", "Look a word up.", {"type": "object", "properties": {...}}, handler)

    `name` is 1 to 64 letters, digits, underscores and dashes. Without `schema`, name, description and schema come
    from the handler's signature and docstring. With `schema`, the arguments are passed by name, and validated by the
    jsonschema-rs library (extra `schema`) in bounded time, or by `validate`, whose exceptions' texts are sent to the
    model. An async handler runs on the event loop, any other handler in a thread. The other options are those of
    `ToolOptions`.

    Calling a `Tool` calls its handler. Raises `ConfigurationError` for a tool that a model could not call.
    """

    __slots__ = (
        "__weakref__",
        "__wrapped__",
        "_bind",
        "_context",
        "cache_seconds",
        "handler",
        "has_schema",
        "include_data",
        "is_async",
        "isolation",
        "max_concurrency",
        "needs_deps",
        "needs_transcript",
        "retries",
        "retry_on",
        "secrets",
        "spec",
        "summarize",
    )

    def __init__(
        self,
        name: str | None = None,
        description: str | None = None,
        schema: Mapping[str, Any] | None = None,
        handler: Callable[P, R] | None = None,
        *,
        validate: Callable[[Mapping[str, Any]], None] | None = None,
        **options: Unpack[ToolOptions],
    ) -> None:
        external = options.get("external", False)
        if handler is None and not (external and name and schema is not None):
            advice = "; pass the function as handler=" if callable(name) or callable(description) else ""
            raise ConfigurationError(f"a Tool needs a handler, or external=True with a name and a schema{advice}")
        if handler is not None:
            _check_handler(handler)
        name = _checked_name(check("a tool's name", name or getattr(handler, "__name__", ""), TEXT))
        check_options(name, options)
        binder = _binder(name, schema, handler, validate)
        check_running(name, handler, options, takes_context=binder.context is not None)
        if description is None:
            description = describe(handler)[0] if handler is not None else ""
        check(f"tool {name!r}: description", description, TEXT)
        self.handler = handler
        self.__wrapped__ = handler
        self.has_schema = schema is not None  # whether a schema was given; arguments are passed as they came then
        self.is_async = handler is not None and is_async(handler)
        self.max_concurrency = options.get("max_concurrency")
        self.retries = options.get("retries", 0)
        self.retry_on = options.get("retry_on")
        self.cache_seconds = options.get("cache_seconds")
        self.isolation: Isolation = options.get("isolation", "thread")
        self.include_data = options.get("include_data")
        self.summarize = options.get("summarize")
        self.needs_transcript = options.get("needs_transcript", False)
        self._bind = binder.bind
        self._context = binder.context
        # The name of the type of deps that the handler asks for; empty if it does without.
        takes = binder.context
        self.needs_deps = "" if handler is None or takes is None else _deps_of(_context_in(hints_of(handler)[takes]))
        self.secrets = find_marks(binder.parameters)  # the marks of the fields that are secret, if any
        self.spec = _spec_of(name, description, binder, options)

    @property
    def name(self) -> str:
        """The name that the model calls."""
        return self.spec.name

    @property
    def description(self) -> str:
        """The description of the tool that the model reads."""
        return self.spec.description

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON schema of the arguments."""
        return self.spec.parameters

    @property
    def wants_context(self) -> bool:
        """True if the handler has a parameter of type `ToolContext`."""
        return self._context is not None

    def prepare(
        self,
        arguments: Mapping[str, Any],
        context: ToolContext[Any] | None,
        bound: dict[str, Any] | None = None,
    ) -> Callable[[], Any]:
        """Return the handler bound to its own validated copy of the arguments, to be called in any thread.

        `bound` is what `spec.validate` returned for these arguments, to be used once; None validates them again. Raises
        `InvalidArguments`, and `ConfigurationError` for an external tool.
        """
        if self.handler is None:
            raise ConfigurationError(f"tool {self.name!r} is external: it has no handler here")
        keywords = self._bind(arguments) if bound is None else bound
        if self._context is not None:
            keywords[self._context] = context
        return functools.partial(self.handler, **keywords)  # type: ignore[call-arg]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the handler like the plain function."""
        if self.handler is None:
            raise ConfigurationError(f"tool {self.name!r} is external: it has no handler here")
        return self.handler(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


ToolLike: TypeAlias = Tool | Callable[..., Any]


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"tool name {name!r} is not accepted by model providers: "
            "use 1 to 64 letters, digits, underscores and dashes, or pass name="
        )
    return name


def _spec_of(name: str, description: str, binder: ArgumentBinder, options: ToolOptions) -> ToolSpec:
    """Return the definition of a tool that sessions and models use."""
    given: dict[str, Any] = {option: value for option, value in options.items() if option in _SPEC_FIELDS}
    if given.get("needs_approval") is None:
        given["needs_approval"] = options.get("destructive", False)
    parameters = types.MappingProxyType(binder.parameters)
    return ToolSpec(name=name, description=description, parameters=parameters, validate=binder.bind, **given)


def _check_handler(handler: Any) -> None:
    if isinstance(handler, Tool):
        raise ConfigurationError(f"{handler!r} is a tool already; register it as it is")
    if isinstance(inside := getattr(handler, "__wrapped__", None), Tool):
        raise ConfigurationError(f"a decorator is around {inside!r}; write @tool above all other decorators")
    if isinstance(handler, str):
        raise ConfigurationError(
            f"{handler!r} is a text, not a function; to name a tool, write @tool(name={handler!r})"
        )
    if not callable(handler):
        raise ConfigurationError(
            f"{handler!r} cannot be called; to make a tool of a method, pass the bound one: Tool(handler=thing.method)"
        )
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise ConfigurationError(
            f"tool {getattr(handler, '__qualname__', handler)}: a handler returns one value and does not yield; "
            "return a list, and report progress with ToolContext.progress"
        )


def _binder(
    name: str,
    schema: Mapping[str, Any] | None,
    handler: Callable[..., Any] | None,
    validate: Callable[[Mapping[str, Any]], None] | None,
) -> ArgumentBinder:
    if schema is None:
        assert handler is not None
        if validate is not None:
            raise ConfigurationError(f"tool {name!r}: validate= goes with schema=; annotate the parameters instead")
        return binder_for(handler, _is_context)
    if not isinstance(cast("object", schema), Mapping):
        raise ConfigurationError(f"tool {name!r}: its schema is {kind_of(schema)}; pass a dictionary")
    parameters = {"type": "object", **copy.deepcopy(dict(schema))}
    if parameters["type"] != "object":
        raise ConfigurationError(
            f"tool {name!r}: its schema is of type {parameters['type']!r}; "
            "arguments are an object, so give the schema of that object"
        )
    check = _translated(validate) if validate is not None else _schema_check(name, parameters)
    optional = never_null(parameters) if validate is None else frozenset[str]()

    def bind(arguments: Mapping[str, Any]) -> dict[str, Any]:
        if optional and isinstance(arguments, dict):  # a model sends anything
            arguments = without_nulls(arguments, optional)
        check(arguments)
        return copy.deepcopy(dict(arguments))

    context = None if handler is None else context_parameter(name, hints_of(handler), _is_context)
    if handler is not None:
        _check_takes(name, handler, parameters, context)
    return ArgumentBinder(parameters=parameters, bind=bind, context=context)


def _schema_check(name: str, parameters: Mapping[str, Any]) -> Callable[[Any], None]:
    try:
        return json_schema_validator(parameters)
    except MissingExtra:
        raise
    except ConfigurationError as exc:
        raise ConfigurationError(f"tool {name!r}: {exc}") from None


# Keywords beside which `properties` may not have all arguments.
_COMPOSING = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "patternProperties"})


def _check_takes(name: str, handler: Any, parameters: Mapping[str, Any], context: str | None) -> None:
    """Raise `ConfigurationError` for a handler that cannot be called with all arguments of its schema by name."""
    properties = parameters.get("properties")
    if not properties or not isinstance(properties, Mapping) or not _COMPOSING.isdisjoint(parameters):
        return
    named: dict[str, None] = dict.fromkeys(cast("Mapping[str, Any]", properties))
    if context is not None:
        named[context] = None
    try:
        # A decorator may fill in parameters of the function that it shows as its own.
        inspect.signature(handler, follow_wrapped=False).bind(**named)
    except TypeError as exc:
        raise ConfigurationError(f"tool {name!r}: its handler does not fit its schema: {exc}") from None
    except ValueError:
        # Some built-in functions have no signature.
        return


def _translated(validate: Callable[[Mapping[str, Any]], None]) -> Callable[[Mapping[str, Any]], None]:
    """Return the validator with its exceptions as `InvalidArguments`: most libraries raise exceptions of their own."""

    def check(arguments: Mapping[str, Any]) -> None:
        try:
            validate(arguments)
        except InvalidArguments:
            raise
        except Exception as exc:
            raise InvalidArguments(str(exc) or type(exc).__name__) from None

    return check


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, **options: Unpack[ToolOptions]
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool from a function: `@tool`, or `@tool(timeout_seconds=5)`.

    The docstring becomes the description; its Google, NumPy or Sphinx sections describe the parameters. The type
    annotations become the schema, which `Annotated[int, Field(gt=0, description="...")]` can refine. See `ToolOptions`
    for the other options.
    """
    if function is not None:
        # Type checkers refuse options together with a function, but at run time they must not be lost.
        return Tool(handler=function, **options)

    def decorate(decorated: Callable[..., Any]) -> Tool:
        return Tool(handler=decorated, **options)

    return decorate


class ToolRegistry(KnowsMarks):
    """A set of tools by name, in the order of registration. It may change while requests run.

    A request sees the tools that are registered when its round starts. A call of a tool that was removed after that
    fails as `unknown_tool`. Not thread-safe: change the registry only on the event loop's thread.
    """

    __slots__ = ("_marked", "_specs", "_tools", "needs_deps")

    def __init__(self, tools: Iterable[ToolLike] = ()) -> None:
        self._marked: Mapping[str, Marks] = {}
        self._tools: dict[str, Tool] = {}
        self.needs_deps: dict[str, str] = {}  # the type of deps that handlers ask for, by tool name
        self._specs: Mapping[str, ToolSpec] | None = None
        for each in tool_list(tools):
            self.add(each)

    def add(self, tool: ToolLike) -> Tool:
        """Add a tool, or a plain function as a tool. Raises `ConfigurationError` if the name is taken."""
        made = _as_tool(tool)
        if made.name in self._tools:
            raise ConfigurationError(
                f"there is already a tool {made.name!r}; give one of them another name=, or use ToolRegistry.replace()"
            )
        self._set(made)
        return made

    def replace(self, tool: ToolLike) -> Tool:
        """Add a tool, and replace the tool of the same name if there is one."""
        made = _as_tool(tool)
        self._set(made)
        return made

    def remove(self, name: str) -> None:
        """Remove a tool; its calls that run continue. Raises `KeyError` if there is no such tool."""
        del self._tools[name]
        self.needs_deps.pop(name, None)
        self._specs = None

    def get(self, name: str) -> Tool | None:
        """Return the tool of that name, or None."""
        return self._tools.get(name)

    @property
    def specs(self) -> Mapping[str, ToolSpec]:
        """The definitions that models see, by tool name: a snapshot, which is made again after a change."""
        if self._specs is None:
            self._specs = types.MappingProxyType({name: each.spec for name, each in self._tools.items()})
            self._marked = {name: marks for name, each in self._tools.items() if (marks := each.secrets) is not None}
        return self._specs

    @property
    def marked(self) -> Mapping[str, Marks]:
        """The marks of secret arguments in the newest snapshot, by tool name, without tools that have none."""
        return self._marked if self.specs else {}

    def _set(self, tool: Tool) -> None:
        self._tools[tool.name] = tool
        self.needs_deps.pop(tool.name, None)
        if tool.needs_deps and not tool.spec.pool:  # Otherwise the executor of the pool has them.
            self.needs_deps[tool.name] = tool.needs_deps
        self._specs = None

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return iter(tuple(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)


def _as_tool(tool: ToolLike) -> Tool:
    if isinstance(tool, Tool):
        return cast("Tool", tool)
    if callable(tool):
        return Tool(handler=tool)
    raise ConfigurationError(
        f"{shown(tool)} is not a tool; {_toolset_advice(tool) or 'pass a function, a @tool or a Tool'}"
    )


def tool_list(tools: Any) -> list[Any]:
    """Return the tools as a new list, whose items are not checked.

    Raises `ConfigurationError` for a single tool, a toolset, and anything else that is not a list of tools.
    """
    if not isinstance(tools, type) and (isinstance(tools, (Tool, ToolSpec)) or callable(tools)):
        one: Any = cast("Any", tools)
        name = getattr(one, "name", "") or getattr(one, "__name__", "tool")
        raise ConfigurationError(f"tools is {shown(one)}, a single one; pass a list: tools=[{name}]")
    advice = "pass a list of functions, @tool or Tool, or a ToolRegistry"
    return listed("tools", tools, _toolset_advice(tools) or advice)


def _toolset_advice(given: object) -> str:
    is_toolset = isinstance(getattr(given, "registry", None), ToolRegistry)
    return "enter the toolset, and pass its registry: tools=toolset.registry" if is_toolset else ""
