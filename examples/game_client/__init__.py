"""A client for a game behind an MCP server: autoplay and typed input on one conversation. See README.md beside this."""

from .client import play

__all__ = ["play"]
