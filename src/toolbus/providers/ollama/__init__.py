"""Ollama's native chat over the official `ollama` SDK.

The only module, with its private ones, that imports the SDK (extra `ollama`), and only when a provider is constructed.
"""

from __future__ import annotations

from ._provider import OllamaProvider

__all__ = ["OllamaProvider"]
