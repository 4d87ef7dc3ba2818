"""``view=latest`` and look-ups of keys, in a directory that a broker writes and compacts."""

from __future__ import annotations

import os
import time
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.support.broker_load import SETTINGS, TOPICS, Load
from tests.support.kafka import Broker
from tests.support.newest import open_spills, spilling

import kafkalog
from kafkalog.errors import DataLossError

if TYPE_CHECKING:
    from tests.support.broker_load import Place

pytestmark = pytest.mark.interop

SECONDS: Final = int(os.environ.get("KAFKALOG_LIVE_SECONDS", "6"))
CATCH_UP_SECONDS: Final = 60
TOPIC: Final = "compacted"

Seen = dict[bytes, int]
"""The offset of each key's row."""


def test_each_row_is_the_newest_of_its_key_while_a_cleaner_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spills = tmp_path / "spills"
    spills.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(spills))
    views: list[Seen] = []
    found: list[dict[str, Any]] = []
    refused: list[str] = []
    with Broker(tmp_path / "broker", settings=SETTINGS) as broker:
        broker.create_topics(*TOPICS)
        path = str(broker.log_dirs[0])
        with Load(broker) as load:
            wait_for_a_record(load)
            end = time.monotonic() + SECONDS
            for turn in count():
                if time.monotonic() >= end + (0 if views else CATCH_UP_SECONDS):
                    break
                with monkeypatch.context() as patch:
                    if turn % 2:
                        spilling(patch)
                    try:
                        views.append(view(path, cleaned_amid=turn % 3 == 0))
                    except DataLossError as error:
                        refused.append(str(error))
                found += look_ups(path, turn, refused)
        assert load.failures == []
        newest = {key: place[2] for key, place in load.newest.items() if key is not None}
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while (last := view_or_none(path)) != newest:
            assert time.monotonic() < deadline, last
            time.sleep(0.2)
        assert was_compacted(path, load)
    assert [text for text in refused if "read again" not in text] == []
    assert views
    ends = [max(seen.values(), default=-1) for seen in views]
    assert views == [newest_up_to(end, load) for end in ends]
    assert [keys for seen, later in pairwise(views) if (keys := seen.keys() - later.keys())] == []
    assert found
    assert [row for row in found if not is_written(row, load)] == []
    assert falling(views) == falling(rows_of_each_look_up(found)) == []
    assert open_spills(spills) == []


def wait_for_a_record(load: Load) -> None:
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while not load.newest:
        assert load.failures == []
        assert time.monotonic() < deadline
        time.sleep(0.1)


def view(path: str, *, cleaned_amid: bool = False) -> Seen:
    """Read the view; a key has one row. A cleaner may come between the plan and the reading."""
    reader = kafkalog.read(path, TOPIC, columns=["key", "offset"], options={"view": "latest"})
    if cleaned_amid:
        wait_for_a_cleaner(path)
    table = reader.read_all()
    keys, offsets = table.column("key").to_pylist(), table.column("offset").to_pylist()
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, offsets, strict=True))


def view_or_none(path: str) -> Seen | None:
    """Read the view; None while a cleaner is ahead of what is known to be committed."""
    try:
        return view(path)
    except DataLossError:
        return None


def wait_for_a_cleaner(path: str) -> None:
    """Wait until what is the active segment now was cleaned; not for ever, since it need not be."""
    active, inode = max(segments_of(path).items())
    deadline = time.monotonic() + 10
    while segments_of(path).get(active, inode) == inode and time.monotonic() < deadline:
        time.sleep(0.01)


def segments_of(path: str) -> dict[str, int]:
    """Return the inode of each segment."""
    with os.scandir(Path(path, f"{TOPIC}-0")) as entries:
        return {e.name: e.inode() for e in entries if e.name.endswith(".log")}


def look_ups(path: str, turn: int, refused: list[str]) -> list[dict[str, Any]]:
    """Look for two keys, of which one was looked for in the turn before."""
    rows = []
    for number in (turn, turn + 1):
        try:
            rows.append(kafkalog.get(path, TOPIC, b"%d" % (number % 50)))
        except DataLossError as error:
            refused.append(str(error))
    return [row for row in rows if row is not None]


def newest_up_to(end: int, load: Load) -> Seen:
    """Return the newest offset of each key, at or below an offset."""
    places = sorted(place for place in load.written if place[0] == TOPIC and place[2] <= end)
    return {key: place[2] for place in places if (key := load.written[place][0]) is not None}


def is_written(row: dict[str, Any], load: Load) -> bool:
    place: Place = (row["topic"], row["partition"], row["offset"])
    return load.written.get(place) == (row["key"], row["value"])


def rows_of_each_look_up(found: list[dict[str, Any]]) -> list[Seen]:
    return [{row["key"]: row["offset"]} for row in found]


def falling(reads: list[Seen]) -> list[tuple[bytes, int, int]]:
    """Return keys whose row is older than one that was read before."""
    last: Seen = {}
    older = []
    for seen in reads:
        older += [(key, last[key], at) for key, at in seen.items() if at < last.get(key, -1)]
        last |= seen
    return older


def was_compacted(path: str, load: Load) -> bool:
    rows = kafkalog.read(path, TOPIC, columns=["offset"]).read_all()
    return len(rows) < sum(place[0] == TOPIC for place in load.written)
