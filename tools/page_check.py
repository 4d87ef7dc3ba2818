"""Look at the site and at a report as a browser shows them, and hold the dashboard to its schema.

``python tools/page_check.py SITE REPORT DASHBOARD SHOTS``, in the environment of ``make docs``,
which has no kafkalog. Each page is shown at three widths, light and dark: no page may be broader
than the screen, axe-core may find nothing serious, and the search of the site finds an option.
Pictures are left in SHOTS, to look at.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTHS: Final = (390, 768, 1280)
SCHEMES: Final = ("light", "dark")
SITE_PAGES: Final = (
    *("index", "when", "install", "first-hour", "operations", "options", "source", "recipes"),
    *("monitoring", "troubleshooting", "glossary", "commands/consume", "api/kafkalog.errors"),
)
_SERIOUS: Final = {"serious", "critical"}
_SEARCHED: Final = ("maxBytesPerTrigger", "source.html")
"""A word, and a page that has it."""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print no line for each request."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a folder on loopback, and yield its address: browsers let no file search."""
    handler = partial(_Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def look_at(pages: dict[str, str], shots: Path) -> Iterator[str]:
    """Yield what is wrong with the pages at addresses, by their names; leave a picture of each."""
    from axe_playwright_python.sync_playwright import Axe  # noqa: PLC0415
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    shots.mkdir(parents=True, exist_ok=True)
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        yield "there is no chromium: install one, or name it in CHROMIUM"
        return
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for scheme in SCHEMES:
            for width in WIDTHS:
                context = browser.new_context(
                    viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
                )
                tab = context.new_page()
                for name, address in pages.items():
                    tab.goto(address)
                    tab.wait_for_timeout(200)
                    where = f"{name}, {width} px, {scheme}"
                    yield from _faults(where, tab, Axe())
                    shot = f"{name.replace('/', '-')}-{width}-{scheme}.png"
                    tab.screenshot(path=shots / shot, full_page=name == "report")
                yield from _search(f"{width} px, {scheme}", tab, pages["index"])
                context.close()
        browser.close()


def _search(where: str, tab: Any, index: str) -> Iterator[str]:  # noqa: ANN401 - untyped library
    from playwright.sync_api import TimeoutError as NotSeenError  # noqa: PLC0415

    word, page = _SEARCHED
    tab.goto(index)
    tab.keyboard.press("/")
    tab.keyboard.type(word)
    try:
        tab.wait_for_selector(f".md-search-result__link[href*='{page}']", timeout=10_000)
    except NotSeenError:
        yield f"search, {where}: {word} is not found in {page}"


def _faults(where: str, tab: Any, axe: Any) -> Iterator[str]:  # noqa: ANN401 - untyped libraries
    over = tab.evaluate("document.documentElement.scrollWidth - innerWidth")
    if over > 0:
        yield f"{where}: broader than the screen by {over} px"
    for fault in axe.run(tab).response["violations"]:
        if fault["impact"] in _SERIOUS:
            places = [node["html"][:160] for node in fault["nodes"]]
            yield f"{where}: {fault['id']}: {fault['help']}: {len(places)} times, {places[:3]}"


def not_in_schema(dashboard: Path) -> Iterator[str]:
    """Yield the parts of a dashboard that Grafana's schema does not know."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: PLC0415
    from grafana_foundation_sdk.models.dashboard import Dashboard  # noqa: PLC0415

    given = json.loads(dashboard.read_text(encoding="utf-8"))
    yield from _lost(given, json.loads(JSONEncoder().encode(Dashboard.from_json(given))), "")


def _lost(given: object, kept: object, where: str) -> Iterator[str]:
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            if name in kept:
                yield from _lost(value, kept[name], f"{where}/{name}")
            else:
                yield f"dashboard: {where}/{name} is not in the schema"
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, pair in enumerate(zip(given, kept, strict=True)):
            yield from _lost(*pair, f"{where}/{number}")
    elif given != kept:
        yield f"dashboard: {where} is {given!r}, and {kept!r} by the schema"


def main(site: Path, report: Path, dashboard: Path, shots: Path) -> int:
    """Print what is wrong; return an exit code."""
    with served(site) as address:
        pages = {name: f"{address}/{name}.html" for name in SITE_PAGES}
        pages["report"] = report.resolve().as_uri()
        wrong = [*not_in_schema(dashboard), *look_at(pages, shots)]
    for line in wrong:
        print(line)
    print(f"{len(pages)} pages at {WIDTHS} px, light and dark: {len(wrong)} faults; see {shots}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:5])))
