"""The order of hits: by words, and then by an embedding model that reads the best of them.

The numbers were tuned with the tuning questions of benchmarks/code_context.py; docs/explanation/code-context.md has the
results, and those of the alternatives that did worse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ...core.text_structure import is_secondary
from ._embedding import Embedder
from ._storage import Row, Storage
from ._words import split_identifiers

CANDIDATES = 50
"""The number of chunks that the model orders. Each one that it has not seen before takes about 35 ms on two cores."""

_SECONDARY_WEIGHT = 0.7
# The hits read for each hit that is wanted, because tests and examples among them move down.
_POOL = 4
# The weight of the embedding; the rest is that of the words.
_SIMILARITY_WEIGHT = 0.85
# The vectors that are stored at once, so that a cancelled search keeps those before.
_KEPT_AT_ONCE = 10
_DOCSTRING = re.compile(r"(\"\"\"|''')(.*?)\1", re.DOTALL)

Ranked = list[tuple[Row, float]]


def lexical(storage: Storage, words: str, count: int) -> Ranked:
    """Return the best `count` chunks by their words only; tests, examples and vendored sources count less."""
    rows = storage.search(words, _POOL * count)
    scored = [(row, row.score * (_SECONDARY_WEIGHT if is_secondary(row.path) else 1.0)) for row in rows]
    return sorted(scored, key=lambda each: -each[1])[:count]


def reranked(
    storage: Storage, embedder: Embedder, question: str, found: Ranked, check: Callable[[], None]
) -> list[tuple[Row, float]]:
    """Return the hits ordered by their similarity to the question, and a little by their words. Stores new vectors."""
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
            vector = embedder.embed(_model_input(row))
            new.append((row.id, vector))
        vectors.append(vector)
        if len(new) == _KEPT_AT_ONCE:
            storage.keep_vectors(new)
            new = []
    if new:
        storage.keep_vectors(new)
    return blended(found, embedder.similarity(query, vectors))


def blended(found: Ranked, similarity: Sequence[float]) -> Ranked:
    """Return the hits in the blended order; a chunk's lexical score counts relative to the best one."""
    best = max(score for _, score in found)
    scored = [
        (row, _SIMILARITY_WEIGHT * close + (1 - _SIMILARITY_WEIGHT) * score / best)
        for (row, score), close in zip(found, similarity, strict=True)
    ]
    return sorted(scored, key=lambda each: -each[1])


def _model_input(row: Row) -> str:
    """Return the text of a chunk for the model, prose first, because the model reads only about a hundred words."""
    docstring = _DOCSTRING.search(row.text)
    path = row.path.rpartition(".")[0] or row.path
    head = f"{split_identifiers(path)}: {split_identifiers(row.name)}. "
    return f"{head}{docstring[2].strip() if docstring else ''}\n{row.text}"
