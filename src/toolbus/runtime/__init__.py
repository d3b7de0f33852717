"""The runtime: everything put together. It owns the task group, the bus, the dispatcher, the store and admission.

The composition root, and the only module that knows providers and stores by name.
"""

from __future__ import annotations

from ..session import RequestOptions
from ._runtime import Runtime

__all__ = ["RequestOptions", "Runtime"]
