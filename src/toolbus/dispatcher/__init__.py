"""The tool dispatcher: runs requested calls and publishes how each ended.

A receiver of `ToolCallRequested`, with workers that are reused. It keeps no timers: a session whose deadline fires
settles the call with a `ToolCallFailed`, and the dispatcher, which watches its calls on the bus, cancels the handler.
It knows the bus and tools, and nothing of sessions or models; when a call's turn has come is `toolbus.scheduling`'s.
"""

from __future__ import annotations

from ._dispatcher import DispatcherStatistics, ToolDispatcher

__all__ = ["DispatcherStatistics", "ToolDispatcher"]
