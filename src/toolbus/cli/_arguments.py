"""The command line: its commands, options and help texts. Imports only argparse, so that help appears at once."""

from __future__ import annotations

import argparse
import math
from typing import Any, NoReturn

_DESCRIPTION = "Ask questions that a model answers by calling tools over an event bus."

_EXAMPLES = """\
examples:
  toolbus ask "Which limits stop a request?" --dir src
  toolbus ask "What does main do?" --provider ollama:qwen3
  toolbus ask "What is the weather in Paris?" --tools mytools:get_weather
  toolbus chat --dir ~/notes --provider openai:gpt-5-mini
  toolbus chat --continue
  toolbus serve --open
  toolbus resume
  toolbus worker mytools:tools --url nats://broker:4222 --pool gpu
  toolbus tools --tools mytools:search
  toolbus events --json-schema > events.schema.json
  toolbus ask "Where is main?" --record main.jsonl && toolbus replay main.jsonl

environment:
  TOOLBUS_PROVIDER  the provider when --provider is not given
  OPENAI_API_KEY    selects OpenAI if no provider is named;
                    TOOLBUS_MODEL names the model
  ANTHROPIC_API_KEY the same for Anthropic, if OPENAI_API_KEY is not set
  OPENAI_BASE_URL   another server with OpenAI's chat completions API
  OLLAMA_HOST       the address of Ollama, for --provider ollama:MODEL
  TOOLBUS_STORE     the file for conversations and unfinished requests;
                    "none": nothing is stored
  TOOLBUS_DEBUG     1 shows tracebacks, as --debug does
  NO_COLOR          any value: no colours and no live line

exit status:
  0 answered   1 failed   2 wrong usage or configuration   3 stopped by a limit
  130 cancelled by Ctrl-C   143 by SIGTERM   141 broken pipe

See toolbus COMMAND --help for the options of a command."""

_ASK = """\
Ask one question about the files of a directory, and print the answer to
stdout. Progress is shown on stderr. If no model is configured, the built-in
provider "extractive" quotes the files instead."""

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
  141 broken pipe"""

_CHAT = """\
Have a conversation. On a terminal, lines can be edited and recalled. Ctrl-C
cancels the running answer; Ctrl-D or /quit ends the chat. From a pipe, each
line is one question. The conversation is stored: --continue continues it."""

_CHAT_STATUS = """\
exit status:
  on a terminal 0; from a pipe, the status of the first question that was
  not answered (see toolbus ask --help)"""

_SERVE = """\
Serve a chat page for your browser, with the same tools, models and limits as
toolbus ask. You approve or deny calls on the page. Conversations are stored.
Interrupted requests continue when toolbus serve is started again with the same
directory, tools and provider. Only programs on this machine can reach the
page, and only with the token in the printed address."""

_SERVE_EXAMPLES = """\
examples:
  toolbus serve --open
  toolbus serve --dir src --provider openai:gpt-5-mini --port 8080
  toolbus serve --tools mytools:tools --approve all

exit status:
  0 ended by Ctrl-C   1 failed   2 wrong usage or configuration"""

_RESUME = """\
Resume requests that were interrupted by a closed terminal, a crash or a kill.
Each continues from its last stored step, with its provider, directory and
limits. Name your own tools again with --tools. After Ctrl-C, unfinished
requests can be resumed later."""

_RESUME_EXAMPLES = """\
examples:
  toolbus resume
  toolbus resume --tools mytools:get_weather --provider openai:gpt-5-mini
  toolbus resume --abandon

exit status:
  0 all were answered, or there was nothing to resume
  1 at least one was not answered   2 wrong usage   130 interrupted by Ctrl-C"""

_STORE = """\
List, show, check, copy and delete the conversations and requests of a store."""

_STORE_EXAMPLES = """\
examples:
  toolbus store list --search timeout
  toolbus store show ID
  toolbus store prune --before 30d --dry-run
  toolbus store export --to backup.jsonl

exit status:
  0 done   1 failed, or a problem was found   2 wrong usage

