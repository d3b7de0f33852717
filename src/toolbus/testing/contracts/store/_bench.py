"""The bench on which a store is checked: it writes, reads, opens the data again, and records failures."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, TypeAlias

import anyio
import anyio.lowlevel

from ....errors import StoreError
from ....events import Event, MessageAppended
from ....messages import AssistantMessage, Message, UserMessage
from ....storage import Ending, Entry, JournalStore, RequestRecord, Store
from .._checks import Checks, Ledger

MakeStore: TypeAlias = Callable[[], Store | Awaitable[Store]]
"""Returns an empty store with its own data."""

Reopen: TypeAlias = Callable[[Any], Store | Awaitable[Store]]
"""Called with a store that `MakeStore` has made; returns another one over the same data, as another process would."""

LetPass: TypeAlias = Callable[[float], Awaitable[object]]
"""Lets the given seconds pass on the store's clock."""

JOURNAL: Final = "journal"
SHARED: Final = "shared"
EMPTY: Final = "empty"
INBOX: Final = "inbox"
"""The needs of a check: a journal; two stores over the same data; an empty store of its own; an inbox."""

HOUR: Final = 3_600.0
SHORT_SECONDS: Final = 0.05
"""The length of a lease that runs out while the check waits."""
MOMENTS: Final[tuple[float, ...]] = (0, 1, 2, 3, 5, 8, 0.0003, 0.001, 0.003)
"""The moments of a cancellation: an int is a number of checkpoints, and a float is a number of seconds."""

_TICK_SECONDS = 0.02  # more than the resolution of any clock: MongoDB's is 1 ms, Windows's 15.6 ms
_numbers = count(1)


class Writing:
    """One request that a check writes to the journal. Knows the next position, and the steps written so far."""

    def __init__(self, bench: Bench, journal: JournalStore, conversation_id: str = "", request_id: str = "") -> None:
        self.bench = bench
        self.journal = journal
        self.request_id = request_id or bench.new_id("request")
        self.conversation_id = conversation_id or bench.new_id("conversation")
        self.epoch = 1
        self.steps: list[Sequence[Event]] = []

    @property
    def facts(self) -> list[Event]:
        """The facts written so far, in order."""
        return [fact for step in self.steps for fact in step]

    def made(self, number: int) -> list[Event]:
        """Make `number` facts, each different from all others."""
        return [
            MessageAppended(
                request_id=self.request_id,
                conversation_id=self.conversation_id,
                message=UserMessage(content=f"fact {next(_numbers)} of {self.request_id}"),
            )
            for _ in range(number)
        ]

    def entry(self, facts: Sequence[Event], *, seq: int | None = None, **options: Any) -> Entry:
        """Return a step at the next position, or at `seq`."""
        options.setdefault("epoch", self.epoch)
        return Entry(
            request_id=self.request_id,
            conversation_id=self.conversation_id,
            seq=len(self.facts) if seq is None else seq,
            facts=facts,
            **options,
        )

    async def begin(
        self,
        *facts: Event,
        owner: str = "worker",
        seconds: float = HOUR,
        has_turn: bool = False,
        **options: Any,
    ) -> int:
        """Begin the request with `facts` (by default one), and return its size in bytes."""
        written = facts or self.made(1)
        entry = self.entry(written, owner=owner, lease_seconds=seconds, has_turn=has_turn, **options)
        return await self._write(entry)

    async def step(self, *facts: Event) -> int:
        """Write a step of `facts` (by default one), and return the size of the request in bytes."""
        return await self._write(self.entry(facts or self.made(1)))

    async def end(self, *messages: Message, ending: Ending = "completed") -> int:
        """Write the last step, and return the size of the request in bytes."""
        return await self._write(self.entry(self.made(1), ending=ending, turn=messages))

    async def _write(self, entry: Entry) -> int:
        size = await self.journal.append(entry)
        self.steps.append(entry.facts)
        return size

    async def record(self, journal: JournalStore | None = None) -> RequestRecord:
        """Return the store's record of the request. Without a record the check ends."""
        record = await (journal or self.journal).request(self.request_id)
        if record is None:
            self.bench.give_up(f"the record of {self.request_id}, which has begun", "a RequestRecord", None)
        return record

    async def is_free(self, journal: JournalStore | None = None) -> bool:
        """Return whether the request is among the unfinished ones whose lease can be taken."""
        return self.request_id in [each.request_id for each in await (journal or self.journal).unfinished()]

    async def expect_facts(self, what: str = "the facts", journal: JournalStore | None = None) -> None:
        """Record a failure unless the facts that can be read are those written, with their positions and steps."""
        expected: list[tuple[int, int, Event]] = []
        for step in self.steps:
            first = len(expected)
            expected += [(first + i, first + len(step) - 1, fact) for i, fact in enumerate(step)]
        got = [(each.seq, each.step_end, each.fact) for each in await (journal or self.journal).facts(self.request_id)]
        if got != expected:
            positions = [each[:2] for each in expected]
            self.bench.expect(f"positions and steps of {what}", positions, [each[:2] for each in got])
            for wanted, given in zip(expected, got, strict=False):
                if wanted[2] != given[2]:
                    self.bench.fail(f"{what}, at position {wanted[0]}", wanted[2], given[2])
                    break

    async def expect_nothing_new(self, what: str, journal: JournalStore | None = None) -> None:
        """Record a failure unless the store has exactly the facts that were written here."""
        await self.expect_facts(f"{self.request_id} after {what}", journal)
        record = await self.record(journal)
        self.bench.expect(f"the number of facts after {what}", len(self.facts), record.fact_count)


