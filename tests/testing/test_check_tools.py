"""The contracts of tools and of toolsets: right ones keep them, and who is wrong in one way fails that check."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import wrong_tools as wrong

from toolbus import Tool, ToolContext, ToolError, tool
from toolbus.errors import ConfigurationError, NotRunning
from toolbus.testing import (
    ContractBroken,
    ExampleCall,
    check_tools,
    check_toolset,
    tool_checks,
    toolset_checks,
    virtual_backends,
)

anyio_backend = virtual_backends()
DOCS = Path(__file__).parents[2] / "docs" / "how-to"

# ------------------------------------------------------------------------------------------------- tools

WRONG: dict[str, tuple[Callable[[], wrong.Given], ...]] = {
    "names": (wrong.final_answer, wrong.names_alike),
    "descriptions": (wrong.no_description, wrong.long_description),
    "parameters": (wrong.no_word_on_a_parameter,),
    "schemas": (),  # many: see below
    "strict-mode": (),
    "defaults": (wrong.default_of_another_kind, wrong.default_out_of_bounds),
    "examples": (wrong.no_example, wrong.example_of_nothing, wrong.example_that_does_not_fit),
    "wrong-arguments": (wrong.takes_anything, wrong.external_that_takes_anything),
    "results": (wrong.gives_bytes, wrong.breaks, wrong.gives_another_kind, wrong.breaks_its_output_schema),
    "twice": (wrong.works_once, wrong.one_at_a_time),
    "cancellation": (wrong.deaf, wrong.swallows_its_cancellation),
    "nothing-left": (wrong.leaves_a_thread, wrong.leaves_a_file_open, wrong.leaves_a_temporary_file),
}
"""By check, the tools that fail it."""

SLOW = {"leaves_a_thread", "LeavesAThread"}
"""Those for which the census waits in earnest: on one backend."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the census wait for half a second only, and not for ten. It looks 200 times in any case, also on a machine that stops."""
    monkeypatch.setattr("toolbus.testing.census._PATIENCE_SECONDS", 0.5)


async def failures(given: wrong.Given, **options: Any) -> tuple[str, ...]:
    with pytest.raises(ContractBroken) as caught:
        await check_tools(*given, **options)
    return caught.value.checks


async def test_right_tools_keep_the_contract() -> None:
    report = await check_tools(*wrong.RIGHT)
    assert (report.skipped, {*report.passed, "strict-mode"}) == (("strict-mode",), set(tool_checks()))


def named(each: Any) -> str:
    return str(getattr(each, "__name__", each))


def every_check_on_asyncio(backend_name: str, expected: Sequence[str]) -> Sequence[str] | None:
    """Return the checks to run: on asyncio all of them, which is None, and on trio only those that are expected to fail.

    Asyncio shows that no other check fails: right tools and toolsets pass all checks on both event loops.
    """
    return None if backend_name == "asyncio" else expected


def kinds(table: dict[str, tuple[Any, ...]], *, slow: bool) -> list[tuple[str, Any]]:
    return [(check, kind) for check, each in table.items() for kind in each if (kind.__name__ in SLOW) is slow]


@pytest.mark.parametrize(("check", "make"), kinds(WRONG, slow=False), ids=named)
async def test_tools_that_are_wrong_in_one_way_fail_the_check_for_it_and_no_other(
    check: str, make: Callable[[], wrong.Given], anyio_backend_name: str
) -> None:
    expected = (check, "results") if make is wrong.example_of_nothing else (check,)
    try:
        assert await failures(make(), only=every_check_on_asyncio(anyio_backend_name, expected)) == expected
    finally:
        wrong.clear()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("check", "make"), kinds(WRONG, slow=True), ids=named)
async def test_tools_that_leave_a_thread_fail_the_check_for_it_and_no_other(
    check: str, make: Callable[[], wrong.Given], anyio_backend: str
) -> None:
    try:
        assert await failures(make()) == (check,)
    finally:
        wrong.clear()


def test_each_check_of_tools_has_some_that_fail_it() -> None:
    assert [*WRONG] == [*tool_checks()]


