"""The tools: each one sends a request to the issue tracker. `context.deps` is the HTTP client of the application."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import httpx2
from pydantic import Field

from toolbus import ToolContext, ToolError, tool

__all__ = ["TOOLS", "TrackerDown"]

Context = ToolContext[httpx2.AsyncClient]
# These values go into paths of URLs, so they consist only of letters and digits.
Project = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9]*$", description="The project's key, such as X.")]
TicketId = Annotated[str, Field(pattern=r"^T[0-9]+$", description="Such as T1.")]
Text = Annotated[str, Field(min_length=1, max_length=2_000)]


class TrackerDown(ToolError):
    """An error of the tracker itself, which may be gone at the next attempt."""


async def request(context: Context, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Send a request to the tracker, and return its answer. A refusal becomes a `ToolError` with a text for the model.

    The idempotency key is the same for each attempt, even after a restart of the process. So nothing is created twice,
    and the tools below may be marked as idempotent.
    """
    headers = {"Idempotency-Key": context.idempotency_key}
    try:
        response = await context.deps.request(method, path, json=body, headers=headers)
    except httpx2.RequestError as exc:
        raise TrackerDown("the issue tracker cannot be reached; it is not known whether it did this") from exc
    await context.progress(f"{method} {path} -> {response.status_code} {response.reason_phrase}")
    if response.is_server_error:
        raise TrackerDown(f"the issue tracker is out of order (HTTP {response.status_code})")
    if response.is_error:
        raise ToolError(f"{_detail(response)} (HTTP {response.status_code})")
    return response.json()


def _detail(response: httpx2.Response) -> str:
    """The service's error message, from the form of FastAPI's errors."""
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return "the issue tracker refused this"


@tool(idempotent=True, kind="query", retries=2, retry_on=(TrackerDown,), status="Looking for tickets of {project}")
async def get_tickets(project: Project, context: Context) -> list[dict[str, Any]]:
    """Show the tickets of a project: id, summary, status, date of creation, and comments."""
    return await request(context, "GET", f"/projects/{project}/tickets")


@tool(idempotent=True, kind="action", retries=2, retry_on=(TrackerDown,), status="Creating a ticket in {project}")
async def create_ticket(project: Project, summary: Text, context: Context) -> dict[str, Any]:
    """Create a ticket."""
    return await request(context, "POST", f"/projects/{project}/tickets", {"summary": summary})


@tool(idempotent=True, kind="action", retries=2, retry_on=(TrackerDown,), status="Commenting on {ticket}")
async def add_comment(ticket: TicketId, text: Text, context: Context) -> dict[str, Any]:
    """Add a comment to a ticket."""
    return await request(context, "POST", f"/tickets/{ticket}/comments", {"text": text})


@tool(idempotent=True, kind="action", retries=2, retry_on=(TrackerDown,), status="Moving {ticket}")
async def move_ticket(ticket: TicketId, status: Literal["open", "in_progress"], context: Context) -> dict[str, Any]:
    """Set the status of a ticket."""
    return await request(context, "PATCH", f"/tickets/{ticket}", {"status": status})


@tool(destructive=True, idempotent=True, kind="action", retries=2, retry_on=(TrackerDown,), status="Closing {ticket}")
async def close_ticket(ticket: TicketId, context: Context) -> dict[str, Any]:
    """Close a ticket for good. The user is asked for approval, so do not ask yourself."""
    return await request(context, "PATCH", f"/tickets/{ticket}", {"status": "closed"})


TOOLS = [get_tickets, create_ticket, add_comment, move_ticket, close_ticket]
