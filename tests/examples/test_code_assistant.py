"""The code assistant: what its user sees of calls, failures, pending answers and endings, with a screen and without."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# The type checker does not look into examples/ for imports yet.

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from code_assistant.__main__ import main
from code_assistant.assistant import make_runtime
from code_assistant.plain import ask
from code_assistant.screen import CodeAssistant, Message
from code_assistant.scripted import scripted_model
from toolbus.errors import ProviderError
from toolbus.events import RequestCancelled
from toolbus.testing import ScriptedProvider, calls, error, hang, text
from toolbus.toolsets.code_context import CodeHit, CodeIndex

LEASE = 'def renew_lease(lease):\n    """Hold a lease for longer."""\n    return lease.until + 10\n'
CALL = ("request_code_context", {"token_budget": 2_000})


class Gated:
    """A retriever that finds one place for each query, once it may."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.gates: dict[str, anyio.Event] = {}

    async def hybrid_search(self, query: str, top_k: int) -> list[CodeHit]:
        self.asked.append((query, top_k))
        await self.gates.setdefault(query, anyio.Event()).wait()
        return [CodeHit(id=f"{query}.py#1:2", text=f"# {query}", score=0.5)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "lease.py").write_text(LEASE)
    return tmp_path


# ------------------------------------------------------------------------------------------------- without a screen


async def test_the_script_asks_for_code_by_the_question_and_by_its_names_and_answers_from_what_it_was_sent(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = CodeIndex(tree, rerank=False, cache_dir=tree / ".cache")
    await ask(make_runtime(scripted_model(0), tree, index), index, "How is a lease held for longer by `renew_lease`?")
    shown = capsys.readouterr().out
    assert (
        "✓ request_code_context query='How is a lease held for longer by `renew_lease`?' top_k=10: found 1\n" in shown
    )
    assert "✓ request_code_context query='renew_lease' top_k=5: found 1\n      lease.py#1:3 " in shown
    assert "Assistant (completed)\n\nLook at lease.py#1:3:\n\n    def renew_lease(lease):" in shown
    assert "no language model took part" in shown
    assert "[rounds: 2; tool calls: 2; tokens: " in shown


@pytest.mark.parametrize(
    ("arguments", "retriever", "why"),
    [
        ({"token_budget": 9}, None, "there is no retriever"),
        ({"hint": "lease"}, None, "token_budget"),
        ({"token_budget": 9}, Gated, "did not answer in 30 s"),
    ],
    ids=["no retriever", "invalid arguments", "a retriever that hangs"],
)
@pytest.mark.usefixtures("toolbus_clock")
async def test_a_failed_call_is_shown_with_what_the_model_is_told_and_the_request_goes_on(
    tree: Path,
    arguments: dict[str, object],
    retriever: type[Gated] | None,
    why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = ScriptedProvider([calls(("request_code_context", arguments)), text("I could not look.")])
    turn = await ask(make_runtime(model, tree, retriever and retriever()), None, "What is a lease?")
    failed, read, system = capsys.readouterr().out.split("  ✗ ")[1].splitlines()[:3]
    assert failed.startswith("request_code_context")
    assert read.startswith('  ! the model reads: {"ok":false,')
    assert system.startswith("  ! system: request_code_context failed (")
    assert all(why in line for line in (failed, read, system))
    assert [each.role for each in model.requests[1].messages[-2:]] == ["tool", "system"]
    assert (turn.status, turn.text) == ("completed", "I could not look.")


def test_main_answers_from_a_folder_without_a_screen(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tree / ".cache"))
    assert main(["--ask", "What is a lease?", "--dir", str(tree), "--words-only"]) == 0
    assert "Look at lease.py#1:3:" in capsys.readouterr().out
    assert main(["--ask", "What is a lease?", "--dir", str(tree), "--no-index"]) == 0
    assert "I cannot answer that. The search failed: there is no retriever" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], 'the screen needs a terminal; for pipes there is --ask "QUESTION"'),
        (["--ask", " "], "the question is empty"),
        (["--ask", "x", "--dir", "/no/such"], "/no/such"),
        (["--ask", "x", "--provider", "nobody:x"], "there is no provider 'nobody:x'"),
    ],
)
def test_what_cannot_be_done_is_reported_in_a_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    reported = capsys.readouterr().err
    assert reported.startswith("code_assistant: ")
    assert said in reported
    assert reported.count("\n") == 1


