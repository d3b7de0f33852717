"""A reader of the site in a real browser: opens pages, searches, and prints what it saw as JSON.

    python tests/docs_site/browse.py SITE '{"pages": ["index.html"], "searches": ["stop after 2 dollars"]}'

It prints `asked` (the addresses that the pages have loaded), `complaints` (messages of the browser's console),
`barriers` (for each page, the violations that axe finds, such as too little contrast), and `found`: for each search,
the addresses of the results, best first, each relative to the site.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from playwright.async_api import TimeoutError as NothingFound

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from docs_site.__main__ import serve  # noqa: E402

from support import browser, npm_servers  # noqa: E402

if TYPE_CHECKING:
    from playwright.async_api import Page


# Three rules are left out, because only the theme could keep them: the names of its navigation and of its wrappers.
_BARRIERS = """async () => (await axe.run({rules: Object.fromEntries(
    ["landmark-unique", "scrollable-region-focusable", "empty-table-header"].map((rule) => [rule, {enabled: false}]),
)})).violations.flatMap(
    (rule) => rule.nodes.map((node) => `${rule.impact} ${rule.id}: ${node.target}`))"""


async def browsed(address: str, pages: list[str], searches: list[str]) -> dict[str, Any]:
    """What the browser asked for, complained about, and found."""
    asked: set[str] = set()
    complaints: list[str] = []
    barriers: dict[str, list[str]] = {}
    async with browser.opened() as chromium:
        page = await chromium.new_page()
        page.on("request", lambda request: asked.add(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        for path in pages:
            await page.goto(address + path, wait_until="networkidle")
            await page.add_script_tag(path=npm_servers.installed() / "node_modules/axe-core/axe.min.js")
            barriers[path] = await page.evaluate(_BARRIERS)
        await page.goto(address, wait_until="networkidle")
        await page.keyboard.press("Control+k")
        found = {words: await _results(page, address, words) for words in searches}
    return {"asked": sorted(asked), "complaints": complaints, "barriers": barriers, "found": found}


async def _results(page: Page, address: str, words: str) -> list[str]:
    options = page.get_by_role("option")
    await page.get_by_role("combobox").fill(" ")
    await options.first.wait_for(state="hidden")
    await page.get_by_role("combobox").fill(words)
    with contextlib.suppress(NothingFound):  # then there are none
        await options.first.wait_for(timeout=60_000)
    return [(await each.get_attribute("href") or "").removeprefix(address) for each in await options.all()]


def main(site: str, wanted: dict[str, list[str]]) -> None:
    """Serve the folder, browse it, and print what was seen."""
    with serve(Path(site), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        seen = anyio.run(browsed, address, wanted["pages"], wanted["searches"])
        sys.stdout.write(json.dumps({"address": address, **seen}))
        server.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
