"""Tools and toolsets that are wrong in one way each, beside right ones."""

from __future__ import annotations

import datetime as dt
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import anyio
from pydantic import BaseModel, ConfigDict, Field

from toolbus import Tool, ToolError, ToolRegistry, tool
from toolbus.errors import ConfigurationError
from toolbus.records import replace
from toolbus.testing import ExampleCall

Given = tuple[list[Tool], list[ExampleCall]]
OBJECT: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@tool(idempotent=True)
async def look_up(
    word: Annotated[str, Field(description="The word.")],
    most: Annotated[int, Field(ge=1, description="How many at most.")] = 3,
) -> list[str]:
    """Look a word up."""
    await anyio.sleep(0.02)
    return [word] * most


RIGHT: Given = ([look_up], [ExampleCall("look_up", {"word": "lamp"}, list[str])])


def with_schema(schema: dict[str, Any], **more: Any) -> Given:
    """A tool with such a schema, which takes whatever comes where it is told no other `validate`."""

    async def give(**_arguments: Any) -> str:
        return "given"

    return [Tool("give", "Give something.", schema, give, **more)], []


def with_property(schema: dict[str, Any], name: str = "a") -> Given:
    return with_schema(OBJECT | {"properties": {name: {"description": "Something.", **schema}}}, validate=nothing)


def nothing(_arguments: Any) -> None:
    """All is right."""


def made(function: Callable[..., Any], output: Any = None, **options: Any) -> Given:
    """A tool of a function without parameters, with an example."""
    return [Tool("make", "Make something.", handler=function, **options)], [ExampleCall("make", output=output)]


def nested(properties: dict[str, Any]) -> Given:
    return with_property({"type": "object", "properties": properties})


def of_type(kind: str) -> Given:
    """What `Tool` refuses by itself, and somebody may still bring about."""
    made = Tool("give", "Give.", {"type": "object"}, plain)
    made.spec = replace(made.spec, parameters={"type": kind, "items": {}})
    return [made], []


def deep(levels: int) -> Given:
    schema: dict[str, Any] = OBJECT
    for _ in range(levels):
        schema = OBJECT | {"properties": {"a": schema}, "required": ["a"]}
    return with_schema(schema)


def wide(count: int) -> Given:
    names = [f"a{number}" for number in range(count)]
    return with_schema(OBJECT | {"properties": {name: {"type": "string"} for name in names}, "required": names})


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    tags: list[str]
    above: Place | None


@tool
async def of_all_kinds(
    when: Annotated[dt.date, Field(description="When.")],
    unit: Annotated[Literal["c", "f"], Field(description="The unit.")],
    ratio: Annotated[float | None, Field(gt=0, description="How much of it.")],
    place: Annotated[Place, Field(description="Where.")],
) -> str:
    """Take all kinds of things."""
    return f"{when} {unit} {ratio} {place}"


def in_thread(word: Annotated[str, Field(description="The word.")]) -> str:
    """Say a word in a thread."""
    return word


# ------------------------------------------------------------------------------------------------- what is told


def final_answer() -> Given:
    return [Tool("final_answer", "Answer.", handler=plain)], [ExampleCall("final_answer")]


def names_alike() -> Given:
    tools = [Tool(name, "Look up.", handler=plain) for name in ("look_up", "look-up")]
    return tools, [ExampleCall(each.name) for each in tools]


async def plain() -> str:
    return "plain"


def no_description() -> Given:
    return [Tool(handler=plain)], [ExampleCall("plain")]


def long_description() -> Given:
    return [Tool(handler=plain, description="x" * 1_025)], [ExampleCall("plain")]


def no_word_on_a_parameter() -> Given:
    @tool
    async def look(word: str) -> str:
        """Look a word up."""
        return word

    return [look], [ExampleCall("look", {"word": "a"})]


def default_of_another_kind() -> Given:
    @tool
    async def look(word: Annotated[str, Field(description="The word.")] = None) -> str:  # type: ignore[assignment]  # noqa: RUF013 -- that is what is wrong
        """Look a word up."""
        return word or "nothing"

    return [look], [ExampleCall("look", {"word": "a"})]


def default_out_of_bounds() -> Given:
    @tool
    async def look(most: Annotated[int, Field(ge=1, description="How many.")] = 0) -> str:
        """Look a word up."""
        return "a" * most

    return [look], [ExampleCall("look", {"most": 1})]


def no_example() -> Given:
    return [look_up, Tool("plain", "Be plain.", handler=plain)], RIGHT[1]


def example_of_nothing() -> Given:
    return [Tool("ask", "Ask.", {"type": "object"}, external=True)], [ExampleCall("aks")]


def example_that_does_not_fit() -> Given:
    schema = OBJECT | {"properties": {"a": {"type": "integer", "description": "A number."}}}
    tools, _ = with_schema(schema, validate=_check_a)
    return tools, [ExampleCall("give", {"a": 1.5})]


