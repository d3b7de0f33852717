"""The assistant on a screen: a message for each answer, which is updated in place, and a panel beside them.

The events of the requests drive the screen. Textual runs only on asyncio, so the example does, too.
"""

from __future__ import annotations

from typing import ClassVar

import anyio
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Footer, Input, Static

from toolbus import RequestSession, Runtime
from toolbus.bus import Subscription
from toolbus.errors import ToolbusError
from toolbus.toolsets.code_context import CodeIndex

from .turn import Turn

__all__ = ["CodeAssistant", "show"]

_STYLES = {"✓": "$text-success", "✗": "$text-error", "!": "$text-warning", "…": "$text-muted", "·": ""}


class Message(Static):
    """An answer in one widget: pending at first, then filled piece by piece, then completed, failed or cancelled."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(markup=False)
        self.turn = turn
        self.draw()

    def draw(self) -> None:
        """Show the turn as it stands."""
        turn = self.turn
        parts: list[tuple[str, str]] = [(turn.head, "bold")]
        parts += [(f"\n{line}", _STYLES[line.mark]) for line in turn.lines]
        if turn.text:
            parts.append((f"\n\n{turn.text}", ""))
        self.update(Content.assemble(*parts))
        self.set_classes(turn.status)


class CodeAssistant(App[None]):
    """The application: questions below, messages above, the newest request on the right. The runtime must run."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel the request"),
        Binding("ctrl+c,ctrl+q", "quit", "Quit", priority=True),
    ]
    CSS = """
    #messages { padding: 0 1; }
    #panel { width: 38; max-width: 40%; height: 100%; padding: 0 1; border-left: solid $primary; }
    .you { margin-top: 1; text-style: bold; color: $text-primary; }
    Message { margin-top: 1; padding-left: 1; border-left: thick $warning; }
    Message.completed { border-left: thick $success; }
    Message.failed, Message.stopped { border-left: thick $error; }
    Message.cancelled { border-left: thick $foreground 40%; }
    """

    def __init__(self, runtime: Runtime, about: str) -> None:
        """`about` is the text at the foot of the panel: which model answers, and from which sources."""
        super().__init__()
        self.runtime = runtime
        self.index_state = "none"
        self._about = about
        self._sessions: list[RequestSession] = []
        self._turn: Turn | None = None
        self._conversation_id: str | None = None

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield VerticalScroll(id="messages")
            yield Static(id="panel", markup=False)
        yield Input(placeholder="Ask about the code: how is a lease renewed?")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#messages").anchor()  # the view follows the end
        self.query_one(Input).focus()
        self.draw_panel()

    async def on_input_submitted(self, submitted: Input.Submitted) -> None:
        """Begin a request: its message appears at once, and waits its turn if another request is running."""
        question = submitted.value.strip()
        if not question:
            return
        submitted.input.clear()
        try:
            session = self.runtime.start(question, conversation_id=self._conversation_id)
        except ToolbusError as refused:  # too many requests are waiting
            self.notify(str(refused), severity="error")
            return
        events = session.events()  # subscribe before anything is awaited, so that no event is missed
        self._conversation_id = session.conversation_id
        self._sessions.append(session)
        message = Message(Turn(question))
        await self.query_one("#messages").mount(Static(f"You: {question}", markup=False, classes="you"), message)
        self.run_worker(self._follow(session, events, message))

    async def _follow(self, session: RequestSession, events: Subscription, message: Message) -> None:
        async for event in events:
            message.turn.take(event)
            message.draw()
            self._turn = message.turn
            self.draw_panel()
        self._sessions.remove(session)

    def action_cancel(self) -> None:
        """Cancel the running request; those that wait after it still run."""
        for session in self._sessions[:1]:
            session.cancel("you pressed Escape")

    def draw_panel(self) -> None:
        """Show the state of the newest request."""
        turn = self._turn or Turn("", status="ready")
        rows = {
            "Status": turn.doing or turn.status,
            "Round": str(turn.round),
            "Tool calls": str(len(turn.calls)),
            "Tokens in": f"{turn.usage.input_tokens:,}",
            "Tokens out": f"{turn.usage.output_tokens:,}",
            "Index": self.index_state,
        }
        table = "\n".join(f"{name:10} {value}" for name, value in rows.items())
        self.query_one("#panel", Static).update(f"{table}\n\n{self._about}")

    async def prepare(self, index: CodeIndex) -> None:
        """Bring the index up to date, so that the first question need not wait for all of it."""
        self.index_state = "reading the sources"
        try:
            report = await index.refresh()
            self.index_state = f"{report.files:,} files, {report.chunks:,} pieces"
        except ToolbusError as broken:  # the calls for code report the error, too
            self.index_state = str(broken)
        if self.is_running:
            self.call_later(self.draw_panel)


async def show(runtime: Runtime, index: CodeIndex | None, about: str) -> int:
    """Run the screen until the user leaves, cancel what still runs, and return the exit status."""
    app = CodeAssistant(runtime, about)
    async with runtime, anyio.create_task_group() as group:
        if index is not None:
            group.start_soon(app.prepare, index)
        await app.run_async()
        group.cancel_scope.cancel()
    return app.return_code or 0
