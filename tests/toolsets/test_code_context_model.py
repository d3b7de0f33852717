"""The order that a model gives to what the words have found: with a model made up, and with the real one."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.from_thread
import pytest

from toolbus.errors import MissingExtra
from toolbus.toolsets.code_context import CodeIndex, _embedding

TREE = {
    "pool.py": 'def give_up(lease):\n    """Let a lease go, so that others can take it."""\n\n\ndef renew(lease):\n'
    '    """Hold a lease for longer."""\n',
    "mail.py": 'def send(lease):\n    """Tell people by mail that their lease lease lease ends."""\n',
}

RENEW = TREE["pool.py"].strip().rpartition("\n\n\n")[2]


class Likes(_embedding.Embedder):
    """A model to which a text is close if it holds a word. Counts what it has read."""

    def __init__(self, word: str) -> None:  # loads no model
        self.read: list[str] = []
        self._word = word

    def embed(self, text: str) -> bytes:
        self.read.append(text)
        return b"1" if self._word in text else b"0"

    def similarity(self, query: bytes, vectors: Sequence[bytes]) -> list[float]:
        return [float(each) for each in vectors]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    for name, text in TREE.items():
        (tmp_path / "root" / name).write_text(text)
    return tmp_path / "root"


def index_of(sources: Path, model: Likes) -> CodeIndex:
    index = CodeIndex(sources, cache_dir=sources.parent, rerank=True)
    index._load = lambda: model
    return index


async def test_the_model_orders_what_the_words_have_found(sources: Path):
    model = Likes("longer")
    hits = await index_of(sources, model).hybrid_search("lease", 3)
    assert hits[0].id == "pool.py#5:6"
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert [hit.id for hit in await index_of(sources, model).hybrid_search("lease", 1)] == ["pool.py#5:6"]


async def test_the_model_reads_names_and_docstring_before_the_code(sources: Path):
    model = Likes("longer")
    await index_of(sources, model).hybrid_search("renew", 3)
    assert model.read == ["renew", f"pool: renew. Hold a lease for longer.\n{RENEW}"]


async def test_the_model_reads_each_chunk_once_until_it_changes(sources: Path):
    await index_of(sources, Likes("longer")).hybrid_search("lease", 3)
    model = Likes("longer")
    await index_of(sources, model).hybrid_search("lease", 3)
    assert model.read == ["lease"]
    with (sources / "pool.py").open("a") as file:
        file.write("\n\ndef count(lease):\n    return 1\n")
    await index_of(sources, model).hybrid_search("lease", 3)
    assert [text.partition(".")[0] for text in model.read[1:]] == ["lease", "pool: count"]


async def test_where_the_words_find_nothing_the_model_is_not_asked(sources: Path):
    model = Likes("longer")
    assert await index_of(sources, model).hybrid_search("nowhere", 3) == []
    assert model.read == []


async def test_a_search_is_cancelled_between_two_chunks(sources: Path):
    with anyio.CancelScope() as scope:

        class Cancels(Likes):
            def embed(self, text: str) -> bytes:
                if len(self.read) == 1:
                    anyio.from_thread.run_sync(scope.cancel)
                return super().embed(text)

        model = Cancels("longer")
        await index_of(sources, model).hybrid_search("lease", 3)
    assert scope.cancelled_caught
    assert len(model.read) == 2


async def test_a_search_that_is_cancelled_while_its_model_is_loaded_asks_it_nothing(sources: Path):
    model = Likes("longer")
    with anyio.CancelScope() as scope:

        def load() -> Likes:
            anyio.from_thread.run_sync(scope.cancel)
            return model

        index = index_of(sources, model)
        index._load = load
        await index.hybrid_search("lease", 3)
    assert scope.cancelled_caught
    assert model.read == []


async def test_without_the_extra_the_words_alone_decide_unless_the_model_is_insisted_on(
    sources: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_embedding, "_LIBRARIES", ("a_library_that_nobody_has",))
    hits = await CodeIndex(sources, cache_dir=sources.parent).hybrid_search("hold lease", 3)
    assert hits[0].id == "pool.py#5:6"
    with pytest.raises(MissingExtra, match=r"toolbus\[code\]"):
        CodeIndex(sources, cache_dir=sources.parent, rerank=True)
    monkeypatch.undo()
    monkeypatch.setattr(_embedding, "_WEIGHTS", ("anyio", "no.onnx"))
    with pytest.raises(MissingExtra, match="anyio"):
        _embedding.check_installed()


async def test_the_real_model_finds_what_is_meant_without_a_network(sources: Path):
    index = CodeIndex(sources, cache_dir=sources.parent, rerank=True)
    (best, *_) = await index.hybrid_search("extend the duration of a lease", 3)
    assert best.id == "pool.py#5:6"
    plain = CodeIndex(sources, cache_dir=sources.parent, rerank=False)
    assert (await plain.hybrid_search("extend the duration of a lease", 3))[0].id == "mail.py#1:2"


def test_the_vector_of_a_text_does_not_depend_on_what_was_read_before():
    model = _embedding.load_embedder()
    first = model.embed("a lease")
    model.embed("something else " * 400)
    assert model.embed("a lease") == first
    assert model.similarity(first, [first, first])[0] == pytest.approx(1, abs=0.01)
    assert _embedding.load_embedder() is model


def test_only_the_beginning_of_a_long_text_is_read():
    model, long = _embedding.load_embedder(), "lease " * 150
    assert model.embed(f"{long} cats eat fish") == model.embed(long)


def test_short_texts_are_close_only_if_they_mean_the_same():
    model = _embedding.Embedder()  # a new one: this test is about how it is set up
    vectors = [model.embed(each) for each in ("renew the lease", "hold a lease for longer", "cats eat fish")]
    _, same, other = model.similarity(vectors[0], vectors)
    assert same > 0.7
    assert other < 0.2
