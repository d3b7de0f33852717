"""A web backend with two chat pages, over HTTP. It listens on `PORT`, or 8000 by default."""

import os

import uvicorn

from .app import create_app

if __name__ == "__main__":
    # After a stop signal, running answers may end for a limited time. Then the runtime drains, which ends the others.
    uvicorn.run(create_app(), port=int(os.environ.get("PORT", "8000")), timeout_graceful_shutdown=20)
