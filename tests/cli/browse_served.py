"""Uses the page of `toolbus serve` in Chromium: `python browse_served.py FOLDER`.

Starts the command in FOLDER itself, stops and kills it in the middle of an answer, and starts it again. Prints one line of JSON:
what the page shows, its errors, and what axe finds. Screenshots go into FOLDER.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from playwright.async_api import Page, Route, expect

from support import browser, npm_servers

AXE = (
    "async () => (await axe.run()).violations.flatMap((rule) => rule.nodes.map((node) => `${rule.id}: ${node.target}`))"
)

TAGS = "(whole) => Array.from(whole.querySelectorAll('*'), (each) => each.localName).join(' ')"


class Server:
    """The command, as a process."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address

    @classmethod
    async def started(cls, folder: Path, *options: str) -> Server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "toolbus", "serve", "--store", "chat.db", "--tools", "mine:TOOLS"),
            *("--provider", "mine:MODEL", *options),
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout is not None
        address = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
        return cls(process, address)

    async def ended(self, number: int) -> int:
        """Send a signal, and return the exit status."""
        self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 20)


async def ask(page: Page, words: str) -> None:
    await page.get_by_label("Question").fill(words)
    await page.keyboard.press("Enter")


async def answered(page: Page, words: str) -> None:
    """Ask, and wait for the end of the answer, also if its text is on the page already."""
    answers = page.get_by_role("article", name="Assistant")
    before = await answers.count()
    await ask(page, words)
    await expect(answers).to_have_count(before + 1)
    await is_idle(page)


async def shows(page: Page, words: str) -> None:
    await expect(page.locator("main")).to_contain_text(words)


async def is_idle(page: Page) -> None:
    await expect(page.get_by_role("button", name="Stop")).to_be_hidden()


async def said(page: Page) -> list[str]:
    """Return who has said what, by the first line."""
    articles = await page.get_by_role("article").all()
    return [
        f"{await each.get_attribute('aria-label')}: {(await each.inner_text()).splitlines()[0]}" for each in articles
    ]


async def steered(page: Page, folder: Path) -> list[list[str]]:
    """What the user sends while the answer arrives joins the running request, also if the page is loaded again."""
    await page.get_by_role("button", name="New conversation").click()
    await ask(page, "look at it")
    await shows(page, "running")
    await ask(page, "By day.")
    await shows(page, "The model reads this at its next step.")
    await page.screenshot(path=folder / "steered.png")
    found = [await said(page)]
    await page.reload()
    await shows(page, "The model reads this at its next step.")
    found.append(await said(page))
    # The request has ended meanwhile: the message is the next question.
    await page.route("**/steer", lambda route: route.fulfill(status=409, json={"status": "ended"}))
    await ask(page, "markdown")
    await asyncio.to_thread((folder / "ready").write_text, "go")
    await shows(page, "not bold")
    await is_idle(page)
    found.append((await said(page))[:5])
    await page.reload()
    await shows(page, "not bold")
    await is_idle(page)
    found.append((await said(page))[:5])
    await page.unroute("**/steer")
    return found


async def steered_early(page: Page) -> list[list[str]]:
    """What the user sends while a request begins goes to it, and shows although the model still writes."""
    begins = asyncio.Event()

    async def begin(route: Route) -> None:
        await begins.wait()
        await route.continue_()

    async def questions() -> list[str]:
        return [each for each in await said(page) if each.startswith("You")]

    await page.get_by_role("button", name="New conversation").click()
    await expect(page.get_by_role("article")).to_have_count(0)
    await page.route("**/chat", begin)
    await ask(page, "wait for it")
    await ask(page, "wait a little")
    begins.set()
    await shows(page, "I am begin")
    # The message before may be answered meanwhile, too.
    async with page.expect_response(lambda response: "wait on" in (response.request.post_data or "")) as steering:
        await ask(page, "wait on")
    response = await steering.value
    assert (response.status, response.url[-6:]) == (202, "/steer"), await response.text()  # The model still writes.
    found = [await questions()]
    await page.unroute("**/chat")
    await page.reload()
    await shows(page, "I am begin")
    await expect(page.locator(".user").last).to_contain_text("The model reads this at its next step.")
    found.append(await questions())
    await page.get_by_role("button", name="Stop").click()
    await shows(page, "It was stopped.")
    await is_idle(page)
    await expect(page.locator(".later")).to_have_count(0)  # It has joined the conversation.
    found.append(await questions())
    await page.reload()
    await shows(page, "It was stopped.")
    return [*found, await questions()]


