"""The contract's checks bite: a provider that is wrong in one way fails the check for it, and no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import wrong_providers as wrong

from toolbus.errors import ConfigurationError
from toolbus.protocols import Provider
from toolbus.testing import ContractBroken, check_provider, provider_checks

WRONG: dict[str, tuple[type[wrong.Right], ...]] = {
    "text": (wrong.DropsPieces,),
    "reasoning": (wrong.LosesReasoning,),
    "pieces-at-once": (wrong.EmitsAtTheEnd,),
    "parallel-calls": (wrong.SortsCalls,),
    "split-arguments": (wrong.MixesSplitArguments,),
    "ids-empty": (wrong.SkipsCallsWithoutId,),
    "ids-repeated": (wrong.KeepsOneCallOfAnId,),
    "ids-missing": (wrong.SkipsCallsWithoutId,),
    "empty-arguments": (wrong.WritesNullForNoArguments,),
    "malformed-arguments": (wrong.MendsArguments,),
    "token-limit": (wrong.MendsWhatWasCut,),
    "usage": (wrong.CountsNoCache,),
    "finish-reasons": (wrong.CallsAreAStop,),
    "refusal": (wrong.RefusalsAreAStop,),
    "names": (wrong.NamesNobody,),
    "rate-limit": (wrong.ForgetsRetryAfter,),
    "server-error": (wrong.GivesUpOnServerErrors,),
    "rejection": (wrong.HopesAgainstRejections,),
    "context-overflow": (wrong.DoesNotKnowOverflows,),
    "web-page": (wrong.TakesWebPagesForReplies,),
    "unreachable": (wrong.PassesForeignErrors,),
    "error-in-stream": (wrong.SaysErrorsInStreams,),
    "garbage": (wrong.ReadsOverGarbage,),
    "cut-stream": (wrong.GivesPartsOfReplies,),
    "reset": (wrong.PassesResets,),
    "withheld": (wrong.CallsWithheldEmpty,),
    "no-retries": (wrong.TriesAgain,),
    "keys-stay-secret": (wrong.TellsItsKey,),
    "cancellation": (wrong.SwallowsCancellation, wrong.ShieldsItself),
    "concurrent-calls": (wrong.KeepsTheLastRequest, wrong.OneAtATime),
    "request-untouched": (wrong.WritesIntoTheRequest,),
    "nothing-left-open": (wrong.NeverCloses,),
    "history": (wrong.ForgetsImagesInHistories,),
    "result-images": (wrong.ForgetsImagesOfTools,),
    "settings": (wrong.ForgetsTheTemperature,),
    "tool-choice": (wrong.ForgetsTheToolChoice,),
    "tools": (wrong.ForgetsDescriptions,),
    "native-output": (wrong.ForgetsTheSchema,),
    "native-output-refused": (wrong.DoesNotKnowThatSchemasAreRefused, wrong.ForgetsThatSchemasAreRefused),
}
"""By check, the providers that fail it."""

EDITED = {
    "history-with-odd-ids": wrong.sends_minted_ids_empty,
    "malformed-history": wrong.sends_malformed_arguments_as_null,
}
ALSO = {
    "history": {"history-with-odd-ids"},
    "ids-empty": {"ids-missing"},
    "ids-missing": {"ids-empty"},
    "native-output": {"native-output-refused"},
}
"""What a provider that fails one check cannot but fail too."""

SHORT = 0.2  # seconds: the longest wait for a provider that does nothing, where one that is wrong does just that


async def failures(make: Callable[[str], Provider], *, only: Sequence[str] | None = None, **options: Any) -> set[str]:
    try:
        with pytest.raises(ContractBroken) as caught:
            await check_provider(make, only=only, max_reply_bytes=wrong.LIMIT_BYTES, **options)
    finally:
        while wrong.NeverCloses.left:
            await wrong.NeverCloses.left.pop().aclose()
    return set(caught.value.checks)


ONE_LOOP = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # right providers are checked on both


@ONE_LOOP
@pytest.mark.parametrize(
    ("check", "kind"), [pytest.param(check, kind, id=kind.__name__) for check, kinds in WRONG.items() for kind in kinds]
)
async def test_a_provider_that_is_wrong_fails_the_check_that_is_for_it(
    check: str, kind: type[wrong.Right], anyio_backend: str
) -> None:
    made = await failures(lambda url: kind(wrong.right(url)), only=[check], patience_seconds=SHORT)
    assert made == {check}


@pytest.mark.parametrize("check", EDITED)
async def test_a_provider_that_sends_what_is_wrong_fails_the_check_that_is_for_it(check: str) -> None:
    assert await failures(lambda url: wrong.Edited(url, EDITED[check]), only=[check]) == {check}


async def test_a_provider_that_reads_without_end_fails_the_size_limit() -> None:
    assert await failures(wrong.endless, only=["size-limit", "text"]) == {"size-limit"}


@ONE_LOOP
async def test_a_provider_that_loses_what_has_to_go_back_unread_fails_the_check_for_it(anyio_backend: str) -> None:
    made = await failures(lambda url: wrong.ForgetsSignatures(wrong.responses(url)), dialect="responses")
    assert made == {"opaque-reasoning"}


GROUPS: list[tuple[str, ...]] = [
    (
        "text",
        "parallel-calls",
        "usage",
        "rate-limit",
        "web-page",
        "cut-stream",
        "no-retries",
        "tools",
        "native-output-refused",
    ),
    ("reasoning", "ids-repeated", "finish-reasons", "server-error", "unreachable", "keys-stay-secret", "cancellation"),
    ("malformed-arguments", "refusal", "names", "rejection", "error-in-stream", "tool-choice", "request-untouched"),
    ("token-limit", "context-overflow", "garbage", "reset", "withheld", "history", "ids-empty", "result-images"),
    (
        "pieces-at-once",
        "split-arguments",
        "empty-arguments",
        "concurrent-calls",
        "nothing-left-open",
        "native-output",
        "settings",
    ),
]


@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize("checks", GROUPS, ids=lambda checks: checks[0])
async def test_what_is_wrong_fails_no_other_check(checks: tuple[str, ...], anyio_backend: str) -> None:
    """Several wrongs at a time, since the whole suite has its price: what fails is all of them and nothing else."""

    def make(url: str) -> Any:
        provider: Any = wrong.right(url)
        for check in checks:
            provider = WRONG[check][0](provider)
        return provider

    expected = {each for check in checks for each in ({check} | ALSO.get(check, set()))}
    # Those in `waits` wait for what never comes, and all others have to pass, however slow the machine is.
    waits = {"pieces-at-once", "nothing-left-open"} & {*checks}
    found = await failures(make, only=[each for each in provider_checks() if each not in waits], patience_seconds=60)
    if waits:
        found |= await failures(make, only=[*waits], patience_seconds=SHORT)
    assert found == expected


def test_each_check_has_a_provider_that_fails_it() -> None:
    tested = {*WRONG, *EDITED, "size-limit", "opaque-reasoning"}
    assert set(provider_checks()) - tested == {"cut-late"}  # which is right either way: it holds that nothing is half
    assert {check for group in GROUPS for check in group} | ALSO["ids-empty"] == set(WRONG)


# ------------------------------------------------------------------------------------------------- the report


async def test_a_report_names_each_check_with_what_was_expected_and_what_came() -> None:
    def make(url: str) -> Any:
        return wrong.CountsNoCache(wrong.CallsAreAStop(wrong.right(url)))

    with pytest.raises(ContractBroken) as caught:
        await check_provider(make, only=["usage", "finish-reasons", "text"])
    lines = str(caught.value).splitlines()
    assert lines[0] == "the provider breaks its contract in 2 of 3 checks"
    assert lines[2] == "usage: the usage"
    assert lines[3].startswith("    expected: Usage(input_tokens=1000, output_tokens=200, cached_tokens=600")
    assert lines[4].startswith("    got:      Usage(input_tokens=1000, output_tokens=200, cached_tokens=0")
    assert lines[6:] == [
        "finish-reasons: the finish_reason of a reply that calls",
        "    expected: tool_calls",
        "    got:      stop",
    ]


async def test_a_provider_that_raises_anything_is_reported_and_the_other_checks_go_on() -> None:
    class Breaks(wrong.Right):
        def reply(self, reply: Any) -> Any:
            if reply.message.reasoning:
                raise ZeroDivisionError("a bug of mine")
            return reply

    with pytest.raises(ContractBroken, match="ZeroDivisionError: a bug of mine") as caught:
        await check_provider(lambda url: Breaks(wrong.right(url)), only=["text", "reasoning", "usage"])
    assert caught.value.checks == ("reasoning",)


async def test_checks_can_be_chosen_and_left_out() -> None:
    report = await check_provider(wrong.right, only=["text", "usage", "opaque-reasoning"], without=["usage"])
    assert (report.passed, report.skipped) == (("text",), ("opaque-reasoning",))
    with pytest.raises(ConfigurationError, match="there are no checks txet"):
        await check_provider(wrong.right, only=["txet"])
    with pytest.raises(ConfigurationError, match="there is no dialect 'opnai'"):
        await check_provider(wrong.right, dialect="opnai")


def test_every_check_says_what_it_holds() -> None:
    assert all(holds.endswith(".") and len(holds) > 30 for holds in provider_checks().values())


def test_the_how_to_page_lists_the_checks() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-provider.md"
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert rows == [f"| `{name}` | {holds} |" for name, holds in provider_checks().items()]
