"""Folders that change while they are listed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from tests.simulation.machine import ROOT, Machine, installed
from tests.simulation.scheduler import Rates, Scheduler

FOLDER: Final = Path(ROOT) / "folder"


def _make(looks: int) -> None:
    FOLDER.mkdir()
    for _ in range(looks):
        FOLDER.stat()  # what is listed depends on how much has happened
    (FOLDER / "old").touch(exist_ok=False)
    (FOLDER / "stays").touch(exist_ok=False)


def _rename() -> None:
    (FOLDER / "old").rename(FOLDER / "new")


def _listed(number: int) -> tuple[str, ...]:
    """List the folder while a file in it is renamed."""
    scheduler = Scheduler(f"listings/{number}", Rates(2, {}), start_ns=0)
    seen: list[Path] = []
    with installed(Machine(scheduler, listings_take_time=True)):
        scheduler.run({"first": partial(_make, number % 20)}, calm=True)
        scheduler.run(
            {"one": _rename, "two": lambda: seen.extend(path.name for path in FOLDER.iterdir())}
        )
    return tuple(sorted(seen))


def test_what_is_renamed_meanwhile_is_listed_under_any_of_its_names_or_none() -> None:
    found = {_listed(number) for number in range(200)}
    assert found == {
        ("stays",),
        ("new", "stays"),
        ("old", "stays"),
        ("new", "old", "stays"),
    }
