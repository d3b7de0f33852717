"""The graph that the assistant works on: three cats, and the people around them, in networkx."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# networkx has no type hints.

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, TypeAlias

import networkx as nx

from .selector import Condition

__all__ = ["Edge", "Graph", "Properties", "cats_and_humans"]

Properties: TypeAlias = dict[str, str | int]
Edge: TypeAlias = tuple[str, str]

_CATS = [("Whiskers", "tabby"), ("Mittens", "persian"), ("Shadow", "siamese")]
_STREETS = [
    ["Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ines"],
    ["Jack", "Kim", "Leo", "Mia", "Noah", "Olga", "Paul", "Rosa"],
]


class Graph:
    """A networkx graph whose nodes and edges have descriptive `data`, and the `color` in which they are drawn."""

    def __init__(self) -> None:
        self._graph: Any = nx.DiGraph()

    def add_node(self, node: str, **data: str | int) -> None:
        self._graph.add_node(node, data=data, color="")

    def add_edge(self, one: str, other: str, **data: str | int) -> None:
        self._graph.add_edge(one, other, data=data, color="")

    @property
    def nodes(self) -> dict[str, Properties]:
        """The nodes by id, in the order in which they were added."""
        return dict(self._graph.nodes.data("data"))

    @property
    def edges(self) -> list[tuple[str, str, Properties]]:
        return list(self._graph.edges.data("data"))

    def values(self, name: str) -> list[str | int]:
        """The distinct values that nodes have for a property; empty for an unknown property."""
        return list(dict.fromkeys(data[name] for data in self.nodes.values() if name in data))

    def find(self, conditions: Collection[Condition]) -> dict[str, Properties]:
        """The nodes that fulfil all conditions."""
        return {node: data for node, data in self.nodes.items() if all(each.holds(data) for each in conditions)}

    def edges_of(self, nodes: Collection[str]) -> list[Edge]:
        """The edges that begin or end at any of `nodes`, in the order of `edges`."""
        return [(one, other) for one, other, _ in self.edges if one in nodes or other in nodes]

    def style(self, nodes: Collection[str], edges: Collection[Edge], color: str) -> None:
        for node in nodes:
            self._graph.nodes[node]["color"] = color
        for edge in edges:
            self._graph.edges[edge]["color"] = color

    def colored(self, color: str) -> Iterator[str | Edge]:
        """The nodes, and then the edges, that are drawn in this color."""
        yield from (node for node, its in self._graph.nodes.data("color") if its == color)
        yield from ((one, other) for one, other, its in self._graph.edges.data("color") if its == color)


def cats_and_humans() -> Graph:
    """A graph of 20 nodes: 3 cats, and 17 humans in two streets, who know their neighbours. Every sixth feeds a cat."""
    graph = Graph()
    for number, (name, breed) in enumerate(_CATS, 1):
        graph.add_node(f"cat{number}", name=name, type="cat", breed=breed)
    number = 0
    for street in _STREETS:
        for name in street:
            number += 1
            graph.add_node(f"human{number}", name=name, type="human", age=15 + number * 37 % 60)
            if name != street[0]:
                graph.add_edge(f"human{number - 1}", f"human{number}", relation="knows")
    for cat in range(len(_CATS)):
        graph.add_edge(f"human{6 * cat + 1}", f"cat{cat + 1}", relation="feeds")
    return graph