See toolbus store COMMAND --help for the options of a command."""

_STATUS = """\
Show the unfinished requests of a store: the process that holds the lease of
each, and the questions that wait for a person. A request whose lease is free
waits for toolbus resume or Runtime.resume. With --url, show the health,
requests, calls, store and models of a running process instead."""

_STATUS_EXAMPLES = """\
examples:
  toolbus status --store support.db
  toolbus status --url http://127.0.0.1:8001

exit status:
  0 done; with --url: the process is healthy
  1 the store cannot be read; with --url: the process is not healthy
  2 wrong usage, or nothing answers at the URL"""

_INSPECT = """\
Serve a page that shows the requests of a store: their timelines, transcripts,
events, tokens and cost, also while other processes run them. On the page, you
can approve and deny calls, and cancel and steer requests. Only programs on
this machine can reach it, and only with the token in the printed address."""

_INSPECT_EXAMPLES = """\
examples:
  toolbus inspect
  toolbus inspect --store app.db --port 8070
  toolbus inspect --url postgresql://app@db/app
  toolbus inspect --recording tests/recordings/weather.jsonl

exit status:
  0 ended by Ctrl-C   1 the store or the recording cannot be read
  2 wrong usage"""

_WORKER = """\
Run the tool calls of one pool on this machine. Other processes send them with
a NatsExecutor. The first Ctrl-C or SIGTERM drains the worker: it takes no more
calls, and ends when the running ones are answered. A second one ends it at
once: calls of idempotent tools then run on another worker, and all other calls
end as interrupted."""

_WORKER_EXAMPLES = """\
examples:
  toolbus worker mytools:tools --url nats://broker:4222 --pool gpu
  toolbus worker mytools:tools --url nats://broker:4222 --pool gpu --check