async def loaded_again(page: Page) -> dict[str, list[list[str]]]:
    """A page that is loaded again shows the reasoning of an answer that was stopped, and that a message was refused."""
    await page.get_by_role("button", name="New conversation").click()
    await ask(page, "think")
    await shows(page, "Hm, perhaps")
    await page.get_by_role("button", name="Stop").click()
    await shows(page, "It was stopped.")
    await is_idle(page)
    stopped = [await said(page)]
    await page.reload()
    await shows(page, "It was stopped.")
    stopped.append(await said(page))

    async def refused(route: Route) -> None:
        """Add a message that a guardrail has refused before the other one, and one that was refused after it."""
        found = await (await route.fetch()).json()
        about = {"outcome": "failed", "explanation": "This is not allowed: No passwords."}
        (newest,) = found["requests"]
        later = {**about, "request_id": "b", "started_at": newest["started_at"] + 1}
        earlier = {**about, "request_id": "a", "started_at": newest["started_at"] - 1}
        await route.fulfill(json={**found, "requests": [later, newest, earlier]})

    await page.route("**/conversations/*", refused)
    await page.reload()
    await expect(page.get_by_text("This is not allowed: No passwords.")).to_have_count(2)
    await is_idle(page)
    found = {"stopped": stopped, "refused": [await said(page)]}
    await page.unroute("**/conversations/*")
    return found


async def decided_one_by_one(page: Page) -> None:
    """The result of a call that was approved is shown, although another one still waits for a decision."""
    await page.get_by_role("button", name="New conversation").click()
    await ask(page, "remove both")
    await expect(page.get_by_role("button", name="Approve")).to_have_count(2)
    await page.get_by_role("button", name="Approve").first.click()
    await expect(page.get_by_role("button", name="Approve")).to_have_count(1)
    await expect(page.locator("details").filter(has_text="<img src=x")).to_have_count(1)
    await expect(page.locator("summary").filter(has_text="running")).to_have_count(0)
    await page.get_by_role("button", name="Deny").click()
    await shows(page, "Nothing is gone.")
    await is_idle(page)


async def decided_meanwhile(page: Page, folder: Path) -> str:
    """A decision while another call runs is shown by the stream that is read already, and nothing is shown twice.

    The answer to the decision itself comes last, as from a slow server.
    """
    is_over = asyncio.Event()

    async def hold_back(route: Route) -> None:
        response = await route.fetch()
        await is_over.wait()
        await route.fulfill(response=response)

    await page.route("**/decide", hold_back)
    await page.get_by_role("button", name="New conversation").click()
    await ask(page, "mixed")
    await page.get_by_role("button", name="Approve").click()
    await expect(page.locator("details").filter(has_text="<img src=x")).to_have_count(1)
    await asyncio.to_thread((folder / "ready").write_text, "go")
    await shows(page, "Both are done.")
    async with page.expect_response("**/decide"):
        is_over.set()
    await page.unroute("**/decide")
    await is_idle(page)
    return re.sub(r"\s+", " ", await page.get_by_role("article", name="Assistant").inner_text())


