"""The conversations of a simulated world: what each turn has to begin with, and people who delete and fork them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio

from ...errors import StoreError
from ...events import RequestStarted
from ...messages import Message, UserMessage
from ...request_result import RequestResult
from ._chance import Chance

if TYPE_CHECKING:
    import anyio.abc

    from ._process import Process
    from ._watch import Watch


class Archive:
    """The ids of the messages that the store has of each conversation, and of those that were deleted.

    `deleted` are the requests whose conversation was deleted after they had ended.
    """

    def __init__(self) -> None:
        self._kept: dict[str, list[str]] = {}
        self._requests: dict[str, set[str]] = {}  # by conversation: the requests that have begun
        self._conversations: dict[str, str] = {}  # by request
        self._began_with: dict[str, list[str]] = {}  # by request: the ids of the messages before its prompt
        self._had: dict[str, int] = {}  # by request: the number of stored messages when it took its turn
        self._given: dict[str, list[str]] = {}  # by request: the ids of the history that it was given
        self.deleted: set[str] = set()

    def adds(self, conversation_id: str, messages: Sequence[Message]) -> None:
        """Note that the store has more messages of a conversation from now on."""
        self._kept.setdefault(conversation_id, []).extend(_ids(messages))

    def deletes(self, conversation_id: str) -> None:
        """Note that the store has nothing of a conversation any more."""
        self._kept.pop(conversation_id, None)
        self.deleted |= self._requests.pop(conversation_id, set())

    def gives(self, request_id: str, history: Sequence[Message]) -> None:
        """Note that a request is about to begin a conversation with its own history."""
        self._given[request_id] = _ids(history)

    def takes_turn(self, request_id: str, conversation_id: str) -> None:
        """Note that a request has its turn: it reads what the store has from now on. Later, it only keeps its turn."""
        self._had.setdefault(request_id, len(self._kept.get(conversation_id, ())))

    def begins(self, request_id: str, conversation_id: str, *, has_turn: bool) -> None:
        """Note that a request begins: if it has its turn, it has to have the messages of all turns before it."""
        if request_id not in self._conversations:
            self._conversations[request_id] = conversation_id
            self._requests.setdefault(conversation_id, set()).add(request_id)
            if not has_turn:
                return
            kept = self._kept.get(conversation_id, ())
            self._began_with[request_id] = [*self._given.get(request_id, ()), *kept]

    def check(self, watch: Watch, result: RequestResult[Any]) -> None:
        """Check that a turn with rounds has begun with the messages of those before it."""
        expected, request_id = self._began_with.get(result.request_id), result.request_id
        if expected is not None and result.rounds:
            found = _ids(result.messages[: result.history_count])
            # After the history was read, and before the turn begins, a late answer may become a note, and a request
            # that is cancelled while it waits for its turn may end.
            least = len(self._given.get(request_id, ())) + self._had.get(request_id, len(expected))
            missing = [each for each in expected[len(found) : least] if not each.endswith("_l")]
            holds = found == expected[: len(found)] and not missing
            watch.note("G34", holds, f"{request_id} begins with {found}, not {expected}")

    def check_sent(self, watch: Watch, request_id: str, messages: Sequence[Message]) -> None:
        """Check that nothing of what was deleted is sent to a model, except in a conversation that was forked."""
        if request_id in self.deleted:
            return  # Its process was suspended, and does not know that another one has ended the request since.
        conversation = self._conversations.get(request_id)
        gone = tuple(f"{each}_" for each in self.deleted if self._conversations[each] == conversation)
        if gone:
            found = [each for each in _ids(messages) if each.startswith(gone)]
            watch.note("G34", not found, f"{request_id} sends {found}, whose conversation was deleted")


def _ids(messages: Sequence[Message]) -> list[str]:
    return [each.message_id for each in messages]


class Archivist:
    """A person who deletes and forks conversations, in one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._archive = process.world.disk.archive

    def listen(self) -> None:
        """Connect to the bus, before anything is published on it."""
        self._process.bus.connect(RequestStarted, self._on_started)

    def _on_started(self, event: RequestStarted) -> None:
        if not event.parent_request_id:
            self._archive.begins(event.request_id, event.conversation_id, has_turn=self._process.has_turns)

    def begin(self, group: anyio.abc.TaskGroup) -> None:
        """Plan what is deleted and forked here."""
        if self._world.has_archivist:
            for number in range(self._chance("archivist").whole(1, 3)):
                name = f"archivist {number}"
                group.start_soon(self._work, name, self._chance(name))

    def _chance(self, name: str) -> Chance:
        return self._world.chance(self._process.named(name))

    async def _work(self, name: str, chance: Chance) -> None:
        """Delete or fork a conversation, then ask something there, and ask again."""
        world = self._world
        conversation = f"c{chance.whole(1, world.conversations)}"
        await anyio.sleep_until(world.moment(chance, chance.pick([1.0, world.model_seconds, 20.0])))
        options = world.options(self._process.named(name))
        with self._process.asking(options):
            if chance.says(0.5):
                await self._process.ask("before", conversation_id=conversation, **options)
                await self._delete(conversation)
                await self._process.ask("anew", conversation_id=conversation, **options)
            else:
                fork = f"{conversation} {self._process.named(name)}"
                history = await self._beginning(conversation, chance)
                await self._process.ask("otherwise", conversation_id=fork, history=history, **options)
                await self._process.ask("and now", conversation_id=fork, **options)

    async def _delete(self, conversation: str) -> None:
        world = self._world
        try:
            if await self._may_delete(conversation):
                await self._process.runtime.store.forget(conversation)
        except (StoreError, OSError):
            world.faults["conversation not deleted"] += 1

    async def _may_delete(self, conversation: str) -> bool:
        """Return whether nothing runs in a conversation. A store with a journal sees to this itself."""
        if self._world.disk.journals:
            return not self._world.disk.given_up  # Without its journal, a request may run beside the deletion.
        runtime = self._process.runtime
        return not any(
            runtime.session(each.request_id) for each in await runtime.requests(conversation_id=conversation)
        )

    async def _beginning(self, conversation: str, chance: Chance) -> list[Message]:
        """Return the messages of a conversation up to one of a person; none if the store does not answer."""
        try:
            history = [*await self._process.runtime.store.history(conversation)]
        except (StoreError, OSError):
            return []
        ends = [place for place, each in enumerate(history) if isinstance(each, UserMessage)]
        self._world.faults["forked"] += 1
        return history[: chance.pick([*ends, len(history)])]
