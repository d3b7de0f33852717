"""The command line: what there is to type, and the help. Imports argparse alone, so that help comes at once."""

from __future__ import annotations

import argparse
import math
from typing import Any, NoReturn, TypedDict

__all__ = ["parse"]

_DESCRIPTION = "Ask questions that a model answers by calling tools over an event bus."

_EXAMPLES = """\
examples:
  toolbus ask "Which limits stop a request?" --dir src
  toolbus ask "What does main do?" --provider ollama:qwen3
  toolbus ask "What is the weather in Paris?" --tools mytools:get_weather
  toolbus chat --dir ~/notes --provider openai:gpt-5-mini
  toolbus chat --continue
  toolbus resume
  toolbus tools --tools mytools:search
  toolbus events --json-schema > events.schema.json
  toolbus ask "Where is main?" --record main.jsonl && toolbus replay main.jsonl

environment:
  TOOLBUS_PROVIDER  the provider when --provider is not given
  OPENAI_API_KEY    with it, and nothing else named, OpenAI is asked;
                    TOOLBUS_MODEL names the model
  ANTHROPIC_API_KEY the same for Anthropic, where OPENAI_API_KEY is not set
  OPENAI_BASE_URL   another server that speaks OpenAI's chat completions
  OLLAMA_HOST       where Ollama runs, for --provider ollama:MODEL
  TOOLBUS_STORE     the file that keeps conversations and unfinished requests;
                    none: nothing is kept
  TOOLBUS_DEBUG     1 shows tracebacks, as --debug does
  NO_COLOR          any value: no colours and no line that moves

exit status:
  0 answered   1 failed   2 wrong usage or configuration   3 stopped by a limit
  130 cancelled by Ctrl-C   143 by SIGTERM   141 nobody reads the output

toolbus COMMAND --help tells more."""

_ASK = """\
Ask one question about the files of a directory, and print the answer to
stdout. What is being done meanwhile is told on stderr. Without a model the
embedded "extractive" provider answers by quoting the files."""

_ASK_EXAMPLES = """\
examples:
  toolbus ask "Where is the timeout set?"
  toolbus ask "Where is the timeout set?" --dir src -p openai:gpt-5-mini
  echo "Where is the timeout set?" | toolbus ask
  toolbus ask "What is the weather in Paris?" --tools mytools:get_weather
  toolbus ask "Where is the timeout set?" --json | jq -r .text
  toolbus ask "Where is the timeout set?" --events | jq -r .type
  toolbus ask "And who reads it?" --continue

exit status:
  0 answered   1 failed   2 wrong usage or configuration   3 stopped by a limit
  130 cancelled by Ctrl-C (a second Ctrl-C kills)   143 by SIGTERM
  141 nobody reads the output"""

_CHAT = """\
Keep a conversation going. On a terminal, lines can be edited and called back;
Ctrl-C cancels the running answer, Ctrl-D or /quit leaves. From a pipe each
line is one question. What was said is kept: --continue goes on with it."""

_CHAT_STATUS = """\
exit status:
  on a terminal 0; from a pipe that of the first question that was not
  answered (see toolbus ask --help)"""

_RESUME = """\
Go on with requests that were cut off: by a closed terminal, a crash or a kill.
Each goes on where it stood, with its provider, directory and limits. Tools of
your own have to be named again, as they run code. Ctrl-C leaves what is not
finished for another time."""

_RESUME_EXAMPLES = """\
examples:
  toolbus resume
  toolbus resume --tools mytools:get_weather --provider openai:gpt-5-mini
  toolbus resume --abandon

exit status:
  0 all went on and were answered, or there were none   1 one was not
  2 wrong usage   130 left by Ctrl-C"""

_STORE = """\
Look into the store: what was asked and answered, and what is unfinished."""

_STORE_EXAMPLES = """\
examples:
  toolbus store list --search timeout
  toolbus store show ID
  toolbus store prune --before 30d --dry-run
  toolbus store export --to backup.jsonl

exit status:
  0 done   1 a problem was found, or it failed   2 wrong usage

toolbus store COMMAND --help tells more."""

_REPLAY = """\
Carry recorded requests out again, without their model and tools and in no
time, and compare every fact. For each file, say that it is the same, or where
the first difference is. ask --record FILE makes such files."""

_REPLAY_EXAMPLES = """\
examples:
  toolbus ask "Where is the timeout set?" --record timeout.jsonl
  toolbus replay timeout.jsonl tests/recordings/*.jsonl
  toolbus replay timeout.jsonl --ignore deadline --json

exit status:
  0 all are the same   1 one differs, or is damaged   2 wrong usage"""

_SIMULATE = """\
Run toolbus itself through worlds in which everything goes wrong, in virtual
time, and check its guarantees at every event. Each seed is a world; one that
breaks a guarantee is told with its timeline, and breaks it again each time."""

