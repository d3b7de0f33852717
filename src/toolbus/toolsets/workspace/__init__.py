"""Read-only tools over a directory: list its files, search their text, read lines.

`workspace_tools(root)` makes the three tools for one root. The package knows tools, results and the files below the
root. It must not know the model or the runtime that calls the tools, and must not write. Its invariants:

1. The tools cannot leave the root, and skip binary and ignored files (see `_files`). Without this a model could read
   secrets, or fill its context window with data.
2. Every call is bounded in time, in what it reads and in what it returns, and its result says what was cut. Without the
   last part a model would take a part of the matches for all of them.
3. Nothing is kept between calls, because files change. Without this a search could return lines that are gone.
"""

from ._tools import workspace_tools

__all__ = ["workspace_tools"]
