"""The adapter for Ollama's native chat API, over the official `ollama` SDK.

This is the only package that imports the SDK (extra `ollama`), and only when a provider is constructed.
"""

from __future__ import annotations

from ._provider import OllamaProvider

__all__ = ["OllamaProvider"]
