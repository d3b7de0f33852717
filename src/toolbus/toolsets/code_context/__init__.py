"""`request_code_context`: a model asks for the pieces of a source tree that fit a hint, within a budget of tokens.

    Runtime(..., tools=[code_context_tool(CodeIndex("src"))])

`CodeIndex` searches a tree by its words, and where the extra `code` is installed a small model reorders what was found.
Any other `Retriever` may take its place. Read-only, but for the index's file in the user's cache folder.
"""

from ._index import CodeHit, CodeIndex, IndexReport, Retriever
from ._tools import code_context_tool

__all__ = ["CodeHit", "CodeIndex", "IndexReport", "Retriever", "code_context_tool"]