async def directions(page: Page) -> list[str]:
    """Return the directions of writing of a question, of what its answer consists of, and of the empty field."""
    await ask(page, "ימין ושמאל")
    await shows(page, "Left.")
    await is_idle(page)
    found = page.locator("article").nth(-2).locator("> *").or_(page.locator("article").last.locator("p, ul, pre"))
    shown = [await each.evaluate("(each) => getComputedStyle(each).direction") for each in await found.all()]
    await page.get_by_label("Question").fill("ימין")
    shown.append(await page.get_by_label("Question").evaluate("(each) => getComputedStyle(each).direction"))
    await page.get_by_label("Question").fill("")
    return shown


async def decided_in_two_tabs(page: Page, server: Server) -> None:
    """The second decision comes too late, and the page shows the first one."""
    await ask(page, "remove both")
    await expect(page.get_by_role("button", name="Approve")).to_have_count(2)
    await page.locator("main").evaluate("(list) => { list.scrollTop = 0; }")
    await ask(page, "now")
    await expect(page.get_by_text("Approve or deny the call first.")).to_be_in_viewport()
    await page.get_by_label("Question").fill("")
    assert page.context.browser is not None
    other = await page.context.browser.new_page()
    await other.goto(f"{server.address}&conversation={page.url.split('conversation=')[1]}")
    await other.get_by_role("button", name="Deny").first.click()
    await expect(other.get_by_role("button", name="Deny")).to_have_count(1)
    await page.get_by_role("button", name="Approve").first.click()
    await expect(page.get_by_role("button", name="Deny")).to_have_count(1)
    await expect(page.locator("summary").filter(has_text="denied")).to_have_count(1)
    await page.get_by_role("button", name="Deny").click()
    await shows(page, "Nothing is gone.")
    await is_idle(page)
    # A tab that is looked at again shows what was asked in the other one.
    await other.bring_to_front()
    await other.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await shows(other, "Nothing is gone.")
    await is_idle(other)
    await answered(page, "hostile again")
    await other.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await shows(other, "hostile again")
    await other.close()