# ------------------------------------------------------------------------------------------------- schemas

TEXT = {"type": "string", "description": "A text."}
SCHEMAS: list[tuple[str, wrong.Given]] = [
    ("anyOf is at the top level", wrong.with_schema({"anyOf": [{"required": []}]}, validate=wrong.nothing)),
    ("its type is 'array'", wrong.of_type("array")),
    ("it is not JSON", wrong.with_property({"default": {1, 2}})),
    ("is not a valid JSON schema", wrong.with_property({"type": "text"})),
    ("$.a: an array needs 'items'", wrong.with_property({"type": "array"})),
    ("$.a[]: an array needs 'items'", wrong.with_property({"type": "array", "items": {"type": ["array", "null"]}})),
    ("$.a: prefixItems does not reach every model", wrong.with_property({"prefixItems": [{"type": "string"}]})),
    (
        "$.a: patternProperties does not reach",
        wrong.with_property({"type": "object", "patternProperties": {"^x": TEXT}}),
    ),
    (
        "$.a.anyOf[1]: not does not reach",
        wrong.with_property({"anyOf": [{"type": "null"}, {"not": {"type": "string"}}]}),
    ),
    ("the name 'filter[id]' is not accepted", wrong.with_property({"type": "string"}, "filter[id]")),
    ("$.a.b: the name 'ü' is not accepted", wrong.nested({"b": {"type": "object", "properties": {"ü": TEXT}}})),
    ("$: 'b' is required, and is not a property", wrong.with_schema(wrong.OBJECT | {"required": ["b"]})),
    ("'#/$defs/Nothing' points to nothing", wrong.with_property({"$ref": "#/$defs/Nothing"})),
    ("'https://example.org/a' points to nothing", wrong.with_property({"$ref": "https://example.org/a"})),
]


@pytest.mark.parametrize(("problem", "given"), SCHEMAS, ids=[each[0] for each in SCHEMAS])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_schema_that_a_provider_refuses_or_does_not_show_is_reported(
    problem: str, given: wrong.Given, anyio_backend: str
) -> None:
    with pytest.raises(ContractBroken) as caught:
        await check_tools(*given, only=["schemas"])
    assert problem in str(caught.value)


STRICT: list[tuple[str, wrong.Given]] = [
    ("$: most may be left out; make it required", wrong.RIGHT),
    ("$.most: strict mode has no default", wrong.RIGHT),
    ("$: it needs additionalProperties: false", wrong.with_schema({"type": "object"})),
    ("$.a.b: it needs additionalProperties: false", wrong.nested({"b": {"type": "object"}})),
    ("$.a: strict mode has no oneOf", wrong.with_property({"oneOf": [TEXT]})),
    ("it is deeper than 10 levels", wrong.deep(11)),
    ("it has 5001 properties; at most 5000 are allowed", wrong.wide(5_001)),
]


@pytest.mark.parametrize(("problem", "given"), STRICT, ids=[each[0] for each in STRICT])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_schema_that_strict_mode_refuses_is_reported_where_strict_mode_is_wanted(
    problem: str, given: wrong.Given, anyio_backend: str
) -> None:
    assert "strict-mode" in (await check_tools(*given, without=["examples"], only=["strict-mode"])).skipped
    with pytest.raises(ContractBroken) as caught:
        await check_tools(*given, only=["strict-mode"], strict=True)
    assert problem in str(caught.value)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_schemas_of_all_kinds_of_types_are_portable_and_those_without_optional_parameters_strict(
    anyio_backend: str,
) -> None:
    report = await check_tools([wrong.of_all_kinds], only=["schemas", "strict-mode", "parameters"], strict=True)
    assert report.passed == ("parameters", "schemas", "strict-mode")


# ------------------------------------------------------------------------------------------------- toolsets