def _check_a(given: Mapping[str, Any]) -> None:
    """Take 1.5 as well, which is no integer."""
    for name, value in given.items():
        if name != "a" or (isinstance(value, bool) or value not in (1, 1.5)):
            raise ValueError(f"{name} is wrong")


# ------------------------------------------------------------------------------------------------- handlers


def takes_anything() -> Given:
    schema = OBJECT | {"properties": {"a": {"type": "integer", "description": "A number."}}, "required": ["a"]}
    tools, _ = with_schema(schema, validate=nothing)
    return tools, [ExampleCall("give", {"a": 1})]


def external_that_takes_anything() -> Given:
    return [Tool("ask", "Ask.", OBJECT, external=True, validate=nothing)], []


def gives_bytes() -> Given:
    async def make() -> bytes:
        return b"\x00"

    return made(make)


def breaks() -> Given:
    async def make() -> str:
        raise LookupError("a bug")

    return made(make)


def gives_another_kind() -> Given:
    async def make() -> Any:
        return {"sum": "3"}

    return made(make, dict[str, int])


def breaks_its_output_schema() -> Given:
    async def make() -> Any:
        return {"total": 3}

    return made(make, {"type": "object", "required": ["sum"]})


def works_once() -> Given:
    calls: list[int] = []

    async def make() -> str:
        calls.append(1)
        if len(calls) % 2 == 0:  # the first one of each check works
            raise ToolError("it is there already")
        return "made"

    return made(make, idempotent=True)


def one_at_a_time() -> Given:
    inside: list[int] = []

    async def make() -> str:
        inside.append(1)
        try:
            if len(inside) > 1:
                raise ToolError("somebody else is in here")
            await anyio.sleep(0.001)
        finally:
            inside.pop()
        return "made"

    return made(make, kind="query")


def deaf() -> Given:
    async def make() -> str:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(8)  # above the grace, below the patience
        return "made"

    return made(make)


def swallows_its_cancellation() -> Given:
    async def make() -> str:
        try:
            await anyio.sleep(0.05)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(8)
        return "made"

    return made(make)


THREADS: list[threading.Event] = []


def leaves_a_thread() -> Given:
    def make() -> str:
        THREADS.append(threading.Event())
        threading.Thread(target=THREADS[-1].wait, args=[20], daemon=True).start()
        return "made"

    return made(make)


FILES: list[Any] = []


def leaves_a_file_open() -> Given:
    def make() -> str:
        FILES.append(open(__file__, encoding="utf-8"))  # noqa: PTH123, SIM115
        return "made"

    return made(make)


def leaves_a_temporary_file() -> Given:
    def make() -> str:
        handle, _ = tempfile.mkstemp()
        os.close(handle)
        return "made"

    return made(make)


def clear() -> None:
    """End what wrong ones have left."""
    while THREADS:
        THREADS.pop().set()
    while FILES:
        FILES.pop().close()


# ------------------------------------------------------------------------------------------------- toolsets


class Right:
    """A shelf of words that is open while it is entered. Those below differ in one thing."""

    def __init__(self) -> None:
        self.registry = ToolRegistry()
        self.tools = [Tool(handler=self.find)]
        self.is_open = False
        self.scopes: set[anyio.CancelScope] = set()

    async def __aenter__(self) -> Right:
        self.check_closed()
        await anyio.sleep(0.01)
        self.is_open = True
        for each in self.tools:
            self.registry.add(each)
        return self

    async def __aexit__(self, *exc_info: object) -> bool | None:
        self.is_open = False
        for scope in self.scopes:
            scope.cancel()
        for each in self.tools:
            self.registry.remove(each.name)
        with anyio.CancelScope(shield=True):
            await self.close()
        return None

    def check_closed(self) -> None:
        if self.is_open:
            raise ConfigurationError("the shelf is open already")

    async def close(self) -> None:
        await anyio.sleep(0.01)

    async def find(self, word: Annotated[str, Field(description="The word.")]) -> str:
        """Find a word."""
        self.check_open()
        with anyio.CancelScope() as scope:
            self.scopes.add(scope)
            try:
                await anyio.sleep(0.05)
                return f"{word} is here"
            finally:
                self.scopes.discard(scope)
        raise ToolError("the shelf was closed")

    def check_open(self) -> None:
        if not self.is_open:
            raise ToolError("the shelf is closed")


EXAMPLES = [ExampleCall("find", {"word": "lamp"})]


class HasOtherToolsEachTime(Right):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        HasOtherToolsEachTime.made += 1
        self.tools.append(Tool(f"other_{HasOtherToolsEachTime.made}", "Other.", handler=self.find))


