"""A web backend around toolbus, with two chat pages: on `useChat`, and on AG-UI. See README.md beside this file."""

from .app import create_app

__all__ = ["create_app"]