exit status:
  0 drained, or nothing was found by --check   1 failed
  2 wrong usage or configuration, or the broker cannot be used"""

_REPLAY = """\
Replay recorded requests, without their model and tools and without waiting,
and compare every fact. For each file, report that the facts are the same, or
the first difference. toolbus ask --record FILE makes such files."""

_REPLAY_EXAMPLES = """\
examples:
  toolbus ask "Where is the timeout set?" --record timeout.jsonl
  toolbus replay timeout.jsonl tests/recordings/*.jsonl
  toolbus replay timeout.jsonl --ignore timeout_seconds --json

exit status:
  0 all are the same   1 at least one differs or is damaged   2 wrong usage"""

_SIMULATE = """\
Simulate toolbus itself in virtual time while everything around it fails, and
check its guarantees at every event. Each seed is one reproducible scenario. A
seed that breaks a guarantee is reported with a timeline."""

_SIMULATE_EXAMPLES = """\
examples:
  toolbus simulate --seeds 100000 --jobs 8
  toolbus simulate --first 5000000 --seconds 3600 --keep-going
  toolbus simulate --seed 4711

exit status:
  0 all guarantees held   1 one was broken   2 wrong usage"""

_PROVIDER = (
    "VENDOR:MODEL, such as openai:gpt-5-mini or ollama:qwen3 (the error for an unknown VENDOR lists all); "
    "extractive; or MODULE:NAME of your own Provider; "
    "default: the provider that the environment names, else extractive"
)
_TOOLS = "also offer the tools of MODULE:NAME: a function, a Tool, a list of them or a ToolRegistry; may be repeated"
_MCP = "also offer the tools of the MCP servers in this mcpServers file; may be repeated"


class _Parser(argparse.ArgumentParser):
    """A parser that reports wrong usage in one line, which says where to find help."""

    def __init__(self, **given: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **given)

    def print_help(self, file: Any = None) -> None:
        """Print the help. Raises `OSError`, which argparse itself would ignore."""
        print(self.format_help(), end="", file=file, flush=True)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"toolbus: {message} (see {self.prog} --help)\n")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options; without a command, `command` has the value None.

    Raises `SystemExit` after help and for wrong usage.
    """
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_option_meant(unknown[0])}")
    return options


def _option_meant(argument: str) -> str:
    """Return the hint for --model, as other programs call it, or --max-turns, which is like the name of a limit."""
    if argument.partition("=")[0] in {"--model", "-m"}:
        return "; did you mean --provider VENDOR:MODEL?"
    if not argument.startswith("--"):
        return ""
    from dataclasses import fields  # noqa: PLC0415 -- only for an error

    from .._option_checks import option_meant  # noqa: PLC0415
    from ..core.limits import Limits  # noqa: PLC0415

    name = argument.partition("=")[0].removeprefix("--").replace("-", "_")
    limit = option_meant(name, [each.name for each in fields(Limits)])
    return f"; did you mean --limit {limit}=VALUE?" if limit else ""


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="toolbus", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("-V", "--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Parser)

    def command(name: str, summary: str, description: str, more: str = "") -> argparse.ArgumentParser:
        return commands.add_parser(name, help=summary, description=description, epilog=more)

    _add_ask(command("ask", "ask one question about files", _ASK, _ASK_EXAMPLES))
    chat = command("chat", "have a conversation", _CHAT, _CHAT_STATUS)
    _add_conversing(chat)
    _add_output(chat)
    _add_serve(command("serve", "chat in the browser", _SERVE, _SERVE_EXAMPLES))
    _add_resume(command("resume", "resume interrupted requests", _RESUME, _RESUME_EXAMPLES))
    status = command("status", "show unfinished requests, or the health of a process", _STATUS, _STATUS_EXAMPLES)
    where = _add_store_path(status)
    where.add_argument("--url", metavar="URL", help="the address of a process with create_status_app")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    _add_debug(status)
    _add_inspect(command("inspect", "inspect requests in the browser", _INSPECT, _INSPECT_EXAMPLES))
    _add_store(command("store", "list, show, check, copy and delete what is stored", _STORE, _STORE_EXAMPLES))
    _add_worker(command("worker", "run the tool calls of a pool on this machine", _WORKER, _WORKER_EXAMPLES))

    events = command("events", "list the types of events", "List the types of events that the bus publishes.")
    events.add_argument("--json-schema", action="store_true", help="print the JSON schema of all events as one union")
    _add_debug(events)

    tools = command("tools", "list the tools offered to a model", "List the tools that are offered to a model.")
    _add_files(tools)
    tools.add_argument("--json", action="store_true", help="print a JSON list with names, descriptions and schemas")
    _add_debug(tools)

    _add_replay(command("replay", "replay recordings and compare", _REPLAY, _REPLAY_EXAMPLES))
    _add_simulation(command("simulate", "look for bugs in toolbus itself", _SIMULATE, _SIMULATE_EXAMPLES))
    return parser


def _add_ask(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("question", nargs="?", metavar="QUESTION", help="the question; left out or -: read from stdin")
    _add_conversing(parser)
    output = parser.add_argument_group("output").add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object with the result instead of the text")
    output.add_argument("--events", action="store_true", help="print each event as one line of JSON, and nothing else")
    _add_output(parser)


def _add_conversing(parser: argparse.ArgumentParser) -> None:
    """Add the options that `ask` and `chat` share: sources, store, approval, limits and recording."""
    _add_sources(parser)
    _add_store_options(parser)
    _add_approval(parser)
    _add_limits(parser)
    _add_recording(parser)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _add_sources(parser)
    _add_store_path(parser.add_argument_group("store"), no_store=True)
    parser.set_defaults(continue_=None)
    _add_approval(parser, "ask about each on the page (default)")
    _add_limits(parser)
    parser.add_argument("--port", type=int, default=0, metavar="N", help="the port to listen on; default: a free one")
    parser.add_argument("--open", action="store_true", help="open the page in your browser")
    _add_log(parser.add_argument_group("output on stderr"))


def _add_simulation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=_count, default=1_000, metavar="N", help="how many seeds to run; default 1000")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed; default 0")
    parser.add_argument("--seed", type=int, metavar="SEED", help="run only this seed")
    parser.add_argument("--seconds", type=_seconds, metavar="SECONDS", help="begin no more seeds after this time")
    parser.add_argument("--jobs", type=_count, default=1, metavar="N", help="how many processes to use; default 1")
    parser.add_argument(
        "--keep-going", action="store_true", help="list all seeds that break a guarantee instead of only the first"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    _add_debug(parser)


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-d", "--dir", default=".", metavar="PATH", help="the files to ask about; default: the current directory"
    )
    parser.add_argument("-t", "--tools", action="append", default=[], metavar="MODULE:NAME", help=_TOOLS)
    parser.add_argument("--mcp", action="append", default=[], metavar="FILE", help=_MCP)


def _add_sources(parser: argparse.ArgumentParser) -> None:
    _add_files(parser)
    parser.add_argument("-p", "--provider", metavar="NAME", help=_PROVIDER)
    parser.add_argument("-i", "--instructions", metavar="TEXT", help="the system prompt, instead of the built-in one")


def _add_store_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("store")
    group.add_argument(
        "--continue",
        nargs="?",
        const="",
        dest="continue_",
        metavar="ID",
        help="continue this conversation; without an id, the newest one",
    )
    _add_store_path(group, no_store=True)


def _add_store_path(
    parser: argparse._ActionsContainer,  # pyright: ignore[reportPrivateUsage]
    *,
    no_store: bool = False,
) -> argparse._MutuallyExclusiveGroup:  # pyright: ignore[reportPrivateUsage]
    """Add the option for the store's file, and return the group of the options that exclude it."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--store",
        metavar="PATH",
        help="the file of the store; default: TOOLBUS_STORE, else a file in your state folder",
    )
    if no_store:
        where.add_argument("--no-store", action="store_true", help="store nothing")
    return where


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    where = _add_store_path(parser)
    where.add_argument(
        "--url", metavar="URL", help="a PostgreSQL database instead of a file: the URL that its processes use"
    )
    where.add_argument(
        "--recording", metavar="FILE", help="a recording instead of a store: a file of toolbus ask --record"
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help="the port to listen on; default: a free one")
    parser.add_argument("--open", action="store_true", help="open the page in your browser")
    _add_debug(parser)


def _add_resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-d", "--dir", metavar="PATH", help="the files to ask about; default: those of each request")
    parser.add_argument("-t", "--tools", action="append", default=[], metavar="MODULE:NAME", help=_TOOLS)
    parser.add_argument("-p", "--provider", metavar="NAME", help="the provider; default: that of each request")
    _add_store_path(parser)
    parser.add_argument(
        "--abandon", action="store_true", help="end unfinished requests instead of resuming them; no call runs"
    )
    _add_approval(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print one JSON object for each request")
    _add_output(parser)


def _add_store(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="store_command", metavar="COMMAND", title="commands", parser_class=_Parser)

    def command(name: str, summary: str, more: str = "", *, json: bool = True) -> argparse.ArgumentParser:
        each = commands.add_parser(
            name, help=summary[0].lower() + summary[1:].rstrip("."), description=f"{summary}{more}"
        )
        _add_store_path(each)
        if json:
            each.add_argument("--json", action="store_true", help="print one JSON object")
        _add_debug(each)
        return each

    command("stats", "Show how much is stored.")
    each = command("list", "List conversations, the newest first.")
    each.add_argument("--search", default="", metavar="TEXT", help="only those with a message that contains this text")
    each.add_argument("--limit", type=_count, default=50, metavar="N", help="list at most this many; default 50")
    each = command("show", "Show a conversation, or the timeline of a request.")
    each.add_argument(
        "id", metavar="ID", help="the id of a conversation or a request, or the first characters of the id"
    )
    each.add_argument("--whole", action="store_true", help="show long results in full")
    each = command(
        "prune",
        "Delete old entries.",
        " This deletes the journals of requests that have ended,\nand with --conversations also old conversations. "
        "Unfinished requests stay.",
    )
    each.add_argument("--before", required=True, metavar="WHEN", help="an age such as 30d, 12h or 2w, or a date")
    each.add_argument(
        "--conversations", action="store_true", help="also delete the conversations that have not changed since then"
    )
    each.add_argument("--dry-run", action="store_true", help="only show what would be deleted")
    command("verify", "Check that nothing in the store is damaged.", " Print a line for each problem.")
    each = command("export", "Write the whole store to a file.", " toolbus store import reads it.", json=False)
    each.add_argument("--to", required=True, metavar="FILE", help="the file to write")
    each = command(
        "import",
        "Read a file that toolbus store export has written.",
        "\nThe store must not contain any of it yet.",
        json=False,
    )
    each.add_argument("file", metavar="FILE", help="the file to read")


def _add_worker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tools",
        metavar="MODULE:NAME",
        help="the tools, as the other processes declare them: a function, a Tool, a list of them or a ToolRegistry; "
        "those of other pools are ignored",
    )
    parser.add_argument("--url", required=True, metavar="URL", help="the NATS server, such as nats://broker:4222")
    parser.add_argument("--pool", required=True, metavar="POOL", help="the pool to serve, as the tools declare it")
    parser.add_argument(
        "--concurrency", type=_count, default=100, metavar="N", help="how many calls may run at once; default 100"
    )
    parser.add_argument(
        "--prefix",
        default="toolbus",
        metavar="NAME",
        help="the prefix of the NatsExecutor that sends the calls; default toolbus",
    )
    parser.add_argument(
        "--lease",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="the time after which other workers take over the calls of a silent worker; default 30",
    )
    parser.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="NAME=VARIABLE",
        help="a secret of this machine for its tools: the name of the secret, and the environment variable with its "
        "value; may be repeated",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="only check the connection, JetStream and the permissions of the account, and list the tools",
    )
    _add_log(parser.add_argument_group("output on stderr"), quiet="show only warnings and errors")


def _add_approval(
    parser: argparse.ArgumentParser, ask: str = "ask about each (default; without a terminal, deny them)"
) -> None:
    parser.add_argument(
        "--approve",
        choices=("ask", "all", "none"),
        default="ask",
        help=f"what to do with calls that need approval: {ask}, run all, or run none",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    for what, bounds in (
        ("", "the whole request; default 600"),
        ("model_", "the first piece of a reply; default 300"),
        ("tool_", "one tool call; default 30"),
    ):
        name = f"{what}timeout"
        group.add_argument(
            f"--{name.replace('_', '-')}",
            dest=f"{name}_seconds",
            type=_seconds,
            metavar="SECONDS",
            help=f"for {bounds}",
        )
    group.add_argument("--max-rounds", type=_count, metavar="N", help="calls of the model with tools; default 10")
    group.add_argument("--max-tool-calls", type=_count, metavar="N", help="tool calls; default 100")
    group.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other limit, such as max_repeats=5; may be repeated",
    )
    group.add_argument(
        "--price",
        type=_price,
        metavar="IN/OUT",
        help="the price of a million input and output tokens, such as 0.25/2, for --limit max_cost=VALUE",
    )


def _add_recording(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("recording")
    group.add_argument("--record", metavar="FILE", help="write the facts of the request to a file, for toolbus replay")
    group.add_argument("--record-signals", action="store_true", help="also record the signals, except pieces of text")
    group.add_argument("--record-masked", action="store_true", help="mask what looks like a secret in the recording")


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a recording")
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="FIELD",
        help="a field that may differ, such as timeout_seconds or tool_call_requested.timeout_seconds; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object for each file")
    _add_debug(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output on stderr")
    group.add_argument("-v", "--verbose", action="store_true", help="show a timeline when the request has ended")
    _add_log(group)


def _add_log(
    group: argparse._ArgumentGroup,  # pyright: ignore[reportPrivateUsage]
    quiet: str = "show only errors",
) -> None:
    group.add_argument("-q", "--quiet", action="store_true", help=quiet)
    levels = ("debug", "info", "warning", "error")
    group.add_argument(
        "--log-level",
        type=str.lower,
        choices=levels,
        metavar="LEVEL",
        help=f"also show log lines of this level and above: {', '.join(levels)}",
    )
    _add_debug(group)


def _add_debug(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def _seconds(text: str) -> float:
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above zero")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def _price(text: str) -> tuple[float, float]:
    numbers = [_number(each) for each in text.split("/")]
    if len(numbers) != 2 or not all(0 <= each < math.inf for each in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not two prices per million tokens, such as 0.25/2")
    return numbers[0], numbers[1]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
