"""The contract of stores: its checks bite: who is wrong in one way fails that one. Right ones are in tests/stores."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
import wrong_inboxes as inboxes
import wrong_journals as journals
import wrong_orders as orders
import wrong_stores as wrong

from support.wall_clock import Clock
from toolbus.clock import wall_time_from
from toolbus.errors import ConfigurationError, StoreError
from toolbus.events import FACT_TYPES, Event, decode, encode
from toolbus.messages import Message
from toolbus.records import defaults_of
from toolbus.storage import JournalStore
from toolbus.stores.memory import MemoryStore
from toolbus.testing import ContractBroken, ContractReport, check_store, store_checks, virtual_backends
from toolbus.testing.contracts.store._samples import facts_of_all_types

anyio_backend = virtual_backends()


@pytest.fixture(autouse=True)
def clock() -> Iterator[Clock]:
    clock = Clock()
    with wall_time_from(clock):
        yield clock


async def run(kind: type[wrong.Right], clock: Clock, **options: Any) -> ContractReport:
    options = {"patience_seconds": 3.0, "let_pass": clock.let_pass, **options}
    return await check_store(kind, reopen=lambda store: store.reopened(), **options)


WRONG: dict[str, tuple[type[wrong.Right], ...]] = {
    "histories": (wrong.GivesItsOwnList,),
    "messages": (wrong.ForgetsVendorData,),
    "half-characters": (wrong.RefusesHalfCharacters,),
    "odd-ids": (wrong.StripsIds,),
    "large-messages": (wrong.RefusesLargeTurns,),
    "many-turns": (wrong.RemembersInPieces,),
    "many-turns-of-two-stores": (wrong.WritesHistoriesAnew,),
    "remember-cancelled": (wrong.RemembersHalfWhenCancelled, wrong.RemembersLateWhenCancelled),
    "reads-cancelled": (wrong.BreaksWhenAReadingIsCancelled,),
    "listing": (wrong.ListsByBeginning, wrong.HasWildCardsInPrefixes, wrong.TitlesAreWholePrompts),
    "search": (wrong.HasWildCards, wrong.FoldsAllLetters),
    "forgetting": (wrong.AlwaysForgets,),
    "closing": (wrong.RemembersNothingWhenClosed,),
    "appends": (journals.StartsAtSteps,),
    "requests": (journals.ForgetsWhatWasAgreed, journals.CountsMilliseconds),
    "facts-of-all-types": (journals.ForgetsMetadata,),
    "own-facts": (journals.KeepsTheObjects,),
    "half-characters-of-facts": (journals.RefusesHalfCharactersInFacts,),
    "large-facts": (journals.CutsLargeFacts,),
    "sizes": (journals.TellsTheStepsSize,),
    "many-sessions": (journals.ShowsHalfSteps,),
    "begun-twice": (journals.BeginsAgain,),
    "positions": (journals.LeavesNoGaps, journals.SaysNotWhy),
    "two-writers": (journals.LooksBeforeItWrites,),
    "taking-turns": (journals.KeepsEndsInMind,),
    "begin-cancelled": (journals.BeginsInPart,),
    "append-cancelled": (journals.WritesInPart, journals.WritesLate),
    "reading-facts-cancelled": (journals.BreaksWhenAReadingOfFactsIsCancelled,),
    "ending-cancelled": (journals.EndsInPart,),
    "endings": (journals.KeepsLeasesOfTheEnded,),
    "short-requests": (journals.NeverEndsAtOnce,),
    "order-of-endings": (journals.PutsTurnsInFront,),
    "messages-after-the-ending": (journals.AppendsForDeletedRequests,),
    "listing-of-turns": (journals.ListsTheRememberedAlone,),
    "atomic-endings": (journals.EndsBeforeItRemembers,),
    "many-endings": (journals.EndsInPieces,),
    "abandoning": (journals.AbandonsForAnybody, journals.AbandonsWhatHasEnded),
    "forgetting-requests": (journals.ForgetsWhatCanBeTaken, journals.ForgetsWhatIsComing),
    "pruning": (journals.PrunesTheMomentToo, journals.PrunesTheUnfinished),
    "pruning-conversations": (journals.PrunesBusyConversations,),
    "statistics": (journals.CountsNoConversations, journals.LeavesBytes),
    "shared-texts": (journals.DeletesSharedTexts,),
    "unfinished": (journals.ListsTheNewestFirst, journals.BoundsBeforeItLooks),
    "listing-requests": (
        journals.ListsTheOldestFirst,
        journals.MixesConversations,
        journals.MixesOwners,
        journals.BoundsAllRequests,
    ),
    "taking": (journals.TakesFromItself,),
    "lease-lengths": (journals.TakesForMilliseconds,),
    "running-out": (journals.LosesWhatHasRunOut, journals.NeverRenewsTheLate),
    "renewing": (journals.RenewsForAll,),
    "giving-back": (journals.ReleasesForAnybody,),
    "one-taker": (journals.LooksBeforeItTakes,),
    "one-taker-of-two-stores": (journals.LocksInItsProcess,),
    "fencing": (journals.NamesTheNewestLease,),
    "fencing-of-two-stores": (journals.KeepsEpochsInMind,),
    "ended-elsewhere": (journals.KeepsEndingsInMind,),
    "fencing-in-flight": (journals.LooksAtItsLeaseFirst,),
    "turns": (orders.GivesTheTurnToAnybody, orders.KeepsTheTurnOfTheEnded),
    "turns-of-one-owner": (orders.MakesAnOwnerWaitForItself,),
    "turns-given-back": (orders.ReturnsTheTurnOfAnybody, orders.NeverReturnsTheTurn),
    "turns-lost": (orders.BeginsWithoutTheTurn, orders.LeavesLeasesThatHaveRunOut, orders.RenewsALostTurn),
    "turns-of-continued-requests": (
        orders.MakesContinuedRequestsWaitForEachOther,
        orders.ForgetsTheTurnOfWhatRuns,
    ),
    "turns-of-parked-requests": (orders.KeepsTheTurnOfTheParked,),
    "turns-after-deletions": (orders.PrunesTheTurnsOfWhatRuns, orders.KeepsTheTurnOfThePruned),
    "one-turn": (orders.LooksBeforeItTakesTheTurn,),
    "one-turn-of-two-stores": (orders.OrdersTurnsInItsProcess,),
    "turns-lost-in-flight": (orders.LooksAtItsTurnFirst,),
    "inbox": (
        inboxes.GivesTheNewestFirst,
        inboxes.BoundsBeforeItLeavesOut,
        inboxes.GivesTheInputsOfAll,
        inboxes.GivesTheInputsOfOtherRequests,
        inboxes.BoundsBeforeItChoosesTheRequest,
        inboxes.SettlesAgain,
    ),
    "inbox-sent-twice": (inboxes.SendsAgain, inboxes.JoinsIds),
    "inbox-endings": (inboxes.KeepsWhatNobodyTakes,),
    "inbox-appends": (inboxes.TakesBeforeItAppends, inboxes.NeverTakes),
    "inbox-bound": (inboxes.HasNoBound,),
    "inbox-deleted": (inboxes.KeepsInputs,),
    "inbox-parking": (inboxes.ParksWhatHasInputs, inboxes.SleepsOn),
    "inbox-of-the-next-holder": (inboxes.RemembersTheHolder,),
    "closing-with-a-journal": (wrong.AppendsNothingWhenClosed,),
    "survival": (wrong.ForgetsForItselfAlone,),
    "survival-of-requests": (wrong.GivesLeasesBackWhenClosed,),
    "seen-at-once": (wrong.KeepsHistoriesInMind,),
    "closed-while-writing": (wrong.DropsItsQueue,),
}
"""By check, the stores that fail it."""

ALSO: dict[type[wrong.Right], set[str]] = {
    wrong.ForgetsVendorData: {"survival"},
    wrong.RemembersInPieces: {"many-turns-of-two-stores"},
    wrong.BreaksWhenAReadingIsCancelled: {"many-turns"},
    wrong.ListsByBeginning: {"listing-of-turns"},
    journals.ForgetsWhatWasAgreed: {"forgetting-requests", "half-characters-of-facts"},
    journals.BeginsAgain: {"two-writers"},
    journals.TellsTheStepsSize: {"taking-turns"},
    journals.BreaksWhenAReadingOfFactsIsCancelled: {"many-sessions"},
    wrong.RemembersNothingWhenClosed: {"survival"},
    journals.CountsMilliseconds: {
        "endings",
        "pruning",
        "pruning-conversations",
        "unfinished",
        "listing-requests",
        "taking",
        "lease-lengths",
        "renewing",
    },
    journals.ForgetsMetadata: {"survival-of-requests"},
    journals.SaysNotWhy: {"two-writers"},
    journals.KeepsLeasesOfTheEnded: {"short-requests", "listing-requests"},
    journals.PutsTurnsInFront: {"shared-texts", "listing-of-turns"},
    journals.ListsTheRememberedAlone: {"many-endings", "pruning-conversations"},
    journals.KeepsEpochsInMind: {
        "fencing-in-flight",
        "turns-lost",
        "turns-lost-in-flight",
        "turns-of-continued-requests",
    },
    journals.LooksAtItsLeaseFirst: {"turns-lost-in-flight"},
    orders.LeavesLeasesThatHaveRunOut: {"turns-lost-in-flight", "turns-of-continued-requests"},
    journals.AbandonsForAnybody: {"fencing", "fencing-of-two-stores"},
    journals.PrunesTheMomentToo: {"pruning-conversations"},
    journals.BoundsBeforeItLooks: {"seen-at-once", "survival-of-requests", "fencing-of-two-stores"},
    journals.LeavesBytes: {"shared-texts"},
    journals.LosesWhatHasRunOut: {
        "forgetting-requests",
        "fencing",
        "fencing-of-two-stores",
        "seen-at-once",
        "turns-lost",
        "turns-lost-in-flight",
    },
    journals.ReleasesForAnybody: {"fencing", "fencing-of-two-stores"},
    journals.LooksBeforeItTakes: {"one-taker-of-two-stores"},
    journals.NamesTheNewestLease: {"fencing-of-two-stores"},
    orders.GivesTheTurnToAnybody: {
        "turns-of-one-owner",
        "turns-given-back",
        "turns-of-continued-requests",
        "turns-after-deletions",
        "one-turn",
        "one-turn-of-two-stores",
        "turns-lost",
        "turns-lost-in-flight",
    },
    orders.BeginsWithoutTheTurn: {"turns-lost-in-flight"},
    orders.KeepsTheTurnOfTheEnded: {
        "turns-lost",
        "turns-given-back",
        "turns-of-continued-requests",
        "turns-of-parked-requests",
        "turns-after-deletions",
    },
    orders.NeverReturnsTheTurn: {"forgetting-requests", "turns-lost"},
    orders.PrunesTheTurnsOfWhatRuns: {"pruning-conversations"},
    orders.MakesAnOwnerWaitForItself: {"turns", "turns-lost", "turns-of-continued-requests"},
    orders.LooksBeforeItTakesTheTurn: {"one-turn-of-two-stores"},
    inboxes.GivesTheNewestFirst: {"inbox-appends", "inbox-of-the-next-holder"},
}
"""What a store that fails one check cannot but fail too."""
COSTLY = {name for name in WRONG if name.startswith("large-") or "cancelled" in name}
"""Looked at only where they are what has to fail."""
KINDS = [pytest.param(check, kind, id=kind.__name__) for check, kinds in WRONG.items() for kind in kinds]


async def test_a_right_store_keeps_the_contract(clock: Clock) -> None:
    report = await run(wrong.Right, clock)
    assert report == ContractReport(tuple(store_checks()), ())


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize(("check", "kind"), KINDS)
async def test_a_store_that_is_wrong_in_one_way_fails_the_check_for_it_and_no_other(
    check: str, kind: type[wrong.Right], clock: Clock
) -> None:
    with pytest.raises(ContractBroken) as caught:
        await run(kind, clock, without=COSTLY - {check})
    assert {*caught.value.checks} - ALSO.get(kind, set()) == {check}, str(caught.value)


def test_each_check_has_a_store_that_fails_it() -> None:
    assert list(WRONG) == list(store_checks())


# ------------------------------------------------------------------------------------------------- the report


async def test_a_report_names_each_check_with_what_was_expected_and_what_came(clock: Clock) -> None:
    class Wrong(wrong.AlwaysForgets):
        async def history(self, conversation_id: str) -> Sequence[Message]:
            return (await super().history(conversation_id))[-2:]

    with pytest.raises(ContractBroken) as caught:
        await run(Wrong, clock, only=["histories", "forgetting", "sizes"])
    lines = str(caught.value).splitlines()
    assert lines[0] == "the store breaks its contract in 2 of 3 checks"
    assert lines[2:5] == ["histories: the number of messages in the history", "    expected: 4", "    got:      2"]
    assert lines[6] == "histories: the history, at message 0"
    assert "content='first'" in lines[7]
    assert "content='third'" in lines[8]
    assert caught.value.checks == ("histories", "forgetting")


async def test_a_store_that_raises_or_hangs_is_reported_and_the_other_checks_go_on(clock: Clock) -> None:
    class Breaks(wrong.Right):
        async def forget(self, conversation_id: str) -> bool:
            raise ZeroDivisionError("a bug of mine")

        async def renew(self, owner: str, seconds: float) -> Collection[str]:
            await anyio.sleep_forever()
            return ()

        async def aclose(self) -> None:
            raise StoreError("will not close")

    with pytest.raises(ContractBroken) as caught:
        checks = ["histories", "forgetting", "sizes", "renewing", "giving-back"]
        await run(Breaks, clock, only=checks, patience_seconds=0.05)
    assert caught.value.checks == ("forgetting", "renewing", "closing")
    breaks, closes = Breaks.forget.__code__.co_firstlineno + 1, Breaks.aclose.__code__.co_firstlineno + 1
    assert [(each.what, each.got) for each in caught.value.failures] == [
        ("the check", f"ZeroDivisionError: a bug of mine at {__file__}:{breaks}"),
        ("the store after the check", f"StoreError: will not close at {__file__}:{closes}"),
        ("the check", "it did not in 0.05 s"),
        ("the store after the check", f"StoreError: will not close at {__file__}:{closes}"),
        ("the store after all checks", f"StoreError: will not close at {__file__}:{closes}"),
    ]


async def test_what_is_raised_around_a_check_is_not_the_stores(clock: Clock) -> None:
    class Interrupts(wrong.Right):
        async def forget(self, conversation_id: str) -> bool:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await run(Interrupts, clock, only=["forgetting"])
    with anyio.move_on_after(0) as scope:
        await run(wrong.Right, clock)
    assert scope.cancelled_caught


async def test_without_a_journal_or_a_second_store_the_checks_about_these_are_left_out(clock: Clock) -> None:
    report = await check_store(MemoryStore, let_pass=clock.let_pass)
    assert "messages" in report.passed
    assert {"appends", "fencing", "survival", "two-writers"} < {*report.skipped}
    assert {*report.passed} | {*report.skipped} == {*store_checks()}


async def test_stores_may_be_made_by_coroutines(clock: Clock) -> None:
    made: list[wrong.Right] = []

    async def make() -> wrong.Right:
        made.append(wrong.Right())
        return made[-1]

    async def reopen(store: wrong.Right) -> wrong.Right:
        return store.reopened()

    checks = ["listing", "survival", "search", "seen-at-once"]
    report = await check_store(make, reopen=reopen, only=checks, let_pass=clock.let_pass)
    assert report.passed == ("listing", "search", "survival", "seen-at-once")
    assert len(made) == 3  # one that checks share, and two for those that need an empty one


async def test_a_journal_that_is_gone_ends_the_check(clock: Clock) -> None:
    class Loses(wrong.Right):
        is_open = True

        @property
        def journal(self) -> JournalStore | None:
            return self if self.is_open else None

        async def aclose(self) -> None:
            self.is_open = False

    with pytest.raises(ContractBroken, match="the journal of a store that had one") as caught:
        await run(Loses, clock, only=["closing", "positions"])
    assert caught.value.checks == ("positions",)


async def test_checks_can_be_chosen_and_left_out(clock: Clock) -> None:
    report = await run(wrong.Right, clock, only=["histories", "messages"], without=["messages"])
    assert report == ContractReport(("histories",), ())
    with pytest.raises(ConfigurationError, match="there are no checks hsitories"):
        await run(wrong.Right, clock, only=["hsitories"])


def test_the_facts_of_the_suite_are_of_all_types_and_can_be_read_back() -> None:
    facts = facts_of_all_types(request_id="r", conversation_id="c")
    assert {type(each) for each in facts} == {*FACT_TYPES}
    assert [decode(encode(each)) for each in facts] == facts


@pytest.mark.parametrize("kind", FACT_TYPES)
def test_the_facts_of_the_suite_have_a_value_in_each_field(kind: type[Event]) -> None:
    facts = [each for each in facts_of_all_types(request_id="r", conversation_id="c") if type(each) is kind]
    for name, default in defaults_of(kind).items():
        assert any(getattr(each, name) != default for each in facts), name


def test_every_check_says_what_it_holds() -> None:
    assert all(holds.endswith(".") and len(holds) > 30 for holds in store_checks().values())


def test_the_how_to_page_lists_the_checks() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-store.md"
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert rows == [f"| `{name}` | {holds} |" for name, holds in store_checks().items()]