@dataclass(eq=False)
class Bench(Ledger):
    """The state of a check: a store, ways to open its data again and to let time pass, and the failures."""

    make: MakeStore
    reopen: Reopen | None
    let_pass: LetPass
    patience_seconds: float
    _common: Store | None = field(default=None, init=False)
    _own: Store | None = field(default=None, init=False)
    _others: list[Store] = field(default_factory=list[Store], init=False)

    # --------------------------------------------------------------------------------------------- stores

    @property
    def store(self) -> Store:
        """The store that is checked: the check's own, or the one that checks share."""
        store = self._own or self._common
        assert store is not None
        return store

    @property
    def journal(self) -> JournalStore:
        """The store's journal, for checks that need `JOURNAL`."""
        return self.journal_of(self.store)

    def journal_of(self, store: Store) -> JournalStore:
        """Return the journal of a store that has one. Without a journal the check ends."""
        if store.journal is None:
            self.give_up("the journal of a store that had one", "a JournalStore", None)
        return store.journal

    async def prepare(self, *, own: bool) -> None:
        """Prepare the store: an empty one for this check only, or the one that checks share."""
        if own:
            self._own = await self._made()
        elif self._common is None:
            self._common = await self._made()

    async def _made(self) -> Store:
        made = self.make()
        return await made if inspect.isawaitable(made) else made

    async def another(self) -> Store:
        """Return one more store over the same data, as another process would open it."""
        assert self.reopen is not None
        opened = self.reopen(self.store)
        other = await opened if inspect.isawaitable(opened) else opened
        self._others.append(other)
        return other

    async def clear(self) -> None:
        """Close the stores that the check has opened, except the one that checks share."""
        while self._others:
            await self._others.pop().aclose()
        if self._own is not None:
            own, self._own = self._own, None
            await own.aclose()

    async def close_all(self) -> None:
        try:
            await self.clear()
        finally:
            if self._common is not None:
                common, self._common = self._common, None
                await common.aclose()

    # -------------------------------------------------------------------------------------------- helpers

    def new_id(self, word: str) -> str:
        """Return an id that nobody else uses."""
        return f"{self.name}-{word}-{next(_numbers)}"

    def writing(
        self, conversation_id: str = "", *, journal: JournalStore | None = None, request_id: str = ""
    ) -> Writing:
        """Return a request that is still to be written."""
        return Writing(self, journal or self.journal, conversation_id, request_id)

    async def begun(self, conversation_id: str = "", *, seconds: float = HOUR, owner: str = "worker") -> Writing:
        """Return a request that has begun."""
        writing = self.writing(conversation_id)
        await writing.begin(seconds=seconds, owner=owner)
        return writing

    async def ended(self, conversation_id: str = "", *messages: Message) -> Writing:
        """Return a request that has begun and ended."""
        writing = await self.begun(conversation_id)
        await writing.end(*messages)
        return writing

    async def history(self, conversation_id: str, store: Store | None = None) -> list[Message]:
        return [*await (store or self.store).history(conversation_id)]

    async def expect_history(
        self, what: str, expected: Sequence[Message], conversation_id: str, store: Store | None = None
    ) -> None:
        """Record a failure unless the history is `expected`: a different length, or the first message that differs."""
        got = await self.history(conversation_id, store)
        self.expect(f"the number of messages in {what}", len(expected), len(got))
        for position, (wanted, given) in enumerate(zip(expected, got, strict=False)):
            if wanted != given:
                self.fail(f"{what}, at message {position}", wanted, given)
                break

    async def tick(self) -> None:
        """Let enough time pass for every clock to show a later time."""
        await self.let_pass(_TICK_SECONDS)

    async def until(self, what: Callable[[], Awaitable[bool]]) -> bool:
        """Let time pass until a condition is true. Returns False after `patience_seconds`."""
        for _ in range(int(self.patience_seconds / _TICK_SECONDS)):
            if await what():
                return True
            await self.tick()
        return await what()

    async def refused(self, what: str, asked: Awaitable[object], kind: type[StoreError] = StoreError) -> None:
        """Record a failure unless `asked` is refused with an error of this kind."""
        try:
            got: object = await asked
        except kind:
            return
        except StoreError as exc:
            got = f"{type(exc).__name__}: {exc}"
        self.fail(what, f"refused with {kind.__name__}", got)


async def interrupted(act: Callable[[], Awaitable[object]], moment: float) -> bool:
    """Do something, cancel it at one of the `MOMENTS`, and return whether it finished nevertheless."""
    done = False

    async def run() -> None:
        nonlocal done
        await act()
        done = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        if isinstance(moment, int):
            for _ in range(moment):
                await anyio.lowlevel.checkpoint()
        else:
            await anyio.sleep(moment)
        tasks.cancel_scope.cancel()
    return done


def turn(text: str) -> list[Message]:
    """Return a turn of two messages."""
    return [UserMessage(content=text), AssistantMessage(text=f"Answer to: {text}")]


CHECKS: Checks[Bench] = Checks()
"""All checks by name."""
check = CHECKS.check
