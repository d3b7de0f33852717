"""An assistant for a graph: questions in words, answers made of what the tools have found. See README.md."""

from .assistant import ask, make_runtime

__all__ = ["ask", "make_runtime"]
