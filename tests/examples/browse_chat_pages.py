"""Uses the chat pages of the FastAPI example in Chromium: `python browse_chat_pages.py ADDRESS FOLDER`.

Prints one line of JSON: what each page shows at the end, its errors, and the hosts that it asked. Screenshots go into
FOLDER.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, expect

from support import browser

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cf500f00038601"
    "80a3a72c3d0000000049454e44ae426082"
)


class Visit:
    """One page, with what went wrong on it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda line: self.errors.append(line.text) if line.type in ("error", "warning") else None)
        page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]) if "://" in request.url else None)

    async def ask(self, words: str) -> None:
        await self.page.get_by_label("Question").fill(words)
        await self.page.get_by_role("button", name="Send").click()

    async def decides(self) -> None:
        """Approve the first call and deny the second; until then, nothing else can be sent."""
        await expect(self.page.get_by_role("button", name="Approve")).to_have_count(2)
        await self.page.get_by_label("Question").fill("what time is it")
        await self.page.get_by_label("Question").press("Enter")
        await self.shows("Approve or deny the call")
        await self.page.get_by_role("button", name="Approve").first.click()
        await expect(self.page.get_by_role("button", name="Approve")).to_have_count(1)
        await self.page.get_by_role("button", name="Deny").click()
        await self.shows("One of two was sent.")

    async def is_idle(self) -> None:
        await expect(self.page.get_by_role("button", name="Send")).to_be_visible()

    async def shows(self, words: str) -> None:
        await expect(self.page.locator("main")).to_contain_text(words)


async def chat(visit: Visit, address: str, folder: Path) -> None:
    """The page of useChat."""
    page = visit.page
    await page.goto(f"{address}/")
    await page.get_by_role("link", name="useChat").click()
    await page.get_by_label("Images").set_input_files({"name": "a.png", "mimeType": "image/png", "buffer": PIXEL})
    await visit.ask("send it")
    await visit.decides()
    await visit.is_idle()
    await page.screenshot(path=folder / "chat.png", full_page=True)
    await visit.ask("what time is it")
    await visit.shows("It is that late: 1.")
    await visit.is_idle()
    await page.get_by_role("button", name="Ask again").click()
    await visit.shows("It is that late: 2.")
    await expect(page.get_by_text("It is that late")).to_have_count(1)
    await visit.is_idle()
    await visit.ask("wait a little")
    await visit.shows("I am begin")
    await page.reload()  # in the middle of the answer
    await visit.shows("I am begin")
    await page.screenshot(path=folder / "chat-reloaded.png", full_page=True)
    await page.get_by_role("button", name="Stop").click()
    await visit.is_idle()
    await visit.ask("hostile")
    await visit.shows("That was hostile.")
    await visit.is_idle()
    await page.emulate_media(color_scheme="dark")
    await page.set_viewport_size({"width": 400, "height": 800})
    await page.screenshot(path=folder / "chat-dark.png")


async def agent(visit: Visit, address: str, folder: Path) -> None:
    """The page of AG-UI."""
    page = visit.page
    await page.goto(f"{address}/")
    await page.get_by_role("link", name="HttpAgent").click()
    await visit.ask("send it")
    await expect(page.get_by_role("button", name="Approve")).to_have_count(2)
    await page.reload()  # while it asks
    await visit.decides()
    await visit.is_idle()
    await page.screenshot(path=folder / "agent.png", full_page=True)
    await visit.ask("what time is it")
    await visit.shows("It is that late: 3.")
    await visit.is_idle()
    await visit.ask("wait a little")
    await visit.shows("I am begin")
    await page.reload()  # in the middle of the answer
    await visit.shows("I am begin")
    await expect(page.get_by_text("send_message")).to_have_count(2)
    await page.screenshot(path=folder / "agent-reloaded.png", full_page=True)
    await page.get_by_role("button", name="Stop").click()
    await visit.is_idle()
    await visit.ask("hostile")
    await visit.shows("That was hostile.")
    await visit.is_idle()
    await visit.ask("send it once more")
    await expect(page.get_by_role("button", name="Approve")).to_have_count(2)
    await page.clock.install()
    await page.clock.set_system_time(time.time() * 1_000 + 3_600_000)  # The questions have expired.
    for _ in range(2):
        await page.get_by_role("button", name="Approve").first.click()
    await expect(page.get_by_text("One of two was sent.")).to_have_count(2)
    await visit.is_idle()
    await page.reload()
    await visit.shows("One of two was sent.")


async def main(address: str, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with browser.opened() as chromium:
        for name, use in (("chat", chat), ("agent", agent)):
            found[name] = await _used(chromium, use, address, folder)
    return found


async def _used(chromium: Browser, use: Any, address: str, folder: Path) -> dict[str, Any]:
    page = await chromium.new_page()
    page.set_default_timeout(20_000)
    visit = Visit(page)
    try:
        await use(visit, address, folder)
    except Exception:
        await page.screenshot(path=folder / "failed.png", full_page=True)
        sys.stderr.write(f"{await page.locator('body').inner_text()} {visit.errors}\n")
        raise
    shown = await page.locator("main").inner_text()
    scripts = await page.locator("main script, main img[src=x]").count()
    await page.close()
    return {"shown": re.sub(r"\s+", " ", shown), "errors": visit.errors, "hosts": sorted(visit.hosts), "made": scripts}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(sys.argv[1], Path(sys.argv[2])))))
