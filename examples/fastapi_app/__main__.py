"""A web backend: answers, streams of events and of text, over HTTP. `PORT` is where it listens, 8000 without it."""

import os

import uvicorn

from .app import create_app

if __name__ == "__main__":
    # A stop signal lets running answers end, but not for ever: then the runtime drains, which ends them.
    uvicorn.run(create_app(), port=int(os.environ.get("PORT", "8000")), timeout_graceful_shutdown=20)