_SIMULATE_EXAMPLES = """\
examples:
  toolbus simulate --seeds 100000 --jobs 8
  toolbus simulate --first 5000000 --seconds 3600 --keep-going
  toolbus simulate --seed 4711

exit status:
  0 all guarantees held   1 one was broken   2 wrong usage"""

_PROVIDER = (
    "openai:MODEL, openai-responses:MODEL, anthropic:MODEL, ollama:MODEL, extractive, or MODULE:NAME of a Provider of "
    "yours; "
    "default: what the environment names, else extractive"
)
_TOOLS = "also offer the tools of MODULE:NAME: a function, a Tool, a list of them or a ToolRegistry; may be repeated"
_MCP = "also offer the tools of the MCP servers in this mcpServers file; may be repeated"


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, and where help is."""

    def print_help(self, file: Any = None) -> None:
        """Raises `OSError`, which argparse passes over."""
        print(self.format_help(), end="", file=file, flush=True)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"toolbus: {message} (see {self.prog} --help)\n")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; `command` is None when none was given. Raises `SystemExit` after help and for wrong usage."""
    return _parser().parse_args(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="toolbus", **_texts(_DESCRIPTION, _EXAMPLES))
    parser.add_argument("-V", "--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Parser)

    _add_ask(commands.add_parser("ask", help="ask one question about files", **_texts(_ASK, _ASK_EXAMPLES)))
    chat = commands.add_parser("chat", help="keep a conversation going", **_texts(_CHAT, _CHAT_STATUS))
    _add_conversing(chat)
    _add_telling(chat)
    _add_resume(commands.add_parser("resume", help="go on with what was cut off", **_texts(_RESUME, _RESUME_EXAMPLES)))
    _add_store(commands.add_parser("store", help="look into what is kept", **_texts(_STORE, _STORE_EXAMPLES)))

    events = commands.add_parser(
        "events", help="list the types of events", **_texts("List the types of events that there are on the bus.", "")
    )
    events.add_argument("--json-schema", action="store_true", help="print the JSON schema of all events as one union")
    _add_debug(events)

    tools = commands.add_parser(
        "tools", help="list the tools that a model is offered", **_texts("List the tools that a model is offered.", "")
    )
    _add_files(tools)
    tools.add_argument("--json", action="store_true", help="print a JSON list with names, descriptions and schemas")
    _add_debug(tools)

    _add_replay(commands.add_parser("replay", help="compare recordings", **_texts(_REPLAY, _REPLAY_EXAMPLES)))

    simulation = commands.add_parser(
        "simulate", help="look for bugs in toolbus itself", **_texts(_SIMULATE, _SIMULATE_EXAMPLES)
    )
    _add_simulation(simulation)
    return parser


def _add_ask(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("question", nargs="?", metavar="QUESTION", help="the question; left out or -: read from stdin")
    _add_conversing(parser)
    output = parser.add_argument_group("output").add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object with the result instead of the text")
    output.add_argument("--events", action="store_true", help="print each event as one line of JSON, and nothing else")
    _add_telling(parser)


def _add_conversing(parser: argparse.ArgumentParser) -> None:
    """What `ask` and `chat` have in common: who is asked about what, and what bounds and keeps it."""
    _add_sources(parser)
    _add_keeping(parser)
    _add_approval(parser)
    _add_limits(parser)
    _add_recording(parser)


def _add_simulation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=_count, default=1_000, metavar="N", help="how many seeds; default 1000")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first of them; default 0")
    parser.add_argument("--seed", type=int, metavar="SEED", help="this one alone, again")
    parser.add_argument("--seconds", type=_seconds, metavar="SECONDS", help="begin no more after so long")
    parser.add_argument("--jobs", type=_count, default=1, metavar="N", help="on so many processes; default 1")
    parser.add_argument(
        "--keep-going", action="store_true", help="list all seeds that break something instead of the first one alone"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    _add_debug(parser)


class _Texts(TypedDict):
    description: str
    epilog: str
    formatter_class: type[argparse.HelpFormatter]
    allow_abbrev: bool


def _texts(description: str, epilog: str) -> _Texts:
    return {
        "description": description,
        "epilog": epilog,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,
    }


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-d", "--dir", default=".", metavar="PATH", help="the files to ask about; default: here")
    parser.add_argument("-t", "--tools", action="append", default=[], metavar="MODULE:NAME", help=_TOOLS)
    parser.add_argument("--mcp", action="append", default=[], metavar="FILE", help=_MCP)


def _add_sources(parser: argparse.ArgumentParser) -> None:
    _add_files(parser)
    parser.add_argument("-p", "--provider", metavar="NAME", help=_PROVIDER)
    parser.add_argument("-i", "--instructions", metavar="TEXT", help="the system prompt, instead of the built-in one")


def _add_keeping(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is kept")
    group.add_argument(
        "--continue",
        nargs="?",
        const="",
        dest="continue_",
        metavar="ID",
        help="go on with this conversation; without an id, with the newest one",
    )
    _add_place(group, no_store=True)


def _add_place(parser: argparse._ActionsContainer, *, no_store: bool = False) -> None:  # pyright: ignore[reportPrivateUsage]
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--store", metavar="PATH", help="the store's file; default: one in your state folder")
    if no_store:
        where.add_argument("--no-store", action="store_true", help="keep nothing")


def _add_resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-d", "--dir", metavar="PATH", help="the files to ask about; default: each request's own")
    parser.add_argument("-t", "--tools", action="append", default=[], metavar="MODULE:NAME", help=_TOOLS)
    parser.add_argument("-p", "--provider", metavar="NAME", help="the provider; default: each request's own")
    _add_place(parser)
    parser.add_argument("--abandon", action="store_true", help="end what is unfinished instead; no call of it runs")
    _add_approval(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print one JSON object for each request")
    _add_telling(parser)


def _add_store(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="store_command", metavar="COMMAND", title="commands", parser_class=_Parser)

    def command(name: str, told: str, more: str = "", *, json: bool = True) -> argparse.ArgumentParser:
        each = commands.add_parser(name, help=told[0].lower() + told[1:].rstrip("."), **_texts(f"{told}{more}", ""))
        _add_place(each)
        if json:
            each.add_argument("--json", action="store_true", help="print one JSON object")
        _add_debug(each)
        return each

    command("stats", "Say how much is kept.")
    each = command("list", "List conversations, the newest first.")
    each.add_argument("--search", default="", metavar="TEXT", help="those alone with a message that has this text")
    each.add_argument("--limit", type=_count, default=50, metavar="N", help="at most so many; default 50")
    each = command("show", "Show a conversation, or a request's timeline.")
    each.add_argument("id", metavar="ID", help="of a conversation or a request; its beginning does")
    each.add_argument("--whole", action="store_true", help="long results too, which are cut otherwise")
    each = command(
        "prune",
        "Delete what is old.",
        " Journals of requests that have ended are deleted, and with\n--conversations what was said in them as well. "
        "What is unfinished stays.",
    )
    each.add_argument("--before", required=True, metavar="WHEN", help="an age such as 30d, 12h or 2w, or a date")
    each.add_argument("--conversations", action="store_true", help="conversations too that have not changed since")
    each.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    command("verify", "Look whether all is as it was written.", " A line for each problem.")
    each = command("export", "Write all that is kept to a file.", " It can be read by import.", json=False)
    each.add_argument("--to", required=True, metavar="FILE", help="the file to make")
    each = command("import", "Read what export has written.", " Nothing of it may be there already.", json=False)
    each.add_argument("file", metavar="FILE", help="the file that export has written")


def _add_approval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--approve",
        choices=("ask", "all", "none"),
        default="ask",
        metavar="WHICH",
        help="calls of tools that need approval: ask you for each (default; without a terminal they are denied), "
        "run all, or none",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    for what, told in (
        ("", "the whole request; default 120"),
        ("model_", "one reply; default 60"),
        ("tool_", "one call; default 30"),
    ):
        name = f"{what}timeout"
        group.add_argument(
            f"--{name.replace('_', '-')}", dest=f"{name}_seconds", type=_seconds, metavar="SECONDS", help=f"of {told}"
        )
    group.add_argument("--max-rounds", type=_count, metavar="N", help="replies of the model; default 10")
    group.add_argument("--max-tool-calls", type=_count, metavar="N", help="calls of tools; default 100")
    group.add_argument(
        "--limit", action="append", default=[], metavar="NAME=VALUE", help="any other limit, such as max_repeats=5"
    )


def _add_recording(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("recording")
    group.add_argument("--record", metavar="FILE", help="write the request's facts to a file, for toolbus replay")
    group.add_argument("--record-signals", action="store_true", help="and its signals, but for the pieces of replies")
    group.add_argument("--record-masked", action="store_true", help="with what looks like a secret hidden")


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a recording")
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="FIELD",
        help="a field that may differ, such as deadline or tool_call_requested.deadline; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object for each file")
    _add_debug(parser)


def _add_telling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is told on stderr")
    group.add_argument("-v", "--verbose", action="store_true", help="a timeline of the request at its end")
    group.add_argument("-q", "--quiet", action="store_true", help="errors alone")
    levels = ("debug", "info", "warning", "error")
    group.add_argument(
        "--log-level", type=str.lower, choices=levels, metavar="LEVEL", help=f"also log: {', '.join(levels)}"
    )
    _add_debug(group)


def _add_debug(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def _seconds(text: str) -> float:
    value = float(text) if _is_number(text) else math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above zero")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above zero")
    return int(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
