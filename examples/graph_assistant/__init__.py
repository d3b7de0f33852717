"""An assistant for a graph: questions in words, answers from the results of tools. See README.md."""

from .assistant import ask, make_runtime

__all__ = ["ask", "make_runtime"]
