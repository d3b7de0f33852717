"""Two web processes, two workers, a broker and one store: kill any of them, and the requests finish nevertheless."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import readline
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time

import httpx2

_HOST, _UNKNOWN, _REFUSED = "127.0.0.1", 404, (400, 413)
_HELP = "Type a question to ask it, a number to kill that process or to start it again, q to end."
# The shell kills its program when this process ends in any way, and so closes its end of the pipe.
_GUARD = '"$@" & exec >/dev/null 2>&1; cat; kill -9 $!'
_on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
_screen = threading.Lock()


def show(who: str, what: str) -> None:
    """Write a line, on a terminal above the one that is being typed."""
    line = f"{time.strftime('%H:%M:%S')}  {who:<9} {what}\n"
    with _screen:
        print(f"\r\x1b[K{line}> {readline.get_line_buffer()}" if _on_terminal else line, end="", flush=True)


class Member:
    """One process of the fleet, which may be killed and started again."""

    process: subprocess.Popen[str] | None = None

    def __init__(self, name: str, port: int, *command: str) -> None:
        self.name, self.port, self.command = name, port, command

    def start(self) -> None:
        guarded, pipe = ["sh", "-c", _GUARD, "sh", *self.command], subprocess.PIPE
        # It has its own session, because only this process handles Ctrl-C on the terminal.
        self.process = process = subprocess.Popen(
            guarded, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        threading.Thread(target=self._read, args=[process], daemon=True).start()

    def kill(self) -> None:
        """Send SIGKILL to it, as when its machine dies."""
        process, self.process = self.process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _read(self, process: subprocess.Popen[str]) -> None:
        with process:
            for line in process.stdout or ():
                show(self.name, line.rstrip())
            if self.process is process:
                self.kill()
                show(self.name, "has ended by itself")


class Fleet:
    """All processes, and the questions that are open."""

    def __init__(self, folder: str) -> None:
        with contextlib.ExitStack() as stack:
            free = [stack.enter_context(socket.create_server((_HOST, 0))).getsockname()[1] for _ in range(3)]
        os.environ.update(FLEET_BROKER=f"nats://{_HOST}:{free[2]}", FLEET_STORE=f"{folder}/fleet.db")
        child = sys.executable, "-m", "examples.fleet.process"
        self.webs = [Member(f"web-{n}", port, *child, "web", str(port)) for n, port in enumerate(free[:2], 1)]
        workers = [Member(pool, 0, *child, "worker", pool) for pool in ("pictures", "sums")]
        server = f"{sysconfig.get_path('scripts')}/nats-server", "-a", _HOST, "-p", str(free[2]), "-l", f"{folder}/log"
        self.broker = Member("broker", free[2], *server, "-js", "-sd", folder)
        self.members = {str(n): each for n, each in enumerate([*self.webs, *workers, self.broker], 1)}
        self.questions: list[threading.Thread] = []

    def start(self) -> None:
        """Start all. The others need a broker that answers."""
        self.broker.start()
        for _ in range(1_000):
            with socket.socket() as probe:
                if not probe.connect_ex((_HOST, self.broker.port)):
                    break
            time.sleep(0.02)
        for each in [*self.members.values()][:-1]:
            each.start()

    def obey(self, line: str) -> None:
        """Do what was typed, if anything, and write which processes run."""
        if (member := self.members.get(line)) is None:
            if line:
                thread = threading.Thread(target=self._ask, args=[line, len(self.questions)], daemon=True)
                self.questions.append(thread)
                thread.start()
        elif member.process is None:
            member.start()
        else:
            member.kill()
            show(member.name, "WAS KILLED")
        members = [f"{n} {each.name} {'runs' if each.process else 'is dead'}" for n, each in self.members.items()]
        show("fleet", ", ".join(members))

    def _ask(self, question: str, turn: int) -> None:
        """Ask one web process, and follow the answer at whichever runs, until it ends."""
        request_id = ""
        while True:
            web = self.webs[turn % 2]
            url = f"http://{_HOST}:{web.port}/{f'requests/{request_id}' if request_id else 'ask'}/text"
            method, body = ("GET", None) if request_id else ("POST", {"prompt": question})
            with (
                contextlib.suppress(httpx2.TransportError),
                httpx2.stream(method, url, json=body, timeout=60, trust_env=False) as response,
            ):
                # A process that was killed before it had accepted the request has left nothing of it.
                known = response.headers.get("x-request-id", request_id)
                request_id, said = "" if response.status_code == _UNKNOWN else known, ""
                if response.status_code in _REFUSED:
                    show("answer", f"the question is refused with status {response.status_code}")
                    return
                for line in response.iter_lines():
                    data: dict[str, str] = json.loads(line[6:]) if line.startswith("data: ") else {}
                    said += data.get("text", "")
                    if "outcome" in data:
                        show("answer", f"[{request_id[-4:]}] {said or data['explanation']} (from {web.name})")
                        return
            turn += 1
            time.sleep(0.2)


def main() -> int:
    """Run the fleet until `q`, or until the input ends and all questions are answered. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="fleet", description=__doc__)
    parser.add_argument("--provider", metavar="NAME", help="a real model, such as openai:gpt-5-mini or ollama:llama3.2")
    given = parser.parse_args()
    os.environ["FLEET_PROVIDER"] = given.provider or ""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    model = given.provider or "a script, not a language model (--provider NAME asks one)"
    print(f"Model: {model}.\n{_HELP}", flush=True)
    with tempfile.TemporaryDirectory(prefix="fleet-", ignore_cleanup_errors=True) as folder:
        fleet = Fleet(folder)
        try:
            fleet.start()
            line = ""
            while line != "q":
                fleet.obey(line)
                line = input("\001\r\x1b[K\002> " if _on_terminal else "").strip()
        except EOFError:
            for each in fleet.questions:
                each.join()
        except KeyboardInterrupt:
            return 130
        finally:
            for each in fleet.members.values():
                each.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