WRONG_TOOLSETS: dict[str, tuple[type[wrong.Right], ...]] = {
    "opening": (wrong.HasOtherToolsEachTime,),
    "before": (wrong.WorksBefore, wrong.BreaksBefore),
    "closing": (wrong.StaysInTheRegistry, wrong.HangsWhenClosed, wrong.BreaksWhenClosed),
    "again": (wrong.LosesItsToolsWhenClosed, wrong.BreaksWhenOpenedAgain),
    "entered-twice": (wrong.OpensTwice, wrong.ForgetsItselfWhenEnteredTwice),
    "two-at-once": (wrong.Shares,),
    "closing-in-calls": (wrong.WaitsForCalls, wrong.BreaksUnderCalls),
    "exceptions-pass": (wrong.WrapsExceptions,),
    "cancelled": (wrong.SwallowsCancellation, wrong.LeavesAFileWhenItsOpeningIsCancelled),
    "all-closed": (wrong.LeavesAThread,),
}
"""By check, the toolsets that fail it."""
ALSO: dict[type[wrong.Right], tuple[str, ...]] = {
    wrong.StaysInTheRegistry: ("cancelled",),
    wrong.HangsWhenClosed: ("closing-in-calls",),
    wrong.BreaksWhenClosed: ("closing-in-calls",),
}
"""What a toolset that fails one check cannot but fail too."""
OF_TOOLSETS = [*toolset_checks()]


async def test_a_right_toolset_keeps_the_contract() -> None:
    report = await check_toolset(wrong.Right, wrong.EXAMPLES)
    every = [*tool_checks(), *toolset_checks()]
    every.remove("strict-mode")
    assert (report.skipped, [*report.passed]) == (("strict-mode",), every)


async def test_a_toolset_for_one_use_keeps_the_contract() -> None:
    assert "again" in (await check_toolset(wrong.CannotBeOpenedAgain, wrong.EXAMPLES, only=OF_TOOLSETS)).passed


async def broken(kind: type[wrong.Right], only: Sequence[str] | None = None) -> tuple[str, ...]:
    with pytest.raises(ContractBroken) as caught:
        await check_toolset(kind, wrong.EXAMPLES, only=only or OF_TOOLSETS)
    wrong.clear()
    return tuple(each for each in caught.value.checks if each not in ALSO.get(kind, ()))


@pytest.mark.parametrize(("check", "kind"), kinds(WRONG_TOOLSETS, slow=False), ids=named)
async def test_a_toolset_that_is_wrong_in_one_way_fails_the_check_for_it_and_no_other(
    check: str, kind: type[wrong.Right], anyio_backend_name: str
) -> None:
    assert await broken(kind, every_check_on_asyncio(anyio_backend_name, [check])) == (check,)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("check", "kind"), kinds(WRONG_TOOLSETS, slow=True), ids=named)
async def test_a_toolset_that_leaves_a_thread_fails_the_check_for_it_and_no_other(
    check: str, kind: type[wrong.Right], anyio_backend: str
) -> None:
    assert await broken(kind) == (check,)


def test_each_check_of_toolsets_has_some_that_fail_it() -> None:
    assert [*WRONG_TOOLSETS] == [*toolset_checks()]
    assert not {*toolset_checks()} & {*tool_checks()}


async def test_a_toolset_that_cannot_be_opened_is_reported() -> None:
    class Breaks(wrong.Right):
        async def __aenter__(self) -> wrong.Right:
            raise ZeroDivisionError("a bug of mine")

    with pytest.raises(ContractBroken, match="ZeroDivisionError: a bug of mine") as caught:
        await check_toolset(Breaks, wrong.EXAMPLES, only=["names", "opening", "exceptions-pass"])
    assert caught.value.checks == ("opening", "exceptions-pass")


# ------------------------------------------------------------------------------------------------- the rest


async def test_a_report_on_tools_names_each_check_with_what_was_expected_and_what_came() -> None:
    with pytest.raises(ContractBroken) as caught:
        await check_tools(*wrong.breaks_its_output_schema())
    assert str(caught.value).splitlines()[:5] == [
        "the tools break their contract in 1 of 11 checks",
        "",
        "results: the result of make",
        "    expected: what the example says",
        '    got:      $: "sum" is a required property',
    ]


