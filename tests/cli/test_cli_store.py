"""`toolbus store`: what is kept, as tables; and its upkeep."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

import orjson
import pytest
import scenes
from cut_off import cut_off
from desk import Command, Terminal

from toolbus.cli import main
from toolbus.cli._commands import store as _store
from toolbus.cli._terminal.text import cut
from toolbus.cli._terminal.timeline import message_lines, timeline
from toolbus.events import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    Event,
    ModelResponded,
    ModelRetrying,
    PlanChanged,
    RequestCancelled,
    RequestCompleted,
    RequestFailed,
    RequestResumed,
    RequestStarted,
    StatusChanged,
    SteeringAdded,
    ToolCallFailed,
    ToolCallRequested,
)
from toolbus.messages import AssistantMessage, SystemMessage, ToolCall, ToolMessage, Usage, UserMessage
from toolbus.providers.scripted import calls, text

WHEN = r"\d{4}-\d\d-\d\d \d\d:\d\d"


@pytest.fixture
def talk(toolbus: Command, kept: Path) -> str:
    """The id of the only conversation in the store: two turns, the first with a call."""
    scenes.play(calls(("add", {"a": 1, "b": 1})), text("It is two."))
    toolbus("ask", "What is one and one?", "-p", "scenes:scripted", "-t", "scenes:add")
    scenes.play(text("As \x1b[31mI\x1b[0m said.\n\n" + "word " * 200))
    toolbus("ask", "Sure?", "-p", "scenes:scripted", "--continue")
    [found] = orjson.loads(toolbus("store", "list", "--json").out)
    return found["conversation_id"]


def damage(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE facts SET data = ? WHERE seq = 1", (b"{}",))
        database.commit()


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(0, "0 bytes"), (1_023, "1,023 bytes"), (1_024, "1.0 KiB"), (1_024**2 - 1, "1,024.0 KiB"), (1.5 * 1_024**2, "1.5 MiB"),
     (1_024**3, "1.0 GiB"), (1_024**4, "1.0 TiB"), (3_000 * 1_024**4, "3,000.0 TiB")],
)  # fmt: skip
def test_sizes_have_a_unit_in_which_they_are_short(size_bytes: float, shown: str):
    assert _store._size(size_bytes) == shown  # pyright: ignore[reportPrivateUsage]


class TestLooking:
    def test_stats_say_how_much_there_is_and_where(self, toolbus: Command, kept: Path, talk: str):
        reported = toolbus("store", "stats").out.splitlines()
        assert reported[0] == f"store          {kept}"
        assert reported[1] == "conversations  1, with 6 messages"
        assert reported[2] == "requests       2, of which 0 unfinished; 14 facts"
        assert re.fullmatch(r"size           \d+\.\d KiB; the file takes \d+\.\d KiB", reported[3])
        found = orjson.loads(toolbus("store", "stats", "--json").out)
        assert (found["requests"], found["messages"], found["path"]) == (2, 6, str(kept))

    def test_a_file_that_a_database_does_not_have_takes_no_space(self, kept: Path):
        assert _store._size_of(f"{kept}-wal") == 0  # pyright: ignore[reportPrivateUsage]

    def test_a_list_has_a_line_for_each_and_can_be_searched(self, toolbus: Command, talk: str):
        line = rf"{talk}  {WHEN}  6 messages  What is one and one\?\n"
        assert re.fullmatch(line, toolbus("store", "list").out)
        assert re.fullmatch(line, toolbus("store", "list", "--search", "as i").out) is None
        assert re.fullmatch(line, toolbus("store", "list", "--search", "IT IS two").out)
        assert toolbus("store", "list", "--search", "nowhere").out == "There is no such conversation.\n"
        scenes.play(text("x"))
        toolbus("ask", "The newest?", "-p", "scenes:scripted")
        newest, older = toolbus("store", "list").out.splitlines()
        assert newest.endswith("2 messages  The newest?")
        assert talk in older
        assert toolbus("store", "list", "--limit", "1").out.count("\n") == 1

    def test_a_conversation_is_shown_with_its_messages_and_requests(self, toolbus: Command, talk: str):
        reported = toolbus("store", "show", talk[:-2]).out
        assert reported.startswith(f"{talk}  ")
        assert "\n\nuser\n  What is one and one?\n\nassistant\n  → Add  a=1 b=1\n\nAdd\n  2\n" in reported
        assert "assistant\n  As I said.\n" in reported
        assert "\x1b" not in reported
        assert re.search(r"\n  … \d+ more characters \(--whole shows them\)\n", reported)
        assert re.search(
            rf"\nrequests\n  \w+ +{WHEN}  completed  What is one and one\?\n  \w+ +{WHEN}  completed  Sure\?\n$",
            reported,
        )
        assert "more characters" not in toolbus("store", "show", talk, "--whole").out

    def test_the_id_that_an_application_has_given_a_conversation_stays_on_its_line(self, toolbus: Command, kept: Path):
        request_id = cut_off(kept, ("send", {"to": "you"}), "Well?", conversation_id="c\nd")
        assert "\nconversation c d\n" in toolbus("store", "show", request_id).out

    def test_a_request_is_shown_with_its_timeline(self, toolbus: Command, talk: str):
        found = orjson.loads(toolbus("store", "show", talk, "--json").out)
        roles = [each["role"] for each in found["messages"]]
        assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        request_id = found["requests"][0]["request_id"]
        reported = toolbus("store", "show", request_id).out
        assert re.match(rf"{request_id}  {WHEN}  completed  9 facts, \d\.\d KiB\nconversation {talk}\n\n", reported)
        steps = [line.split("s  ", 1)[1] for line in reported.splitlines()[3:]]
        assert steps[:3] == ["asked: What is one and one?", "the model answered, asks for 1 call", "→ Add  a=1 b=1"]
        assert re.fullmatch(r"✓ Add  \d+ ms  2", steps[3])
        assert steps[4:] == ["the model answered: It is two.", "completed"]
        facts = orjson.loads(toolbus("store", "show", request_id, "--json").out)["facts"]
        assert [each["type"] for each in facts][:2] == ["request_started", "message_appended"]

    def test_one_that_is_unfinished_is_shown_as_such(self, toolbus: Command, kept: Path):
        request_id = cut_off(kept, ("send", {"to": "Ann"}), "Write to Ann")
        reported = toolbus("store", "show", request_id).out
        assert "  unfinished  " in reported.splitlines()[0]
        assert reported.endswith('→ Send  to="Ann"\n')

    def test_a_terminal_cuts_what_is_too_wide(
        self, toolbus: Command, talk: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("sys.stdout", terminal)
        monkeypatch.setenv("COLUMNS", "65")
        assert main(["store", "list"]) == 0
        assert re.search(r"  6 messages  What is .*…\n$", terminal.getvalue())
        assert main(["store", "show", talk]) == 0
        assert re.search(r"\n  .*  completed  What is .*…\n", terminal.getvalue())
        assert max(map(len, terminal.getvalue().splitlines())) <= 65


class TestUpkeep:
    def test_prune_says_what_it_did_and_a_dry_run_what_it_would(self, toolbus: Command, talk: str):
        assert re.fullmatch(
            rf"0 requests from before {WHEN} deleted, 0 bytes; conversations stay \(--conversations deletes them too\)\n",
            toolbus("store", "prune", "--before", "30d").out,
        )
        both = ("store", "prune", "--before", "0s", "--conversations")
        reported = rf"2 requests and 1 conversation from before {WHEN} would be deleted, \d+\.\d KiB\n"
        assert re.fullmatch(reported, toolbus(*both, "--dry-run").out)
        ended = toolbus("store", "prune", "--before", "2999-12-31", "--json")
        found = orjson.loads(ended.out)
        assert (found["requests"], found["conversations"], found["is_dry_run"]) == (2, 0, False)
        assert re.fullmatch(rf"0 requests and 1 conversation from before {WHEN} deleted, .*\n", toolbus(*both).out)
        assert toolbus("store", "list").out == "There is no conversation yet.\n"

    def test_a_dry_run_says_what_the_prune_then_does(self, toolbus: Command, kept: Path, talk: str):
        cut_off(kept, ("send", {"to": "Ann"}), "Write to Ann")
        both = ("store", "prune", "--before", "0s", "--conversations", "--json")
        would, did = (orjson.loads(toolbus(*both, *more).out) for more in (("--dry-run",), ()))
        for name in ("requests", "conversations", "size_bytes"):
            assert would[name] == did[name] > 0

    def test_a_dry_run_leaves_out_a_conversation_whose_next_turn_is_about_to_begin(
        self, toolbus: Command, kept: Path, talk: str
    ):
        with contextlib.closing(sqlite3.connect(kept)) as database, database:
            database.execute("UPDATE turns SET request_id = 'next' WHERE conversation_id = ?", (talk,))
        both = ("store", "prune", "--before", "0s", "--conversations", "--json")
        would, did = (orjson.loads(toolbus(*both, *more).out) for more in (("--dry-run",), ()))
        assert would["conversations"] == did["conversations"] == 0

    @pytest.mark.parametrize(
        ("age", "seconds"),
        [("90s", 90), ("15m", 900), ("12h", 43_200), ("1.5 H", 5_400), ("30d", 2_592_000), ("2w", 1_209_600)],
    )
    def test_an_age_is_in_seconds_minutes_hours_days_or_weeks(
        self, age: str, seconds: int, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("toolbus.cli._commands.store.time.time", lambda: 1_750_000_000.0)
        assert _store._moment(age) == 1_750_000_000 - seconds  # pyright: ignore[reportPrivateUsage]

    @pytest.mark.parametrize("when", ["soon", "30", "d", "2026-13-01", "999999-01-01", "999999w", f"{10**20}w"])
    def test_a_moment_that_is_none_is_refused(self, toolbus: Command, kept: Path, when: str):
        ended = toolbus("store", "prune", "--before", when)
        assert (ended.status, ended.err) == (
            2,
            f"toolbus: --before {when}: pass an age, such as 30d, 12h or 2w, or a date, such as 2026-01-31\n",
        )

    def test_verify_has_a_line_for_each_problem(self, toolbus: Command, kept: Path, talk: str):
        ended = toolbus("store", "verify")
        assert (ended.status, ended.out) == (
            0,
            "2 requests with 14 facts, 1 conversation with 6 messages: everything is as it was written\n",
        )
        damage(kept)
        ended = toolbus("store", "verify")
        *problems, last = ended.out.splitlines()
        assert (ended.status, ended.err, len(problems)) == (1, "", 2)
        assert all(re.match(r"the journal of request \w+ is damaged at fact 1: ", each) for each in problems)
        assert last.endswith(": 2 problems")
        ended = toolbus("store", "verify", "--json")
        assert (ended.status, orjson.loads(ended.out)["problems"]) == (1, problems)
        request_id = problems[0].split()[4]
        ended = toolbus("store", "show", request_id)
        assert (ended.status, ended.err) == (1, f"toolbus: {problems[0]}\n")

    def test_a_moment_that_no_calendar_has_hides_no_conversation(self, toolbus: Command, kept: Path, talk: str):
        with contextlib.closing(sqlite3.connect(kept)) as store, store:
            store.execute("UPDATE conversations SET updated_at = 9e999")
        ended = toolbus("store", "list")
        assert (ended.status, ended.out.split()[:2]) == (0, [talk, "?"])

    def test_what_is_exported_can_be_imported_elsewhere_and_not_twice(self, toolbus: Command, kept: Path, talk: str):
        reported = "2 requests with 14 facts, 1 conversation with 6 messages"
        assert toolbus("store", "export", "--to", "a.jsonl").out == f"{reported} written to a.jsonl\n"
        assert toolbus("store", "import", "a.jsonl", "--store", "b.db").out.startswith(f"{reported} read into ")
        assert toolbus("store", "list", "--store", "b.db").out == toolbus("store", "list").out
        ended = toolbus("store", "import", "a.jsonl")
        assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
        assert "is in the store already; nothing was imported" in ended.err
        ended = toolbus("store", "export", "--to", "a.jsonl")
        assert (ended.status, ended.err.count("\n")) == (1, 1)
        damage(kept)
        ended = toolbus("store", "export", "--to", "c.jsonl")
        assert ended.status == 1
        assert ended.err.count("toolbus: left out: the journal of request ") == 2

    def test_the_default_store_is_made_by_an_import(self, toolbus: Command, kept: Path, talk: str):
        toolbus("store", "export", "--to", "a.jsonl")
        kept.rename("away.db")
        kept.parent.rmdir()
        assert toolbus("store", "import", "a.jsonl").status == 0
        for _ in range(2):
            assert kept.exists()
            for path in kept.parent.iterdir():
                path.unlink()
            assert toolbus("store", "import", "a.jsonl").status == 0, "the folder is there already"
        for path in kept.parent.iterdir():
            path.unlink()
        kept.parent.rmdir()
        kept.parent.write_text("a file", encoding="utf-8")
        ended = toolbus("store", "import", "a.jsonl")
        assert (ended.status, ended.err.count("\n")) == (1, 1)
        assert f"{kept.parent} cannot be created: " in ended.err


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "status", "said"),
        [
            ((), 2, "name a command: store stats, list, show, prune, verify, export, import"),
            (("frob",), 2, "invalid choice: 'frob'"),
            (("prune",), 2, "the following arguments are required: --before"),
            (("list", "--store", "missing.db"), 2, "--store: there is no store missing.db"),
            (
                ("list", "--store", "postgresql://app:secret@db/app"),
                2,
                "--store is the path of an SQLite file, not a URL",
            ),
            (("list", "--store", "none"), 2, "nothing is kept"),
            (("import", "x", "--store", "none"), 2, "there is no store to import into"),
            (("list", "--store", "limits.py"), 1, "is not a SQLite database"),
            (("show", "nope"), 2, "no conversation or request 'nope'"),
            (("import", "limits.py", "--store", "new.db"), 1, "limits.py is not an archive"),
            (("list", "--store", "a" * 300), 2, f"{'a' * 300} cannot be read: File name too long"),
            (("import", "limits.py", "--store", "a" * 300), 1, f"{'a' * 300} cannot be opened: File name too long"),
        ],
    )
    def test_each_is_one_line(self, toolbus: Command, kept: Path, arguments: tuple[str, ...], status: int, said: str):
        ended = toolbus("store", *arguments)
        assert (ended.status, ended.out, ended.err.count("\n")) == (status, "", 1)
        assert said in ended.err

    def test_an_id_that_there_is_not_is_reported(self, toolbus: Command, talk: str):
        ended = toolbus("store", "show", "nope")
        assert (ended.status, ended.err.count("\n")) == (2, 1)
        assert "has no conversation or request 'nope'. `toolbus store list` shows conversations, and" in ended.err
        assert ended.err.endswith("; `--store FILE` names another store\n")
        ended = toolbus("store", "show", "\udcff")  # a byte that is no text
        assert (ended.status, ended.err.count("has no conversation or request")) == (2, 1)

    def test_where_nothing_was_kept_yet_that_is_said(self, toolbus: Command, kept: Path):
        for arguments, reported in (
            (("stats",), "Nothing is kept yet: toolbus ask and toolbus chat keep their conversations here.\n"),
            (("list", "--json"), "[]\n"),
            (("verify", "--json"), "{}\n"),
            (
                ("export", "--to", "a.jsonl"),
                "Nothing is kept yet: toolbus ask and toolbus chat keep their conversations here.\n",
            ),
        ):
            ended = toolbus("store", *arguments)
            assert (ended.status, ended.out, ended.err) == (0, reported, "")
        assert not kept.parent.exists()


class TestLines:
    def test_every_kind_of_fact_is_a_short_line_or_none(self):
        question = ApprovalRequested(
            request_id="r", call_id="c", name="send", arguments={"to": 1}, timeout_seconds=1.0, at=12.6
        )
        denied = ApprovalDecided(request_id="r", call_id="c", approved=False, by="An\nn", reason="not now", at=12.7)
        facts: list[Event] = [
            RequestStarted(request_id="r", prompt="a\nb", timeout_seconds=1.0, at=10.0),
            RequestResumed(request_id="r", resumption=2, at=11.5),
            SteeringAdded(request_id="r", text="be quick", at=12.0),
            ModelRetrying(request_id="r", round=0, reason="r", error="it is\nbusy", at=12.5),
            question,
            denied,
            ToolCallFailed(request_id="r", call_id="c", name="send", reason="denied", error="not now", at=12.8),
            ToolCallRequested(
                request_id="r",
                call_id="c",
                name="x",
                arguments={"a": "y" * 500},
                at=13.0,
                timeout_seconds=1.0,
                round=0,
                idempotency_key="k",
            ),
        ]
        assert list(timeline(facts, 60)) == [
            "     0.000s  asked: a b",
            "     1.500s  resumed by another process (resumption 2)",
            "     2.000s  steering added: be quick",
            "     2.500s  the model is asked again: it is busy",
            "     2.600s  ? Send  to=1",
            "     2.700s  denied by An n: not now",
            "     2.800s  ✗ Send  denied: not now",
            f'     3.000s  → X  a="{"y" * 38}…',
        ]
        assert list(timeline([], 60)) == []
        endings = [
            CancelRequested(request_id="r", reason="enough"),
            RequestCancelled(request_id="r"),
            RequestFailed(request_id="r", reason="code", error="why", usage=Usage()),
        ]
        assert [line[13:] for line in timeline(endings, 60)] == [
            "asked to cancel: enough",
            "cancelled",
            "failed: code: why",
        ]

    @pytest.mark.parametrize("arguments", ['{"a": ', "[" * 100_000])
    def test_arguments_that_are_no_json_are_shown_as_they_are(self, arguments: str):
        messages = [
            SystemMessage(text="Be kind."),
            AssistantMessage(tool_calls=(ToolCall(call_id="c", name="add", arguments=arguments),)),
        ]
        *lines, call = message_lines(messages, 16)
        assert lines == ["system", "  Be kind.", "", "assistant"]
        assert call == f"  → Add  {cut(arguments.strip(), 7)}"

    def test_replies_decisions_and_endings_say_no_more_than_there_is(self):
        two = tuple(ToolCall(call_id=each, name="add") for each in "ab")
        facts: list[Event] = [
            ModelResponded(round=0, message=AssistantMessage(tool_calls=two)),
            ModelResponded(round=1, message=AssistantMessage(text="half\nan"), finish_reason="interrupted"),
            StatusChanged(stage="streaming", text="Hm."),
            PlanChanged(steps=()),
            ApprovalDecided(call_id="c", approved=True),
            ToolCallFailed(call_id="c", name="send", reason="error", error="no", detail="why"),
            RequestCompleted(outcome="stopped", reason="max_rounds=1"),
            RequestCompleted(),
        ]
        assert [line[13:] for line in timeline(facts, 60)] == [
            "the model answered, asks for 2 calls",
            "the model was interrupted: half an",
            "plan changed",
            "approved by nobody",
            "✗ Send  error: no (why)",
            "stopped: max_rounds=1",
            "completed",
        ]

    def test_a_long_message_is_cut_and_what_is_missing_is_counted(self):
        numbers = "\n".join(map(str, range(20)))
        for content, whole, shown in (
            (numbers, False, [*(f"  {number}" for number in range(12)), "  … 24 more characters (--whole shows them)"]),
            (numbers, True, [f"  {number}" for number in range(20)]),
            ("x" * 600, False, [f"  {'x' * 598}", "  xx"]),
            ("x" * 601, False, [f"  {'x' * 598}", "  xx", "  … 1 more characters (--whole shows them)"]),
            ("a\n\nb  \n", False, ["  a", "", "  b"]),
        ):
            assert [*message_lines([UserMessage(content=content)], 600, whole=whole)] == ["user", *shown]
        failed = ToolMessage(call_id="c", name="send_mail", content="no", is_error=True)
        assert [*message_lines([failed, failed], 60)] == [
            "Send Mail (failed)",
            "  no",
            "",
            "Send Mail (failed)",
            "  no",
        ]
