"""Checks of the texts and schemas of tools, which models read. They run no handler.

`Tool` itself refuses some mistakes when it is made (names that no provider accepts, parameters without a type, options
that contradict each other). These are not checked again.
"""

from __future__ import annotations

from ....core.output import FINAL_ANSWER
from ....core.read_result import READ_RESULT
from ._bench import EXAMPLES, SCHEMA, STRICT, Bench, check, fits, why_no_schema
from ._schemas import defaults_of, not_portable, not_strict, parameters_of

_MAX_DESCRIPTION_CHARS = 1_024  # the limit of Azure OpenAI: "function descriptions are limited to 1,024 characters"


@check("names")
async def names(bench: Bench) -> None:
    """No two names differ only by case, dashes and underscores, and no name is one of toolbus's own tools."""
    seen: dict[str, str] = {}
    for each in bench.tools:
        bench.require(
            f"the name {each.name}",
            "none of toolbus's own",
            f"toolbus offers a tool {each.name}, too",
            ok=each.name not in (FINAL_ANSWER, READ_RESULT.name) or bool(each.spec.control),
        )
        alike = seen.setdefault(each.name.lower().replace("-", "_"), each.name)
        bench.require(f"the name {each.name}", "unlike all others", f"there is {alike}", ok=alike == each.name)


@check("descriptions")
async def descriptions(bench: Bench) -> None:
    """Each tool has a description, of at most 1,024 characters."""
    for each in bench.tools:
        size = len(each.description.strip())
        ok = 0 < size <= _MAX_DESCRIPTION_CHARS
        bench.require(
            f"the description of {each.name}",
            f"1 to {_MAX_DESCRIPTION_CHARS:,} characters",
            f"{size:,}" if size else "none: add a docstring, or description=",
            ok=ok,
        )


@check("parameters")
async def parameters(bench: Bench) -> None:
    """Each parameter of each tool has a description."""
    for each in bench.tools:
        for name, schema in parameters_of(each.parameters).items():
            bench.require(
                f"parameter {name} of {each.name}",
                "a description",
                "none: describe it in the docstring's Args, or by Field(description=...)",
                ok=bool(str(schema.get("description", "")).strip()),
            )


@check("schemas")
async def schemas(bench: Bench) -> None:
    """Each schema is accepted by OpenAI's two APIs, by Anthropic's and by Ollama's, and reaches their models whole."""
    for each in bench.tools:
        for problem in (*filter(None, [why_no_schema(each.parameters)]), *not_portable(each.parameters)):
            bench.fail(f"the schema of {each.name}", "one for all wires", problem)


@check("strict-mode", STRICT)
async def strict_mode(bench: Bench) -> None:
    """Each schema uses only the JSON Schema of strict mode: all properties are required, and no others are allowed."""
    for each in bench.tools:
        for problem in not_strict(each.parameters):
            bench.fail(f"the schema of {each.name}", "one for strict mode", problem)


@check("defaults", SCHEMA)
async def defaults(bench: Bench) -> None:
    """Each default in a schema is valid for its own schema."""
    for each in bench.tools:
        for path, default, schema in defaults_of(each.parameters):
            if problem := fits(schema, default):
                bench.fail(f"the default {path} of {each.name}", "a value that its schema accepts", problem)


@check("examples", EXAMPLES)
async def examples(bench: Bench) -> None:
    """Each tool that runs here has an example; each example names a tool, and has arguments that the tool accepts."""
    tools = {each.name: each for each in bench.tools}
    called = {each.name for each in bench.examples}
    for each in bench.tools:
        bench.require(
            f"an example of {each.name}", "at least one", "none", ok=each.name in called or not bench.runs_here(each)
        )
    for example in bench.examples:
        tool = tools.get(example.name)
        if tool is None:
            bench.fail(f"the example of {example.name}", f"of one of {', '.join(tools)}", "no such tool exists")
        elif problem := fits(tool.parameters, dict(example.arguments)):
            bench.fail(f"the arguments of the example of {example.name}", "arguments that its schema accepts", problem)
