"""Measure the search for code context: recall and MRR of each way to search, time and memory.

    python benchmarks/code_context.py [--tree DIRECTORY] [--half tuning|held-out] [--misses]

The tree is that of the standard library, without site-packages. The questions are those of
tests/data/code_context_questions.tsv, written by hand from what each function does, mostly in other words than those of
its docstring, before anything was searched: question, file, and the functions or classes that answer it. A result is a
hit when it has lines of one of these.
Every second question is for tuning; the others were looked at as a figure only. Without the extra `code` the rows
with a model are left out, and that is said.
"""

from __future__ import annotations

import argparse
import ast
import resource
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio

from toolbus.errors import MissingExtra
from toolbus.toolsets.code_context import CodeHit, CodeIndex
from toolbus.toolsets.code_context._embedding import load_embedder
from toolbus.toolsets.code_context._ranking import CANDIDATES, Ranked, lexical, reranked
from toolbus.toolsets.code_context._storage import Row, Storage, opened
from toolbus.toolsets.code_context._words import as_query

QUESTIONS = Path(__file__).parents[1] / "tests" / "data" / "code_context_questions.tsv"
TOP_K = 10
Search = Callable[[Storage, str], Sequence[CodeHit]]
Span = tuple[str, int, int]


def questions(tree: Path) -> list[tuple[str, list[Span]]]:
    """Read each question with the lines that answer it. A question whose file is missing is left out."""
    found: list[tuple[str, list[Span]]] = []
    for line in QUESTIONS.read_text(encoding="utf-8").splitlines():
        question, path, names = line.split("\t")
        if (tree / path).is_file():
            spans = definitions((tree / path).read_text(encoding="utf-8"))
            lines = [(path, *spans[name]) for name in names.split("|") if name in spans]
            if lines:
                found.append((question, lines))
                continue
        print(f"left out, not in this tree: {question} ({path})", file=sys.stderr)
    return found


def definitions(text: str) -> dict[str, tuple[int, int]]:
    """The first and the last line of every function and class, by its qualified name."""
    spans: dict[str, tuple[int, int]] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{prefix}.{child.name}" if prefix else child.name
                spans.setdefault(name, (child.lineno, child.end_lineno or child.lineno))
            visit(child, name)

    visit(ast.parse(text), "")
    return spans


def place_of(hits: Sequence[CodeHit], answers: list[Span]) -> int | None:
    """The rank, from 1, of the first hit that contains lines of an answer."""
    for place, hit in enumerate(hits, start=1):
        path, _, lines = hit.id.rpartition("#")
        start, end = map(int, lines.split(":"))
        if any(path == file and start <= last and first <= end for file, first, last in answers):
            return place
    return None


def memory_mb() -> float:
    """The largest amount of memory that this process has used, in MB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1_048_576 if sys.platform == "darwin" else 1_024)


def hits_of(rows: Sequence[tuple[Row, float]]) -> list[CodeHit]:
    """The results of a search, as hits."""
    return [CodeHit(f"{row.path}#{row.start}:{row.end}", row.text, score) for row, score in rows]


def variants() -> dict[str, Search]:
    """The ways to search, by their names in the table."""

    def plain(storage: Storage, question: str) -> list[CodeHit]:
        return hits_of([(row, row.score) for row in storage.search(as_query(question), TOP_K)])

    def tests_last(storage: Storage, question: str) -> list[CodeHit]:
        return hits_of(lexical(storage, as_query(question), TOP_K))

    found: dict[str, Search] = {"words (FTS5)": plain, "words, tests last": tests_last}
    try:
        embedder = load_embedder()
    except MissingExtra as exc:
        print(f"without the model: {exc}", file=sys.stderr)
        return found

    def model(candidates: int) -> Search:
        def search(storage: Storage, question: str) -> list[CodeHit]:
            best = lexical(storage, as_query(question), candidates)
            return hits_of(reranked(storage, embedder, question, best, lambda: None)[:TOP_K])

        return search

    def fused(storage: Storage, question: str) -> list[CodeHit]:
        """Merge both orders by reciprocal rank fusion, with the usual constant, 60."""
        best = lexical(storage, as_query(question), CANDIDATES)
        if not best:
            return []
        query = embedder.embed(question)
        vectors = [row.vector or embedder.embed(row.text) for row, _ in best]
        close = embedder.similarity(query, vectors)
        by_model = sorted(range(len(best)), key=lambda each: -close[each])
        scores = {each: 1 / (61 + each) + 1 / (61 + place) for place, each in enumerate(by_model)}
        order: Ranked = [(best[each][0], score) for each, score in sorted(scores.items(), key=lambda pair: -pair[1])]
        return hits_of(order[:TOP_K])

    found[f"model over the first {CANDIDATES}, vectors not kept yet"] = model(CANDIDATES)
    found[f"model over the first {CANDIDATES}, vectors kept"] = model(CANDIDATES)
    found["model over the first 20"] = model(20)
    found[f"rank fusion of both orders, first {CANDIDATES}"] = fused
    return found


def measure(storage: Storage, asked: list[tuple[str, list[Span]]], search: Search, *, misses: bool) -> str:
    """One row of the table."""
    places: list[int | None] = []
    times: list[float] = []
    for question, answers in asked:
        began = time.perf_counter()
        hits = search(storage, question)
        times.append(time.perf_counter() - began)
        places.append(place_of(hits[:TOP_K], answers))
        if misses and places[-1] is None:
            print(f"    missed: {question}: {[hit.id for hit in hits[:3]]}")
    recall = [sum(place is not None and place <= top for place in places) / len(places) for top in (1, 5, TOP_K)]
    mrr = statistics.fmean(1 / place if place else 0.0 for place in places)
    return (
        f"| {' | '.join(f'{each:.2f}' for each in recall)} | {mrr:.3f} | "
        f"{1_000 * statistics.median(times):.0f} ms | {1_000 * max(times):.0f} ms |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--half", choices=["tuning", "held-out"])
    parser.add_argument("--misses", action="store_true")
    parser.add_argument("--cache", type=Path, help="keep the index here, for the next run")
    options = parser.parse_args()
    tree: Path = options.tree.resolve()
    asked = questions(tree)
    asked = asked[::2] if options.half == "tuning" else asked[1::2] if options.half else asked
    with tempfile.TemporaryDirectory() as folder:
        index = CodeIndex(tree, cache_dir=options.cache or folder)
        report = anyio.run(index.refresh)
        again = anyio.run(index.refresh)
        size = index.path.stat().st_size / 1_048_576
        print(
            f"{report.files} files, {report.chunks} chunks: indexed in {report.seconds:.1f} s, looked at again in "
            f"{again.seconds:.2f} s, {size:.0f} MB on disk, {memory_mb():.0f} MB of memory at most\n"
        )
        print(f"{len(asked)} questions\n\n| search | R@1 | R@5 | R@10 | MRR | query, median | query, longest |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        with opened(index.path, lambda: None) as storage:
            for name, search in variants().items():
                print(f"| {name} {measure(storage, asked, search, misses=options.misses)}")
        print(f"\n{memory_mb():.0f} MB of memory at most")


if __name__ == "__main__":
    main()
