"""The order of what was found: by words, and then by a model that reads the best of it.

The numbers were chosen by the questions for tuning of benchmarks/code_context.py; docs/explanation/code-context.md has
the figures, and those of what did worse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .._files.scan import is_secondary
from ._embedding import Embedder
from ._storage import Row, Storage
from ._words import split_identifiers

__all__ = ["CANDIDATES", "Ranked", "lexical", "reranked"]

CANDIDATES = 50
"""How many chunks the model orders. Each one that it has not seen before takes it about 35 ms on two cores."""

_SECONDARY_WEIGHT = 0.7
_POOL = 4  # times as many as are wanted, since tests and examples among them move down
_CLOSENESS_WEIGHT = 0.85  # the rest is how well the words fit
_KEPT_AT_ONCE = 10  # vectors, so that a cancelled search has not been for nothing
_DOCSTRING = re.compile(r"(\"\"\"|''')(.*?)\1", re.DOTALL)

Ranked = list[tuple[Row, float]]


def lexical(storage: Storage, words: str, count: int) -> Ranked:
    """The best `count` chunks by their words alone; tests, examples and vendored sources count less."""
    rows = storage.search(words, _POOL * count)
    scored = [(row, row.score * (_SECONDARY_WEIGHT if is_secondary(row.path) else 1.0)) for row in rows]
    return sorted(scored, key=lambda each: -each[1])[:count]


def reranked(
    storage: Storage, embedder: Embedder, question: str, found: Ranked, check: Callable[[], None]
) -> list[tuple[Row, float]]:
    """What was found, by how close each chunk is to the question, and a little by its words. Keeps new vectors."""
    if not found:
        return found
    check()
    query = embedder.embed(question)
    vectors: list[bytes] = []
    new: list[tuple[int, bytes]] = []
    for row, _ in found:
        vector = row.vector
        if vector is None:
            check()
            vector = embedder.embed(_told(row))
            new.append((row.id, vector))
        vectors.append(vector)
        if len(new) == _KEPT_AT_ONCE:
            storage.keep_vectors(new)
            new = []
    if new:
        storage.keep_vectors(new)
    return blended(found, embedder.closeness(query, vectors))


def blended(found: Ranked, closeness: Sequence[float]) -> Ranked:
    """What was found, in a new order; a chunk's words count by their share of the best one's."""
    best = max(score for _, score in found)
    scored = [
        (row, _CLOSENESS_WEIGHT * close + (1 - _CLOSENESS_WEIGHT) * score / best)
        for (row, score), close in zip(found, closeness, strict=True)
    ]
    return sorted(scored, key=lambda each: -each[1])


def _told(row: Row) -> str:
    """What the model reads of a chunk: prose first, since it reads no more than some hundred words."""
    docstring = _DOCSTRING.search(row.text)
    path = row.path.rpartition(".")[0] or row.path
    head = f"{split_identifiers(path)}: {split_identifiers(row.name)}. "
    return f"{head}{docstring[2].strip() if docstring else ''}\n{row.text}"
