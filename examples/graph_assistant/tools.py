"""The four tools, and the form in which the model reads their results.

A tool gets the graph as `context.deps`. It lists its changes in `affected`, as "node cat1" or "edge human1-cat1";
toolbus collects them over all rounds of a turn, on the `RequestResult`.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from toolbus import Interceptor, ToolContext, ToolError, ToolResult, ToolRetry, tool
from toolbus.events import ToolCallRequested
from toolbus.records import replace
from toolbus.tool_results import RenderedResult

from .graph import Graph
from .selector import read_selector

__all__ = ["TOOLS", "ResultForm", "affected_edges", "affected_nodes"]

_MAX_VALUES = 10


@tool(sequential=True, kind="query", status="Taking samples of {target}")
async def sample_data(
    target: Literal["nodes", "edges"], context: ToolContext[Graph], count: Annotated[int, Field(ge=1, le=100)] = 3
) -> ToolResult:
    """Return a few nodes or edges with their data: the first ones of the graph.

    Args:
        target: Nodes or edges.
        count: The number of samples.
    """
    graph = context.deps
    nodes: list[dict[str, Any]] = [{"id": node, "data": data} for node, data in graph.nodes.items()]
    edges: list[dict[str, Any]] = [{"from": one, "to": other, "data": data} for one, other, data in graph.edges]
    samples = (nodes if target == "nodes" else edges)[:count]
    return ToolResult(message=f"Returned {len(samples)} {target[:-1]} samples.", data={target: samples})


@tool(sequential=True, kind="query", status="Looking at the graph as a whole")
async def query_graph(
    query: Literal["node_count", "edge_count", "node_types"], context: ToolContext[Graph]
) -> ToolResult:
    """Return figures of the whole graph.

    Args:
        query: The number of nodes, the number of edges, or the types of nodes with the number of each.
    """
    graph = context.deps
    if query == "node_types":
        types = [str(data["type"]) for data in graph.nodes.values()]
        counts = {each: types.count(each) for each in dict.fromkeys(types)}
        return ToolResult(message=f"There are {len(counts)} types of nodes.", data={"node_types": counts})
    things, count = ("nodes", len(graph.nodes)) if query == "node_count" else ("edges", len(graph.edges))
    return ToolResult(message=f"The graph has {count} {things}.", data={query: count})


@tool(sequential=True, kind="query", status="Looking for nodes where {selector}")
async def find_nodes(selector: Annotated[str, Field(max_length=500)], context: ToolContext[Graph]) -> ToolResult:
    """Find the nodes whose properties fulfil a selector. If no node does, return the values that exist.

    Args:
        selector: For example type == 'cat', or type == 'human' and age > 30. Write texts in quotes.
    """
    graph = context.deps
    try:
        conditions = read_selector(selector)
    except ValueError as wrong:
        raise ToolRetry(str(wrong)) from wrong
    known = list(dict.fromkeys(name for data in graph.nodes.values() for name in data))
    for each in conditions:
        if each.name not in known:
            raise ToolRetry(f"no node has a property {each.name!r}; the properties are {', '.join(known)}")
    found = graph.find(conditions)
    data: dict[str, Any] = {
        "node_ids": list(found),
        "names": [each["name"] for each in found.values()],
        "count": len(found),
    }
    if not found:
        data["available"] = {each.name: graph.values(each.name)[:_MAX_VALUES] for each in conditions}
    return ToolResult(message=f"Found {len(found)} nodes.", data=data)


@tool(sequential=True, kind="action", status="Coloring nodes {color}")
async def style_nodes(
    node_ids: Annotated[list[str], Field(min_length=1)],
    color: Annotated[str, Field(pattern="^#[0-9a-fA-F]{6}$")],
    context: ToolContext[Graph],
    with_edges: bool = False,  # noqa: FBT001, FBT002 -- the model passes it by name
) -> ToolResult:
    """Draw nodes in a color.

    Args:
        node_ids: The ids of the nodes, as find_nodes returns them.
        color: The color, such as #0000ff.
        with_edges: Draw their edges in this color, too.
    """
    graph = context.deps
    unknown = [each for each in node_ids if each not in graph.nodes]
    if unknown:
        raise ToolError(f"there is no node {', '.join(unknown)}; find_nodes returns the ids that exist")
    nodes = list(dict.fromkeys(node_ids))
    edges = graph.edges_of(nodes) if with_edges else []
    graph.style(nodes, edges, color)
    return ToolResult(
        message=f"Styled {len(nodes)} nodes.",
        data={"styled_count": len(nodes), "color": color},
        affected=[*(f"node {each}" for each in nodes), *(f"edge {one}-{other}" for one, other in edges)],
    )


TOOLS = [sample_data, query_graph, find_nodes, style_nodes]


class ResultForm(Interceptor):
    """An interceptor that gives results their own form: success, message, data, affected_nodes, affected_edges.

    Without it, the model reads toolbus's form: ok, message, data, affected. Failures keep that form.
    """

    async def after_tool(
        self,
        call: ToolCallRequested,  # noqa: ARG002
        result: RenderedResult,
        context: ToolContext[Any],  # noqa: ARG002
    ) -> RenderedResult:
        if result.message is None:
            return result  # the tool has not returned a ToolResult
        answer = json.loads(result.content)  # without data, if the application sends none
        form: dict[str, Any] = {"success": answer["ok"], "message": result.message}
        if "data" in answer:
            form["data"] = answer["data"]
        if nodes := affected_nodes(result.affected):
            form["affected_nodes"] = len(nodes)
        if edges := affected_edges(result.affected):
            form["affected_edges"] = len(edges)
        return replace(result, content=json.dumps(form, ensure_ascii=False))


def affected_nodes(affected: list[str] | tuple[str, ...]) -> list[str]:
    """The nodes among the affected things."""
    return [each.removeprefix("node ") for each in affected if each.startswith("node ")]


def affected_edges(affected: list[str] | tuple[str, ...]) -> list[str]:
    """The edges among the affected things."""
    return [each.removeprefix("edge ") for each in affected if each.startswith("edge ")]
