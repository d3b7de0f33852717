"""A web backend around toolbus: questions in, answers and event streams out. See README.md beside this file."""

from .app import create_app

__all__ = ["create_app"]
