"""A broker of several holds the first partitions of a topic: keys lie among all of them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support.cluster_records import partition, topic, write_metadata
from tests.support.sinking import Writer, rows, values_of
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.broker import META_PROPERTIES, read_topic_id
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import RowError, UnknownTopicOrPartitionError
from kafkalog.jobs.cli.app import app
from kafkalog.streaming.admin.broker.handover import take_over

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [f"k{number}" for number in range(20)]
ALLOWED = {"allowBrokerDirectory": "true"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give what a broker has of a topic of four partitions: 0 and 1, and no commit state."""
    writer = Writer(tmp_path / "all", topic="t", numPartitions="4")
    writer.write(0, rows(["old"] * len(KEYS), keys=KEYS))
    log = tmp_path / "log"
    for number in (0, 1):
        shutil.copytree(tmp_path / "all" / f"t-{number}", log / f"t-{number}")
    (log / META_PROPERTIES).write_text("version=1\n")
    return log


def with_metadata(log: Path) -> None:
    topic_id = read_topic_id(log / "t-0")
    assert topic_id is not None
    records = [partition(topic_id, number, [1]) for number in range(4)]
    write_metadata(log, topic("t", topic_id), *records)


def found(log: Path, key: str) -> bool | None:
    """Whether there is a record of a key; None where its partition is elsewhere."""
    try:
        return kafkalog.get(str(log), "t", key) is not None
    except UnknownTopicOrPartitionError as error:
        return None if "as topic t has 4 partitions" in str(error) else False


def there(log: Path) -> dict[str, bool | None]:
    number_of = {
        row["key"].decode(): row["partition"]
        for row in kafkalog.read(str(log.parent / "all"), "t").read_all().to_pylist()
    }
    return {key: True if number_of[key] < 2 else None for key in KEYS}


def test_keys_are_looked_for_by_the_number_that_the_cluster_knows(log: Path) -> None:
    with_metadata(log)
    assert {key: found(log, key) for key in KEYS} == there(log)
    assert any("t has 4 partitions, of which 2" in line for line in take_over([str(log)]).written)
    assert {key: found(log, key) for key in KEYS} == there(log)
    shutil.rmtree(log / "__cluster_metadata-0")
    assert {key: found(log, key) for key in KEYS} == there(log)


@pytest.mark.parametrize("is_told", ["by metadata", "by hand"])
def test_rows_with_keys_go_where_they_always_went_or_nowhere(log: Path, is_told: str) -> None:
    words = ["takeover", str(log)]
    if is_told == "by hand":
        words += ["--partitions", "t=4"]
    else:
        with_metadata(log)
    assert CliRunner().invoke(app, words).exit_code == 0
    state = load_state(log)
    assert state is not None
    assert [each.known_count for each in state.topics.values()] == [4]
    writer = Writer(log, topic="t", **ALLOWED)
    with pytest.raises(RowError, match="is not in these log directories"):
        writer.write(0, rows(["new"] * len(KEYS), keys=KEYS))
    here = [key for key, is_there in there(log).items() if is_there]
    before = {key: found for key, found in keys_of(log).items() if key in here}
    writer.write(0, rows(["new"] * len(here), keys=here))
    assert keys_of(log) == before
    assert take_over([str(log)]).written == []


def keys_of(log: Path) -> dict[str, set[int]]:
    numbers: dict[str, set[int]] = {}
    for row in kafkalog.read(str(log), "t").read_all().to_pylist():
        numbers.setdefault(row["key"].decode(), set()).add(row["partition"])
    return numbers


def test_partitions_that_are_forgotten_count_still(log: Path) -> None:
    whole = log.parent / "all"
    (whole / META_PROPERTIES).write_text("version=1\n")
    for number in (2, 3):
        shutil.rmtree(whole / f"t-{number}")
    assert take_over([str(whole)]).problems == []
    assert values_of([whole], "t").keys() == {0, 1}
    with pytest.raises(RowError, match="is not in these log directories"):
        Writer(whole, topic="t", **ALLOWED).write(1, rows(["new"] * len(KEYS), keys=KEYS))


@pytest.mark.parametrize(
    ("given", "says"),
    [("t=1", "has at least 2 partitions"), ("u=4", "no topic 'u'"), ("t=x", "is no number")],
)
def test_a_number_of_partitions_that_cannot_be_changes_nothing(
    log: Path, given: str, says: str
) -> None:
    done = CliRunner().invoke(app, ["takeover", str(log), "--partitions", given])
    assert done.exit_code == 2
    assert says in done.output
    assert load_state(log) is None
