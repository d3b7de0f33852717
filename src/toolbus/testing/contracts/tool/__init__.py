"""The contracts of tools and of toolsets as one test each: `check_tools` and `check_toolset`.

The package knows tools, the dispatcher and the census, and no model.

Invariants:

1. Handlers run in a real `ToolDispatcher`, on the application's event loop. Called directly, they would miss the
   validation, the cancellation and the threads that they meet in production.
2. A handler runs only with the arguments of an example, or with arguments that its schema refuses. The suite cannot
   know which other calls are harmless.

Example:
    from typing import Annotated

    from pydantic import Field

    from toolbus import tool
    from toolbus.testing.contracts.tool import ExampleCall, check_tools, tool_checks, toolset_checks

    @tool(kind="query")
    async def get_price(drink: Annotated[str, Field(description="The drink's name.")]) -> int:
        "Get the price of a drink, in euros."
        return {"tea": 3}[drink]

    report = await check_tools([get_price], [ExampleCall("get_price", {"drink": "tea"}, output=int)])
    print(len(report.passed) > 3, len(tool_checks()) > 3, len(toolset_checks()) > 3)  # True True True
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

from ...._option_checks import listed, shown
from ....errors import ConfigurationError, MissingExtra
from ....schemas import json_schema_validator
from ....session import tool_registry
from ....tools import ToolLike, ToolRegistry
from .._checks import MAX_WAITS, Check, Checks, ContractReport, run_all, run_check, words_of
from . import _describing, _lifetime, _running
from ._bench import (
    EXAMPLES,
    SCHEMA,
    STRICT,
    Bench,
    ExampleCall,
    MakeToolset,
    OpenToolset,
    ToolsetBench,
    tool_table,
    toolset_table,
)

__all__ = ["ExampleCall", "MakeToolset", "OpenToolset", "check_tools", "check_toolset", "tool_checks", "toolset_checks"]

_OF_TOOLS = tool_table.of(_describing, _running)
_OF_TOOLSETS = toolset_table.of(_lifetime)


def tool_checks() -> dict[str, str]:
    """Return the promise of each check of `check_tools`, by the check's name, in the order in which they run."""
    return _OF_TOOLS.holds()


def toolset_checks() -> dict[str, str]:
    """Return the checks that only `check_toolset` has, in the order in which they run, after those of tools."""
    return _OF_TOOLSETS.holds()


async def check_tools(
    tools: Iterable[ToolLike] | ToolRegistry,
    examples: Sequence[ExampleCall] = (),
    *,
    deps: Any = None,
    strict: bool = False,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    grace_seconds: float = 5.0,
    patience_seconds: float = 10.0,
) -> ContractReport:
    """Check tools: their descriptions and schemas, which models read, and the behaviour of their handlers.

        async def test_my_tools_keep_the_contract():
            await check_tools([forecast], [ExampleCall("forecast", {"city": "Paris"}, output=dict[str, float])])

    `examples` are calls that succeed, at least one for each tool that runs here. The suite makes them several times,
    some at once and some cancelled half way, in this process, and asks nobody for approval: pass tools that touch only
    data of the test. Without examples nothing runs, and the checks that need them are left out. `deps` is in the
    handlers' `ToolContext`. `strict` also requires schemas that OpenAI's strict mode accepts.

    `grace_seconds` is how long a handler may continue after its call is cancelled; a handler that never ends blocks the
    suite. `patience_seconds` bounds each wait for an answer. `only` runs only the named checks, and `without` leaves
    the named ones out; `tool_checks()` lists the names. Two checks need the extra `schema`: without it `defaults` is
    left out, and `wrong-arguments` tries only missing and unknown arguments.

    All checks run, whatever fails. Raises `ContractBroken`, an `AssertionError` that names each check that failed, what
    was expected and what came; `ConfigurationError` for names of checks that do not exist, for objects that are not
    tools or examples, and without `deps` for an example of a tool that needs them. Works on asyncio and trio, also in
    virtual time, where handlers that wait take no time.
    """
    chosen = _OF_TOOLS.chosen(only, without, "tool_checks")
    bench = Bench(_checked(examples), deps=deps, grace_seconds=grace_seconds, patience_seconds=patience_seconds)
    bench.tools = tuple(tool_registry(tools))
    bench.check_deps()
    await _run(chosen, bench, _cannot(examples, strict=strict))
    return bench.report("tools")


async def check_toolset(
    make_toolset: MakeToolset,
    examples: Sequence[ExampleCall],
    *,
    deps: Any = None,
    strict: bool = False,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    grace_seconds: float = 5.0,
    patience_seconds: float = 10.0,
) -> ContractReport:
    """Check a toolset that is opened and closed: an async context manager with its tools in a `registry`.

        async def test_my_toolset_keeps_the_contract(tmp_path):
            await check_toolset(lambda: Notes(tmp_path / "notes"), [ExampleCall("add_note", {"text": "a"})])

    `make_toolset` returns a new toolset, which is not open, with its own registry. The checks of `check_tools` share
    one toolset; each of `toolset_checks()` makes its own. The first of the `examples` shows whether a toolset works,
    so it has to succeed whenever it is called. `grace_seconds` also bounds how long closing may take, and how soon a
    call of a tool of a closed toolset has to fail. For everything else see `check_tools`.
    """
    every: Checks[Any] = Checks(cast("dict[str, Check[Any]]", {**_OF_TOOLS, **_OF_TOOLSETS}))
    chosen = every.chosen(only, without, "tool_checks() and toolset_checks")
    bench = ToolsetBench(
        _checked(examples), make=make_toolset, deps=deps, grace_seconds=grace_seconds, patience_seconds=patience_seconds
    )
    cannot = _cannot(examples, strict=strict)
    try:
        async with bench.opened() as toolset:
            bench.tools = tuple(toolset.registry)
            if not bench.deps_problem:
                await _run([each for each in chosen if each.name in _OF_TOOLS], bench, cannot)
    except Exception as exc:  # opening or closing failed; the checks record their own exceptions
        bench.name = "opening"
        bench.fail("the toolset for the checks of tools", "opened and closed", words_of(exc))
    bench.check_deps()
    await _run([each for each in chosen if each.name in _OF_TOOLSETS], bench, cannot)
    return bench.report("toolset")


def _checked(examples: Any) -> tuple[ExampleCall, ...]:
    advice = "pass a list of them, such as [ExampleCall('forecast', {'city': 'Paris'})]"
    given = listed("examples", examples, advice)
    for index, each in enumerate(given):
        if not isinstance(each, ExampleCall):
            raise ConfigurationError(f"examples[{index}] is {shown(each)}; {advice}")
    return tuple(given)


def _cannot(examples: Sequence[ExampleCall], *, strict: bool) -> set[str]:
    cannot = set[str]()
    if not examples:
        cannot.add(EXAMPLES)
    if not strict:
        cannot.add(STRICT)
    try:
        json_schema_validator({"type": "string"})
    except MissingExtra:
        cannot.add(SCHEMA)
    return cannot


async def _run(checks: Iterable[Check[Any]], bench: Bench, cannot: set[str]) -> None:
    await run_all(checks, bench, cannot, lambda each: run_check(each, bench, MAX_WAITS * bench.patience_seconds))
