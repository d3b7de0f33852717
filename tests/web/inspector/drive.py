"""A person at the inspector's page, in a real browser: does everything that the page offers, and prints what came of it.

    python tests/web/inspector/drive.py

Prints one JSON object with an entry for each part. A part that failed has the key `error`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import anyio
import psutil
from playwright.async_api import Browser, BrowserContext, Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from inspected_runtime import Desk, desk  # noqa: E402

from support import browser, npm_servers  # noqa: E402
from support.asgi_serving import served  # noqa: E402
from toolbus.events import ApprovalDecided, ToolCallProgress  # noqa: E402
from toolbus.messages import ToolMessage, UserMessage  # noqa: E402
from toolbus.providers.scripted import ScriptedProvider, calls, text  # noqa: E402
from toolbus.testing import replay  # noqa: E402

_AXE = """async (rules) => (await axe.run(rules ? { runOnly: rules } : {})).violations.flatMap(
    (rule) => rule.nodes.map((node) => `${rule.impact} ${rule.id}: ${node.target} ${node.failureSummary}`))"""
_SCHEMES: dict[Literal["light", "dark"], list[str] | None] = {
    "light": None,
    "dark": ["color-contrast", "link-in-text-block"],
}
"""The colour schemes, with axe's rules for them: a scheme changes only colours, so all other rules look only once."""
_FOCUSED = "() => document.activeElement.id || document.activeElement.textContent"
_MAX_TABS = 80
_LIVE_REQUESTS = 200
_EVENTS_A_SECOND = 2_000
_LIVE_SECONDS = float(os.environ.get("TOOLBUS_INSPECTOR_SECONDS", "2"))
_ATTEMPTS, _FRAME_MS = 5, 50  # A machine may be slow for a while, so one attempt with short enough tasks is enough.


