"""Read-only tools over a directory: list its files, search their text, read lines.

`workspace_tools(root)` makes the three tools for one root. They cannot leave it, skip what is binary or ignored, bound
what they return, and say so in the result when they cut. They know nothing of who calls them.
"""

from ._tools import workspace_tools

__all__ = ["workspace_tools"]