async def used(page: Page, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    server = await Server.started(folder)
    port = server.address.split(":")[2].split("/")[0]
    try:
        await page.goto(server.address.split("#")[0])
        await shows(page, "Open this page with the address that toolbus serve has printed.")
        await page.goto(server.address)
        await is_idle(page)
        await ask(page, "remove it")
        await page.get_by_role("button", name="Approve").click()
        await shows(page, "It is gone.")
        await is_idle(page)
        await decided_in_two_tabs(page, server)
        await ask(page, "markdown")
        await shows(page, "not bold")
        await is_idle(page)
        answer = page.locator(".markdown").last
        found["markdown"] = await answer.evaluate(TAGS)
        found["links"] = [await each.get_attribute("href") for each in await answer.locator("a").all()]
        found["code"] = (await answer.locator("pre").inner_text()).strip()
        found["prose"] = re.sub(r"\s+", " ", await answer.inner_text())
        await page.screenshot(path=folder / "serve.png", full_page=True)
        found["barriers"] = await page.evaluate(AXE)
        await ask(page, "deep")
        await shows(page, ">>>> deep")
        await is_idle(page)
        await answered(page, "hostile")
        await shows(page, "<img src=x onerror=")
        await ask(page, "malformed")
        await shows(page, 'photo"{\\"a\\":"failed')
        await is_idle(page)
        await page.reload()
        await shows(page, 'photo"{\\"a\\":"failed')
        await is_idle(page)
        await ask(page, "count on")
        await expect(page.get_by_role("group", name="Decision on count")).to_contain_text("9007199254740993")
        await page.get_by_role("button", name="Approve").click()
        await shows(page, "Counted.")
        await is_idle(page)
        found["numbers"] = [await page.locator("details").last.evaluate("(call) => call.textContent")]
        await page.reload()
        await shows(page, "Counted.")
        found["numbers"].append(await page.locator("details").last.evaluate("(call) => call.textContent"))
        await is_idle(page)
        await ask(page, "give up")
        await shows(page, "I could not finish: It is locked.")
        await is_idle(page)
        given_up = await said(page)
        await page.reload()
        await shows(page, "I could not finish: It is locked.")
        await is_idle(page)
        found["given up"] = [given_up[-2:], (await said(page))[-2:]]
        await ask(page, "complete it")
        await shows(page, "All sorted.")
        await is_idle(page)
        await ask(page, "photo")
        await shows(page, "A pixel.")
        await is_idle(page)
        await page.locator("summary").last.click()
        found["picture"] = await page.get_by_alt_text("Picture from photo").evaluate(
            "async (image) => (await image.decode(), image.naturalWidth)"
        )
        await page.locator("main").evaluate(
            "(list) => { list.scrollTop = 0; }"
        )  # The user reads something above, and asks.
        await ask(page, "wait a little")
        await expect(page.locator(".user").last).to_be_in_viewport()
        await shows(page, "I am begin")
        found["roles"] = [await each.get_attribute("aria-label") for each in await page.get_by_role("article").all()]
        await page.get_by_role("button", name="Stop").click()
        await shows(page, "It was stopped.")
        await is_idle(page)
        found["directions"] = await directions(page)
        found["loaded again"] = await loaded_again(page)
        await decided_one_by_one(page)
        found["meanwhile"] = await decided_meanwhile(page, folder)
        found["steered"] = await steered(page, folder)
        found["steered early"] = await steered_early(page)
        await page.get_by_role("button", name="New conversation").click()
        await ask(page, "slow")
        await shows(page, "one two")
        conversation = page.url.split("conversation=")[1]
        await server.ended(signal.SIGTERM)
        await shows(page, "The server cannot be reached.")
        server = await Server.started(folder, "--port", port)
        await page.goto("about:blank")
        await page.goto(f"{server.address}&conversation={conversation}")
        await shows(page, "one two")
        await page.reload()
        await shows(page, "one two")
        await expect(page.get_by_role("link", name="remove it")).to_be_visible()
        await server.ended(signal.SIGKILL)
        await shows(page, "The server cannot be reached.")
        conversation = page.url.split("conversation=")[1]
        (folder / "killed").touch()
        server = await Server.started(folder, "--port", port)
        await page.goto("about:blank")
        await page.goto(f"{server.address}&conversation={conversation}")
        # The lease of the process that was killed runs out first.
        await expect(page.locator("main")).to_contain_text("one two three", timeout=30_000)
        await is_idle(page)
        await page.get_by_role("link", name="remove it").click()
        await shows(page, "It is gone.")
        await shows(page, "It was stopped.")
        await page.set_viewport_size({"width": 400, "height": 800})
        await page.emulate_media(color_scheme="dark")
        await page.screenshot(path=folder / "serve-dark.png")
        found["shown"] = re.sub(r"\s+", " ", await page.locator("main").inner_text())
        found["made"] = await page.locator(
            "main :is(img:not([src^='data:image/png']), script, svg, iframe, style, base)"
        ).count()
        found["status"] = await server.ended(signal.SIGINT)
    finally:
        if server.process.returncode is None:
            server.process.kill()
    return found


async def main(folder: Path) -> dict[str, Any]:
    errors: list[str] = []
    hosts: set[str] = set()
    async with browser.opened() as chromium:
        page = await chromium.new_page(bypass_csp=False)
        page.set_default_timeout(20_000)
        # The page's policy forbids other scripts, so the browser adds this one before the page begins.
        await page.add_init_script(path=npm_servers.installed() / "node_modules/axe-core/axe.min.js")
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if line.type in ("error", "warning") else None)
        page.on("request", lambda request: hosts.add(request.url.split("/")[2].split(":")[0]))
        try:
            found = await used(page, folder)
        except Exception:
            await page.screenshot(path=folder / "failed.png")
            sys.stderr.write(f"{await page.locator('body').inner_text()} {errors}\n")
            raise
    return {**found, "errors": errors, "hosts": sorted(hosts)}


if __name__ == "__main__":
    os.environ.pop("TOOLBUS_STORE", None)
    sys.stdout.write(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
