"""Look at the site and at a report as a browser shows them, and hold the dashboard to its schema.

``python tools/page_check.py SITE REPORT DASHBOARD SHOTS``, in the environment of ``make docs``,
which has no kafkalog. Each page is shown at three widths, light and dark: no page may be broader
than the screen, and axe-core may find nothing serious. Pictures are left in SHOTS, to look at.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
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


def look_at(pages: dict[str, Path], shots: Path) -> Iterator[str]:
    """Yield what is wrong with pages, by their names; leave a picture of each."""
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
                for name, path in pages.items():
                    tab.goto(path.as_uri())
                    tab.wait_for_timeout(200)
                    where = f"{name}, {width} px, {scheme}"
                    yield from _faults(where, tab, Axe())
                    shot = f"{name.replace('/', '-')}-{width}-{scheme}.png"
                    tab.screenshot(path=shots / shot, full_page=name == "report")
                context.close()
        browser.close()


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
    pages = {name: (site / f"{name}.html").resolve() for name in SITE_PAGES}
    pages["report"] = report.resolve()
    wrong = [*not_in_schema(dashboard), *look_at(pages, shots)]
    for line in wrong:
        print(line)
    print(f"{len(pages)} pages at {WIDTHS} px, light and dark: {len(wrong)} faults; see {shots}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:5])))