# ------------------------------------------------------------------------------------------------- with a screen


class Seen:
    """A running assistant, as its user sees it."""

    def __init__(self, app: CodeAssistant, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    async def ask(self, question: str) -> Message:
        self.app.query_one(Input).value = question
        await self.pilot.press("enter")
        await self.pilot.pause()
        return self.app.query(Message).last()

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(60):
            while not condition():
                await self.pilot.pause()

    @property
    def panel(self) -> str:
        return str(self.app.query_one("#panel", Static).content)


def shown(message: Message) -> str:
    return str(message.content)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_answer_is_pending_at_once_and_ends_in_place_completed_cancelled_or_failed(tree: Path) -> None:
    retriever = Gated()
    wanted = calls(CALL, ("request_code_context", {"token_budget": 400, "hint": "b"}))
    script = [wanted, text("It is in b."), hang(after="Half \x1b[31man "), error(ProviderError("the key is wrong"))]
    runtime = make_runtime(ScriptedProvider(script), tree, retriever)
    app = CodeAssistant(runtime, "scripted")
    async with runtime, app.run_test(size=(120, 35)) as pilot:
        seen = Seen(app, pilot)

        first = await seen.ask("a")
        await seen.until(lambda: len(retriever.asked) == 2)
        assert retriever.asked == [("a", 10), ("b", 5)]
        await seen.until(lambda: "hint='b'" in shown(first))
        assert shown(first).startswith("Assistant (pending)\n  … request_code_context token_budget=2000\n")
        assert "Status     Looking for code" in seen.panel

        retriever.gates["b"].set()  # the second call's result comes first, and goes to its own line
        await seen.until(lambda: "✓" in shown(first))
        assert [line[:24] for line in shown(first).splitlines()[1:3]] == [
            "  … request_code_context",
            "  ✓ request_code_context",
        ]
        assert "query='b' top_k=5: found 1\n      b.py#1:2 0.50" in shown(first)
        retriever.gates["a"].set()
        await seen.until(lambda: "(completed)" in shown(first))
        assert shown(first).endswith("\n\nIt is in b.")
        assert "Round      2" in seen.panel

        second = await seen.ask("c")
        await seen.until(lambda: shown(second) == "Assistant (pending)\n\nHalf an ")
        third = await seen.ask("d")
        assert shown(third) == "Assistant (pending)"  # it waits its turn
        await pilot.press("escape")
        await seen.until(lambda: "(failed: I could not finish because " in shown(third))
        assert shown(second) == "Assistant (cancelled: you pressed Escape)\n\nHalf an "
        assert list(app.query(Message)) == [first, second, third]
        assert [*second.classes, *third.classes] == ["cancelled", "failed"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_screen_tells_what_is_indexed_and_when_it_is_left_cancels_what_runs(tree: Path) -> None:
    runtime = make_runtime(ScriptedProvider([hang()]), tree, None)
    app = CodeAssistant(runtime, "scripted")
    reasons: list[str] = []
    runtime.bus.connect(RequestCancelled, lambda event: reasons.append(event.reason))
    async with runtime, app.run_test() as pilot:
        seen = Seen(app, pilot)
        await app.prepare(CodeIndex(tree, rerank=False, cache_dir=tree / ".cache"))
        await seen.until(lambda: "Index      1 files, 1 pieces" in seen.panel)
        await seen.ask("a")
        await pilot.press("ctrl+c")
        await seen.until(lambda: not app.is_running)
    assert reasons == ["the runtime is closing"]