class WorksBefore(Right):
    def __init__(self) -> None:
        super().__init__()
        self.registry = ToolRegistry(self.tools)
        self.was_open = False

    def check_closed(self) -> None:
        super().check_closed()
        if not self.was_open:
            self.registry.remove("find")
        self.was_open = True

    def check_open(self) -> None:
        if self.was_open:
            super().check_open()


class BreaksBefore(WorksBefore):
    def check_open(self) -> None:
        if not self.was_open:
            raise AttributeError("there is no shelf")
        super().check_open()


class StaysInTheRegistry(Right):
    async def __aexit__(self, *exc_info: object) -> bool | None:
        await super().__aexit__(*exc_info)
        self.registry.replace(self.tools[0])
        return None

    def check_closed(self) -> None:
        super().check_closed()
        if "find" in self.registry:
            self.registry.remove("find")


class HangsWhenClosed(Right):
    async def find(self, word: Annotated[str, Field(description="The word.")]) -> str:
        """Find a word."""
        if not self.is_open:
            await anyio.sleep(3_600)
        return await super().find(word)


class BreaksWhenClosed(Right):
    def check_open(self) -> None:
        if not self.is_open:
            raise AttributeError("there is no shelf")


class LosesItsToolsWhenClosed(Right):
    async def __aexit__(self, *exc_info: object) -> bool | None:
        await super().__aexit__(*exc_info)
        self.tools = []
        return None


class CannotBeOpenedAgain(Right):
    def check_closed(self) -> None:
        super().check_closed()
        if getattr(self, "was_open", False):
            raise ConfigurationError("a shelf is for one use; make another one")
        self.was_open = True


class BreaksWhenOpenedAgain(CannotBeOpenedAgain):
    def check_closed(self) -> None:
        try:
            super().check_closed()
        except ConfigurationError:
            if self.is_open:
                raise
            raise RuntimeError("a handle is invalid") from None


class OpensTwice(Right):
    entered = 0

    def check_closed(self) -> None:
        self.entered += 1
        self.tools = [Tool(f"find_{self.entered}" if self.is_open else "find", "Find.", handler=self.find)]


class ForgetsItselfWhenEnteredTwice(Right):
    def check_closed(self) -> None:
        try:
            super().check_closed()
        except ConfigurationError:
            self.is_open = False
            raise


class Shares(Right):
    """All have one registry, and one shelf."""

    one = ToolRegistry()

    def __init__(self) -> None:
        super().__init__()
        self.registry = Shares.one

    async def __aenter__(self) -> Right:
        self.check_closed()
        self.is_open = True
        for each in self.tools:
            self.registry.replace(each)
        return self

    async def __aexit__(self, *exc_info: object) -> bool | None:
        self.is_open = False
        for each in self.tools:
            if each.name in self.registry:
                self.registry.remove(each.name)
        return None


class WaitsForCalls(Right):
    async def __aexit__(self, *exc_info: object) -> bool | None:
        scopes, self.scopes = self.scopes, set()
        await super().__aexit__(*exc_info)
        self.scopes = scopes
        return None

    async def close(self) -> None:
        if getattr(self, "used", 0):
            await anyio.sleep(30)

    async def find(self, word: Annotated[str, Field(description="The word.")]) -> str:
        """Find a word."""
        self.check_open()
        self.used = getattr(self, "used", 0) + 1
        try:
            await anyio.sleep(0.05)
            return word
        finally:
            self.used -= 1


class BreaksUnderCalls(Right):
    async def find(self, word: Annotated[str, Field(description="The word.")]) -> str:
        """Find a word."""
        try:
            return await super().find(word)
        except ToolError:
            if "closed" in self.__dict__:
                raise
            raise ValueError("I/O operation on closed file") from None

    def check_open(self) -> None:
        self.__dict__.pop("closed", None)
        if not self.is_open:
            self.closed = True
        super().check_open()


class WrapsExceptions(Right):
    async def __aexit__(self, *exc_info: object) -> bool | None:
        await super().__aexit__(*exc_info)
        if isinstance(exc_info[1], Exception):
            raise ExceptionGroup("of the shelf", [exc_info[1]])
        return None


class SwallowsCancellation(Right):
    async def __aexit__(self, *exc_info: object) -> bool | None:
        await super().__aexit__(*exc_info)
        return isinstance(exc_info[1], anyio.get_cancelled_exc_class())


class LeavesAFileWhenItsOpeningIsCancelled(Right):
    async def __aenter__(self) -> Right:
        try:
            return await super().__aenter__()
        except anyio.get_cancelled_exc_class():
            leaves_a_file_open()[0][0]()
            raise


class LeavesAThread(Right):
    async def close(self) -> None:
        if getattr(self, "was_called", False):
            leaves_a_thread()[0][0]()

    def check_open(self) -> None:
        super().check_open()
        self.was_called = True
