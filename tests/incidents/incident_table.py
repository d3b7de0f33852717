"""The incidents that are played, and the table of them in docs/how-to/operate.md. Run as a program, it writes the page.

Each test compares what it has seen with its row: see `test_incidents.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "operate.md"
BEGIN, END = "<!-- incidents: made by tests/incidents/incident_table.py -->", "<!-- end of incidents -->"
READY = "ready"


@dataclass(frozen=True)
class Incident:
    """What an operator sees of one incident, and does about it.

    `lines` are those at WARNING and ERROR, in order, each at least once; `…` stands for any text. `metrics`
    are those of trouble that are not 0, with the value of `error.type` in braces. `health` has the reasons, or `READY`.
    """

    name: str
    lines: tuple[str, ...]
    metrics: tuple[str, ...]
    health: tuple[str, ...]
    advice: str


INCIDENTS = (
    Incident(
        "The store does not answer",
        (
            "the store failed, and the call is repeated until it answers: …",
            "request … stops here, since its store failed: …",
        ),
        ("gen_ai.invoke_agent.duration{store_unavailable}", "toolbus.journal.failures", "toolbus.store.unavailable"),
        ("the store fails",),
        "Repair the store. Requests that had begun continue with `resume`; new requests fail. The log says when the store answers again.",
    ),
    Incident(
        "A model fails often",
        ("request …: the model is asked again in … s, after provider_unavailable: …",),
        ("gen_ai.client.operation.duration{provider_unavailable}", "toolbus.model.retries{provider_unavailable}"),
        (READY,),
        "Nothing, as long as requests complete. Otherwise pass `providers=[a, b]`.",
    ),
    Incident(
        "A model refuses every request",
        ("request … failed in …: provider_rejected: …",),
        ("gen_ai.client.operation.duration{provider_rejected}", "gen_ai.invoke_agent.duration{provider_rejected}"),
        (READY,),
        "The line has the text of the server: for example, the key is not valid, or the model does not exist. `toolbus status --url` "
        "counts failed requests by the code of the error.",
    ),
    Incident(
        "A tool hangs",
        (
            "call …: tool … failed in … s: timeout: …",
            "call …: the handler of tool … outlives its call",
        ),
        ("gen_ai.execute_tool.duration{cancelled}", "toolbus.tool.calls{timeout}", "toolbus.tool.overdue"),
        ("cancelled calls that still run: 1 (hang)",),
        "The handler suppresses its cancellation, and keeps its slot until it ends. Set a time-out for the work on which it waits.",
    ),
    Incident(
        "The event loop is blocked",
        ("the event loop is blocked for more than … s, by …",),
        ("toolbus.loop.blocked",),
        (READY,),
        "The line names the functions. Run them in a thread. Meanwhile, probes do not answer.",
    ),
    Incident(
        "The queue is full",
        ("… requests run and … wait, so others are refused",),
        ("toolbus.requests.queued", "toolbus.requests.refused"),
        ("no more requests are accepted: 1 running, 1 waiting",),
        "Callers get `Overloaded` with the seconds to wait. Add processes, or raise `max_sessions`.",
    ),
    Incident(
        "A subscriber is slow",
        ("subscription …: its reader is too slow for its … events, so signals are dropped",),
        ("toolbus.subscriptions.full",),
        (READY,),
        "Requests are not affected. `statistics().bus.subscriptions` has the counts by name.",
    ),
    Incident(
        "Approvals are overdue",
        ("call …: tool … has waited for a person's decision for … s",),
        ("toolbus.approvals.overdue", "toolbus.approvals.pending", "toolbus.requests.waiting"),
        ("overdue decisions of people: 1",),
        "`runtime.pending_approvals()` has the questions. If nobody answers, the call is denied.",
    ),
    Incident(
        "A lease is lost",
        ("request … stops here: another process has taken it over",),
        ("gen_ai.client.operation.duration{cancelled}", "toolbus.leases.lost"),
        (READY,),
        "The request continues in another process. Find out why this process stalled, or raise `lease_seconds`.",
    ),
    Incident(
        "The disk is full",
        (
            "the store failed, and the call is repeated until it answers: there is no space for …",
            "request … stops here, since its store failed: there is no space for …",
        ),
        ("gen_ai.invoke_agent.duration{store_error}", "toolbus.journal.failures", "toolbus.store.unavailable"),
        ("the store fails",),
        "Make space; nothing has to be restarted. `toolbus store prune` frees pages inside the file.",
    ),
    Incident(
        "A worker died",
        ("call …: tool … failed in … s: interrupted: …",),
        ("toolbus.tool.calls{interrupted}",),
        (READY,),
        "Another worker takes its calls: those of `idempotent` tools run again, the others end as `interrupted`.",
    ),
)


def table() -> str:
    """All incidents as a table."""
    rows = ["| incident | log, at WARNING | metrics | `health()` | what to do |", "| --- | --- | --- | --- | --- |"]
    for each in INCIDENTS:
        cells = ["<br>".join(f"`{text}`" for text in texts) for texts in (each.lines, each.metrics)]
        health = "ready" if each.health == (READY,) else "<br>".join(each.health)
        rows.append(f"| {each.name} | {cells[0]} | {cells[1]} | {health} | {each.advice} |")
    return "\n".join(rows)


def page(text: str) -> str:
    """The page with its table made anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