class Visit:
    """One page with the inspector, what it asked for, and what its console said."""

    def __init__(self, page: Page, where: Desk) -> None:
        self.page = page
        self.desk = where
        self.asked: set[str] = set()
        self.complaints: list[str] = []
        page.set_default_timeout(15_000)
        page.on("request", lambda request: self.asked.add(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    async def open(self, prompt: str = "") -> None:
        """Open the page, and the request with this prompt."""
        await self.page.goto(self.desk.address)
        if prompt:
            await self.page.get_by_role("navigation", name="Requests").get_by_role("link", name=prompt).first.click()
            await self.page.locator(".timeline .row").first.wait_for()

    async def said(self, words: str) -> str:
        """Wait until the page reports this, and return the whole report."""
        await self.page.locator(".toast [role=status]", has_text=words).wait_for()
        return await self.page.locator(".toast [role=status]").inner_text()

    async def state(self, word: str) -> str:
        """Wait until the request has this state, and return the sentence beside it."""
        await self.page.locator("header.request .badge", has_text=word).wait_for()
        return await self.page.locator("header.request .state").inner_text()


async def approve(visit: Visit) -> dict[str, Any]:
    """Approve a call, of which a secret is not shown."""
    session = visit.desk.begin("trip", "Approve this trip")
    await visit.open("Approve this trip")
    card = visit.page.get_by_role("region", name="Decision on book_hotel")
    shown = await card.inner_text()
    rows = await visit.page.locator(".timeline .row .name").all_text_contents()
    await card.get_by_role("button", name="Approve").click()
    await visit.said("Done.")
    state = await visit.state("completed")
    result = await session.result()
    decided = [each async for each in session.events(ApprovalDecided)]
    return {
        "shown": shown,
        "rows": rows,
        "state": state,
        "text": result.text,
        "by": decided[0].by,
        "results": results_of(session),
    }


async def edit(visit: Visit) -> dict[str, Any]:
    """Approve a call with other arguments, after a mistake; the hidden one keeps its value."""
    session = visit.desk.begin("trip", "Edit this trip")
    await visit.open("Edit this trip")
    card = visit.page.get_by_role("region", name="Decision on book_hotel")
    await card.get_by_role("button", name="Edit arguments").click()
    field = card.get_by_label("Arguments, as JSON")
    written = await field.input_value()
    await field.fill(written[:-1])
    await card.get_by_role("button", name="Approve with these arguments").click()
    mistake = await card.get_by_role("alert").inner_text()
    await field.fill(written.replace("3", "5"))
    await card.get_by_role("button", name="Approve with these arguments").click()
    await visit.state("completed")
    await session.result()
    return {
        "mistake": mistake,
        "results": results_of(session),
        "rows": await visit.page.locator(".timeline").text_content() or "",
    }


async def deny(visit: Visit) -> dict[str, Any]:
    """Deny a call, with a reason that the model reads."""
    session = visit.desk.begin("trip", "Deny this trip")
    await visit.open("Deny this trip")
    card = visit.page.get_by_role("region", name="Decision on book_hotel")
    await card.get_by_label("Reason").fill("too expensive")
    await card.get_by_role("button", name="Deny").click()
    await visit.state("completed")
    await session.result()
    return {"results": results_of(session)}


async def cancel(visit: Visit) -> dict[str, Any]:
    """Cancel a request whose model hangs."""
    session = visit.desk.begin("hang", "Cancel this")
    await visit.open("Cancel this")
    await visit.page.get_by_role("button", name="Cancel", exact=True).click()
    await visit.page.get_by_label("Reason").fill("not needed any more")
    await visit.page.get_by_role("button", name="Cancel the request").click()
    state = await visit.state("cancelled")
    result = await session.result()
    is_over = await visit.page.get_by_role("button", name="Steer").count() == 0
    return {"outcome": result.outcome, "reason": result.reason, "state": state, "commands_are_gone": is_over}


async def answer(visit: Visit) -> dict[str, Any]:
    """Steer a request that waits for a call from outside, and answer the call."""
    session = visit.desk.begin("payment", "Answer this")
    await visit.open("Answer this")
    await visit.page.get_by_role("button", name="Steer").click()
    await visit.page.get_by_label("Message, which the model reads").fill("Be brief.")
    await visit.page.get_by_role("button", name="Send", exact=True).click()
    await visit.said("Done.")
    card = visit.page.get_by_role("region", name="Answer to wait_for_payment")
    await card.locator("summary").click()
    await card.get_by_label("Answer").fill("42 euros have come in")
    await card.get_by_role("button", name="Send the answer").click()
    await visit.state("completed")
    await session.result()
    said = [each.text for each in session.messages if isinstance(each, UserMessage)]
    return {"results": results_of(session), "said": said}


async def record(visit: Visit) -> dict[str, Any]:
    """Download a recording, and replay it."""
    await visit.desk.begin("plain", "Record this").result()
    await visit.open("Record this")
    await visit.page.get_by_role("button", name="Record as a test").click()
    section = visit.page.get_by_role("region", name="Commands")
    await section.get_by_label("Test").wait_for()
    shown = await section.inner_text()
    async with visit.page.expect_download() as downloads:
        await section.get_by_role("button", name="Download").click()
    download = await downloads.value
    path = await download.path()
    replayed = await replay(path)
    return {"shown": shown, "name": download.suggested_filename, "facts": replayed.facts}


async def look(visit: Visit) -> dict[str, Any]:
    """Look at the list, a shortened transcript, the events and the statistics."""
    await visit.desk.begin_long().result()
    page = visit.page
    await visit.open()
    statistics = await page.locator(".statistics").first.inner_text()
    await page.get_by_role("searchbox").fill("long no-such-word")
    nothing = await page.locator(".list .nothing").inner_text()
    await page.get_by_role("searchbox").fill("scene LONG")
    listed = await page.locator(".list .prompt").all_text_contents()
    await page.get_by_role("link", name="Scene long").first.click()
    await expect(page).to_have_title("Scene long · toolbus inspector")
    await page.get_by_role("link", name="Transcript").click()
    hint = await page.locator(".transcript > .hint").first.inner_text()
    stored = await page.locator(".transcript").inner_text()
    await page.get_by_role("button", name="As sent").click()
    sent = await page.locator(".transcript").inner_text()
    await page.get_by_role("link", name="Events").click()
    await page.locator(".events summary").first.wait_for()
    every = await page.locator(".events summary code").all_text_contents()
    await page.get_by_label("Show").select_option("signals")
    await expect(page.locator(".events summary code", has_text="tool_call_completed")).to_have_count(0)
    signals = sorted({*await page.locator(".events summary code").all_text_contents()})
    await visit.desk.begin("plain", "ימין ושמאל? Right and left").result()
    await visit.open("ימין")
    await page.get_by_role("link", name="Transcript").click()
    directions = [
        await page.locator(each).first.evaluate("(each) => getComputedStyle(each).direction")
        for each in ("h1", ".message.tool pre", ".message.user pre")
    ]
    return {
        "directions": directions,
        "statistics": statistics,
        "nothing": nothing,
        "listed": listed,
        "hint": hint,
        "stored": stored,
        "sent": sent,
        "every": every,
        "signals": signals,
    }


async def attack(visit: Visit) -> dict[str, Any]:
    """Look at everything that an attacker may have written, and decide on it."""
    prompt = "<img src=x onerror=\"document.title='XSS'\"> Attack"
    session = visit.desk.begin("attack", prompt)
    page = visit.page
    await visit.open("Attack")
    await page.get_by_role("region", name="Decision on book_hotel").wait_for()
    texts = [await page.locator("body").inner_text()]
    for name in await page.locator(".timeline .label").all():
        await name.click()
    texts.append(await page.locator(".timeline").text_content() or "")
    await page.get_by_role("button", name="Edit arguments").click()
    for tab in ("Transcript", "Events"):
        await page.get_by_role("link", name=tab).click()
        await page.locator(".message, .events summary").first.wait_for()
        await page.evaluate("() => document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        texts.append(await page.locator("article").text_content() or "")
    elements = await page.locator("#app img, #app script, #app iframe, #app svg, #app style, #app object").count()
    await page.get_by_role("button", name="Deny").click()
    await visit.state("completed")
    await session.result()
    inline = await page.evaluate(
        """() => { try { document.body.insertAdjacentHTML('beforeend', "<img src=x onerror=\\"document.title='XSS'\\">"); }
        catch (error) { return error.name; } return 'inserted'; }"""
    )
    return {"title": await page.title(), "elements": elements, "texts": texts, "insert": inline}


async def strangers(visit: Visit) -> dict[str, Any]:
    """Send commands from a page without the token, and from a page of another origin."""
    session = visit.desk.begin("hang", "Leave this alone")
    await visit.open("Leave this alone")
    address = visit.desk.address.partition("#")[0]
    path = f"{address}api/requests/{session.request_id}/cancel"
    own = await visit.page.evaluate("async (path) => (await fetch(path, {method: 'POST', body: '{}'})).status", path)
    shown_address = visit.page.url
    found: dict[str, Any] = {"without_token": own, "address": shown_address}
    app = Starlette(routes=[Route("/", evil)])
    async with served(app) as port:
        other = await visit.page.context.new_page()
        await other.goto(f"http://127.0.0.1:{port}/")
        for mode in ("cors", "no-cors"):
            found[mode] = await other.evaluate(
                """async ([path, mode]) => { try { return (await fetch(path, {method: 'POST', mode, body: '{}',
                headers: mode === 'cors' ? {authorization: 'Bearer inspector-token-of-the-tests'} : {}})).type; }
                catch (error) { return error.name; } }""",
                [path, mode],
            )
        found["framed"] = await other.evaluate(
            """(address) => new Promise((done) => { const frame = document.createElement('iframe');
            frame.src = address; frame.onload = () => { try { done(frame.contentDocument ? 'own' : 'foreign'); }
            catch (error) { done(error.name); } }; document.body.append(frame); })""",
            address,
        )
        found["frames"] = [each.url for each in other.frames]
    found["still_runs"] = not session.ended
    session.cancel()
    visit.complaints.clear()  # The browser reports what was refused.
    return found


async def evil(_request: Request) -> HTMLResponse:
    """Serve an empty page of another origin."""
    return HTMLResponse("<title>evil</title>")


async def keyboard(visit: Visit) -> dict[str, Any]:
    """Find a request, look at its events, and approve a call, with keys only."""
    session = visit.desk.begin("trip", "Keys only")
    await visit.open()
    page = visit.page
    await page.get_by_role("link", name="Keys only").first.wait_for()
    reached: list[str] = []

    async def go_to(words: str) -> None:
        for _ in range(_MAX_TABS):
            await page.keyboard.press("Tab")
            name = await page.evaluate(
                "() => `${document.activeElement.textContent} ${document.activeElement.getAttribute('aria-label') ?? ''}`"
            )
            outline = await page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
            if words in name:
                reached.append(f"{words}: {outline}")
                return
        raise AssertionError(f"{words} is not reached by the tab key")

    await go_to("Keys only")
    await page.keyboard.press("Enter")
    await page.locator(".timeline .row").first.wait_for()
    await go_to("Events (")
    await page.keyboard.press("Enter")
    await page.locator(".events summary").first.wait_for()
    await page.reload()
    await page.locator(".events summary").first.wait_for()
    await go_to("Skip to the request")
    await page.keyboard.press("Enter")
    await go_to("Approve")
    await page.keyboard.press("Space")
    await visit.state("completed")
    reached.append(await page.evaluate(_FOCUSED))
    result = await session.result()
    return {"reached": reached, "outcome": result.outcome}


async def narrow(visit: Visit) -> dict[str, Any]:
    """Use the page on a small screen: nothing is wider than the screen, and the list comes back."""
    await visit.page.set_viewport_size({"width": 400, "height": 800})
    visit.desk.begin("trip", "On a small screen")
    await visit.open("On a small screen")
    wide: dict[str, int] = {}
    for tab in ("Timeline", "Transcript", "Events"):
        await visit.page.get_by_role("link", name=tab).click()
        await visit.page.locator(".row, .message, .events summary").first.wait_for()
        wide[tab] = await visit.page.evaluate("() => document.getElementById('main').scrollWidth")
    focused: list[str] = []
    for name in ("All requests", "On a small screen"):
        link = await visit.page.get_by_role("link", name=name).first.element_handle()
        await link.press("Enter")
        has_left = "link => ![link, document.body].includes(document.activeElement)"
        await visit.page.wait_for_function(has_left, arg=link)
        focused.append(await visit.page.evaluate(_FOCUSED))
    await visit.page.get_by_role("link", name="All requests").click()
    await visit.page.get_by_role("searchbox").wait_for()
    width = await visit.page.evaluate("() => document.documentElement.scrollWidth")
    return {"widths": wide, "list": width, "focused": focused}


async def barriers(context: BrowserContext, where: Desk) -> dict[str, dict[str, list[str]]]:
    """Let axe look at each view, in each colour scheme."""
    page = await context.new_page()
    await page.add_init_script(path=npm_servers.installed() / "node_modules/axe-core/axe.min.js")
    visit = Visit(page, where)
    found: dict[str, dict[str, list[str]]] = {scheme: {} for scheme in _SCHEMES}

    async def examine(name: str) -> None:
        for scheme, rules in _SCHEMES.items():
            await page.emulate_media(color_scheme=scheme)
            found[scheme][name] = await page.evaluate(_AXE, rules)

    await page.goto(where.address.partition("#")[0])
    await page.get_by_label("Token").wait_for()
    await examine("token")
    await visit.open()
    await page.locator(".statistics").first.wait_for()
    await examine("overview")
    await visit.open("With all barriers")
    await page.get_by_role("button", name="Edit arguments").first.click()
    await page.locator(".timeline .label").nth(3).click()
    await page.get_by_role("button", name="Steer").click()
    await examine("timeline")
    await page.get_by_role("link", name="Transcript").click()
    await page.locator(".message").first.wait_for()
    await examine("transcript")
    await page.get_by_role("link", name="Events").click()
    await page.locator(".events summary").first.click()
    await examine("events")
    await page.set_viewport_size({"width": 375, "height": 800})
    await examine("narrow")
    await page.close()
    return found


async def many(visit: Visit) -> dict[str, Any]:
    """Watch 200 requests that publish 2,000 events a second together, and count what a frame costs."""
    runtime, page = visit.desk.runtime, visit.page
    script = [calls(("wait_for_payment", {"invoice": "1"}), ("wait_for_payment", {"invoice": "2"})), text("Thank you.")]
    provider = ScriptedProvider(lambda request: script[0] if len(request.messages) < 2 else script[1])
    sessions = [runtime.start(f"Live request {number}", provider=provider) for number in range(_LIVE_REQUESTS)]
    await anyio.sleep(0.5)
    await visit.open("Live request 150")
    open_calls = [(each.request_id, call) for each in sessions for call in each.snapshot().view.state.open_calls]
    for _ in range(_ATTEMPTS):
        events, tasks = await _live(visit, open_calls)
        if max(tasks) < _FRAME_MS:
            break
    heap = await page.evaluate("() => performance.memory.usedJSHeapSize")
    count = await page.locator(".list li").count()
    note = await page.locator(".timeline").text_content() or ""
    for each in sessions:
        each.cancel()
    return {
        "events_a_second": events / _LIVE_SECONDS,
        "requests": count,
        "longest_task_ms": max(tasks),
        "busy_ms_a_second": sum(tasks) / _LIVE_SECONDS,
        "heap_mb": heap / 2**20,
        "renderer_mb": max(_renderers()) / 2**20,
        "rows": note.count("wait_for_payment"),
    }


async def _live(visit: Visit, open_calls: list[tuple[str, str]]) -> tuple[int, list[float]]:
    """Publish progress of these calls for a while; return the number of events, and the times of the page's tasks."""
    runtime, page = visit.desk.runtime, visit.page
    browser_ = page.context.browser
    assert browser_ is not None
    await browser_.start_tracing(page=page, categories=["toplevel", "devtools.timeline"])
    published, began = 0, anyio.current_time()
    before = runtime.statistics().bus.position
    while (passed := anyio.current_time() - began) < _LIVE_SECONDS:
        while published < passed * _EVENTS_A_SECOND:
            request_id, call_id = open_calls[published % len(open_calls)]
            runtime.bus.publish(
                ToolCallProgress(
                    request_id=request_id,
                    call_id=call_id,
                    name="wait_for_payment",
                    message=f"step {published}",
                    done=published,
                )
            )
            published += 1
        await anyio.sleep(0.005)
    events = runtime.statistics().bus.position - before
    return events, _tasks_of_pages(json.loads(await browser_.stop_tracing())["traceEvents"])


def _tasks_of_pages(trace: list[dict[str, Any]]) -> list[float]:
    """Return the milliseconds of processor time that each task of a page's main thread took."""
    names = {(each["pid"], each["tid"]): each["args"]["name"] for each in trace if each.get("name") == "thread_name"}
    tasks = [each for each in trace if each.get("name", "").endswith("RunTask")]
    return [each.get("tdur", 0) / 1_000 for each in tasks if names.get((each["pid"], each["tid"])) == "CrRendererMain"]


def _renderers() -> list[int]:
    """Return the bytes that the browser's pages use, each in a process of its own."""
    found = [
        each.memory_full_info().uss
        for each in psutil.Process().children(recursive=True)
        if "--type=renderer" in each.cmdline()
    ]
    return found or [0]


def results_of(session: Any) -> list[str]:
    """Return the results that the model has read."""
    return [each.content for each in session.messages if isinstance(each, ToolMessage)]


PARTS: dict[str, Callable[[Visit], Awaitable[dict[str, Any]]]] = {
    each.__name__: each
    for each in (approve, edit, deny, cancel, answer, record, look, attack, strangers, keyboard, narrow)
}


async def driven(names: list[str]) -> dict[str, Any]:
    """Return what came of each part."""
    found: dict[str, Any] = {}
    async with browser.opened() as chromium, desk() as where:
        for name in names:
            if name in PARTS:
                found[name] = await _part(chromium, where, PARTS[name])
        if "barriers" in names:
            where.begin("pair", "With all barriers")
            context = await chromium.new_context()
            try:
                found["barriers"] = await barriers(context, where)
            except Exception:
                found["barriers"] = {"error": traceback.format_exc()}
            await context.close()
        # The last part, since its 200 requests would slow down what follows.
        if "many" in names:
            found["many"] = await _part(chromium, where, many)
        for session in where.sessions:
            session.cancel()
    return found


async def _part(chromium: Browser, where: Desk, part: Callable[[Visit], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    context = await chromium.new_context()
    visit = Visit(await context.new_page(), where)
    try:
        found = await part(visit)
    except Exception:
        said = await visit.page.locator("body").inner_text()
        return {"error": traceback.format_exc(), "page": said, "complaints": visit.complaints}
    finally:
        await context.close()
    port = where.address.split("/")[2]
    strange = sorted(
        each for each in visit.asked if each.split("/")[2:3] != [port] and not each.startswith(("data:", "blob:"))
    )
    return {**found, "complaints": visit.complaints, "other_hosts": strange}


def main(names: list[str]) -> None:
    """Drive the parts of these names, or all, and print what came of them."""
    sys.stdout.write(json.dumps(anyio.run(driven, names or [*PARTS, "barriers", "many"])))


if __name__ == "__main__":
    main(sys.argv[1:])
