"""The issue tracker: a small HTTP service in memory, which is independent of toolbus.

Requests that change something have the header `Idempotency-Key`: a second request with the same key changes nothing,
and gets the same answer as the first one, with status 200.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from typing import Annotated, Literal

from fastapi import FastAPI, Header, HTTPException, Response
from pydantic import BaseModel, Field

__all__ = ["create_tracker"]

Key = Annotated[str | None, Header(alias="Idempotency-Key")]
Text = Annotated[str, Field(min_length=1, max_length=2_000)]


class Ticket(BaseModel):
    id: str
    project: str
    summary: str
    status: Literal["open", "in_progress", "closed"] = "open"
    created: date
    comments: list[str] = []


class NewTicket(BaseModel):
    summary: Text


class NewComment(BaseModel):
    text: Text


class Move(BaseModel):
    status: Literal["open", "in_progress", "closed"]


class Tracker:
    """The projects and their tickets."""

    def __init__(self) -> None:
        self.projects = {"X": "Web shop", "Y": "Mobile app"}
        self.tickets: dict[str, Ticket] = {}
        self._done: dict[str, Ticket] = {}
        self.add("X", "Login page is empty in Firefox", date(2025, 1, 14))
        self.add("Y", "App forgets the basket", date(2025, 2, 3))
        self.add("Y", "Push messages come twice", date(2025, 3, 21))

    def add(self, project: str, summary: str, created: date | None = None) -> Ticket:
        ticket = Ticket(
            id=f"T{len(self.tickets) + 1}",
            project=self.known(project),
            summary=summary,
            created=created or max(each.created for each in self.tickets.values()) + timedelta(days=1),
        )
        self.tickets[ticket.id] = ticket
        return ticket

    def known(self, project: str) -> str:
        if project not in self.projects:
            raise HTTPException(404, f"there is no project {project}; the projects are {', '.join(self.projects)}")
        return project

    def ticket(self, ticket_id: str) -> Ticket:
        if ticket_id not in self.tickets:
            raise HTTPException(404, f"there is no ticket {ticket_id}")
        return self.tickets[ticket_id]

    def unfinished(self, ticket_id: str) -> Ticket:
        ticket = self.ticket(ticket_id)
        if ticket.status == "closed":
            raise HTTPException(409, f"{ticket_id} is closed, and a closed ticket does not change any more")
        return ticket

    def once(self, key: str | None, change: Callable[[], Ticket], response: Response) -> Ticket:
        """Make the change, unless a change with this key was made before."""
        if key is not None and key in self._done:
            response.status_code = 200
            return self._done[key]
        changed = change()
        if key is not None:
            self._done[key] = changed
        return changed


def create_tracker() -> FastAPI:
    """The service, with two projects and three tickets."""
    app, tracker = FastAPI(title="Issue tracker"), Tracker()

    @app.get("/projects/{project}/tickets")
    async def list_tickets(project: str) -> list[Ticket]:
        tracker.known(project)
        return [each for each in tracker.tickets.values() if each.project == project]

    @app.post("/projects/{project}/tickets", status_code=201)
    async def create_ticket(project: str, new: NewTicket, response: Response, key: Key = None) -> Ticket:
        return tracker.once(key, lambda: tracker.add(project, new.summary), response)

    @app.post("/tickets/{ticket_id}/comments", status_code=201)
    async def add_comment(ticket_id: str, new: NewComment, response: Response, key: Key = None) -> Ticket:
        def change() -> Ticket:
            ticket = tracker.unfinished(ticket_id)
            ticket.comments.append(new.text)
            return ticket

        return tracker.once(key, change, response)

    @app.patch("/tickets/{ticket_id}")
    async def move_ticket(ticket_id: str, move: Move, response: Response, key: Key = None) -> Ticket:
        def change() -> Ticket:
            ticket = tracker.unfinished(ticket_id)
            ticket.status = move.status
            return ticket

        return tracker.once(key, change, response)

    return app