async def test_handlers_find_their_dependencies_and_a_message_in_their_context() -> None:
    @tool
    async def who(context: ToolContext[str]) -> list[str]:
        """Who asks."""
        return [context.deps, context.last_user_message]

    await check_tools([who], [ExampleCall("who", output=tuple[str, str])], deps="Ada")
    assert (await check_tools([who])).skipped == (
        *("strict-mode", "examples", "results", "twice", "cancellation", "nothing-left"),
    )


async def test_an_example_of_a_tool_that_needs_deps_is_refused_without_them() -> None:
    class Greets(wrong.Right):
        def __init__(self) -> None:
            super().__init__()
            self.tools = [Tool(handler=self.greet)]

        async def greet(self, context: ToolContext[str]) -> str:
            """Greet the user."""
            return f"Hello {context.deps}."

    refused = pytest.raises(ConfigurationError, match=r"tool 'greet' takes a ToolContext\[str\], and there are no deps")
    with refused:
        await check_tools([Greets().greet], [ExampleCall("greet")])
    with refused:
        await check_toolset(Greets, [ExampleCall("greet")], only=["results", "opening"])
    await check_toolset(Greets, [ExampleCall("greet")], deps="Ada", only=["results", "opening"])


async def test_a_tool_that_runs_in_a_thread_keeps_the_contract() -> None:
    report = await check_tools(
        [Tool(handler=wrong.in_thread, idempotent=True)], [ExampleCall("in_thread", {"word": "a"}, str)]
    )
    assert {"twice", "cancellation", "nothing-left"} < {*report.passed}


async def test_without_the_library_for_schemas_what_needs_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    assert (await check_tools(*wrong.RIGHT)).skipped == ("strict-mode", "defaults")
    assert await failures(wrong.no_description()) == ("descriptions",)


async def test_a_tool_that_makes_requests_of_its_own_has_to_bring_a_stand_in_for_them() -> None:
    @tool
    async def ask(context: ToolContext[None]) -> str:
        """Ask somebody else."""
        try:
            return (await context.ask("What?")).text
        except NotRunning:
            raise ToolError("nobody can be asked") from None

    with pytest.raises(ContractBroken, match="a failure, error: nobody can be asked"):
        await check_tools([ask], [ExampleCall("ask")], only=["results"])


async def test_checks_of_tools_can_be_chosen_and_left_out() -> None:
    report = await check_tools(*wrong.RIGHT, only=["names", "results"], without=["results"])
    assert report.passed == ("names",)
    with pytest.raises(ConfigurationError, match=r"no checks nmaes: see tool_checks\(\)"):
        await check_tools(*wrong.RIGHT, only=["nmaes"])
    with pytest.raises(ConfigurationError, match=r"no checks opne: see tool_checks\(\) and toolset_checks\(\)"):
        await check_toolset(wrong.Right, wrong.EXAMPLES, without=["opne"])


PAIRS: Any = [("greet", {})]
TABLE: Any = {"greet": {}}


@pytest.mark.parametrize(
    ("examples", "reported"),
    [
        (PAIRS, r"examples\[0\] is a tuple \(\('greet', \{\}\)\); pass a list of them, such as \[ExampleCall\("),
        (TABLE, "examples is a dict .*; pass a list of them"),
    ],
)
async def test_examples_of_another_kind_are_refused_with_what_to_pass(examples: Any, reported: str) -> None:
    with pytest.raises(ConfigurationError, match=reported):
        await check_tools(wrong.RIGHT[0], examples)
    with pytest.raises(ConfigurationError, match=reported):
        await check_toolset(wrong.Right, examples)


def test_every_check_of_tools_and_toolsets_says_what_it_holds() -> None:
    assert all(holds.endswith(".") and len(holds) > 30 for holds in (tool_checks() | toolset_checks()).values())


@pytest.mark.parametrize(
    ("page", "checks"), [("write-tools.md", tool_checks()), ("write-a-toolset.md", toolset_checks())]
)
def test_the_how_to_pages_list_the_checks_of_tools_and_toolsets(page: str, checks: dict[str, str]) -> None:
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    table = [line for line in lines[lines.index("## The checks") :] if line.startswith("| `")]
    assert table == [f"| `{name}` | {holds} |" for name, holds in checks.items()]
