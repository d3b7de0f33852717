r"""`request_code_context`: a model asks for the pieces of a source tree that fit a hint, within a budget of tokens.

    Runtime(..., tools=[code_context_tool(CodeIndex("src"))])

`CodeIndex` searches a tree by words; with the extra `code` a small embedding model reorders the hits. An application
may pass any other `Retriever` instead. The package knows files, SQLite and the embedding model. It must not know the
runtime or the model that asks, and writes nothing but the index's file in the user's cache folder. Its invariants:

1. Each search first updates the index from the tree. Without this a model would read code that has changed.
2. The index's file can be made again from the sources, so a damaged one is deleted. Without this a crash could make the
   tool fail in every later search.
3. Everything on which the content of the index depends is part of its file's name. Without this two indexes with
   different options would undo each other's work.
4. A search runs in a thread, checks at each file whether it was cancelled, and keeps what it has indexed. Without this
   the first search of a large tree could not be stopped, or would never come to an end.

Example:
    import tempfile
    from pathlib import Path

    from toolbus.toolsets.code_context import CodeIndex, IndexReport, Retriever, code_context_tool

    root = Path(tempfile.mkdtemp())
    (root / "shop.py").write_text("def renew(lease):\n    lease.until += 30\n")
    index = CodeIndex(root, cache_dir=root / ".cache")
    retriever: Retriever = index  # or your own index
    report: IndexReport = await index.refresh()
    tool = code_context_tool(retriever)  # Runtime(..., tools=[tool])
    print(report.files, tool.name)  # 1 request_code_context
"""

from ._index import CodeHit, CodeIndex, IndexReport, Retriever
from ._tools import code_context_tool

__all__ = ["CodeHit", "CodeIndex", "IndexReport", "Retriever", "code_context_tool"]
