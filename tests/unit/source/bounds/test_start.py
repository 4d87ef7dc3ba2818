from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment

from kafkalog.errors import OptionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.offsets import EARLIEST, LATEST
from kafkalog.streaming.source.start import (
    batch_bounds,
    resolve_end,
    resolve_start,
    starting_bound,
)

if TYPE_CHECKING:
    from pathlib import Path

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def options(**given: str) -> ReadOptions:
    return ReadOptions.parse({"path": "/logs", "subscribe": "t"} | given)


@pytest.fixture
def logs(tmp_path: Path) -> EndOffsets:
    """Follow t-0 [2, 10) with timestamps 1000 + 10 * offset, and t-1 [0, 3) with timestamp 5."""
    for offset in (0, 5):
        rows = [Row(timestamp=1000 + 10 * (offset + n)) for n in range(5)]
        write_segment(tmp_path / "t-0", offset, batch_bytes(offset, rows))
    write_segment(tmp_path / "t-1", 0, batch_bytes(0, [Row(timestamp=5)] * 3))
    write_checkpoint(tmp_path, "log-start-offset-checkpoint", {"t-0": 2})
    return EndOffsets([str(tmp_path)], lambda _: True)


def started(logs: EndOffsets, default: int = LATEST, /, **given: str) -> dict[TopicPartition, int]:
    chosen = options(**given)
    return resolve_start(
        starting_bound(chosen, default=default),
        logs.look().offsets,
        logs,
        when_none=chosen.starting_timestamp_strategy,
    )


def ended(logs: EndOffsets, **given: str) -> dict[TopicPartition, int]:
    return dict(resolve_end(batch_bounds(options(**given))[1], logs.look().offsets, logs))


def test_words_are_read_in_any_case(logs: EndOffsets) -> None:
    assert started(logs, startingOffsets="earLiEst") == {T0: 2, T1: 0}
    assert started(logs, startingOffsets=" laTest") == {T0: 10, T1: 3}
    assert started(logs, EARLIEST) == {T0: 2, T1: 0}


def test_numbers_stand_for_offsets_and_symbols(logs: EndOffsets) -> None:
    assert started(logs, startingOffsets='{"t":{"0":-2,"1":-1}}') == {T0: 2, T1: 3}
    assert started(logs, startingOffsets='{"t":{"0":7,"1":0}}') == {T0: 7, T1: 0}


def test_a_topic_may_have_one_word_for_all_its_partitions(logs: EndOffsets) -> None:
    assert started(logs, startingOffsets='{"t":"earliest"}') == {T0: 2, T1: 0}
    assert started(logs, startingOffsets='{"t":" laTest"}') == {T0: 10, T1: 3}


def test_words_of_topics_stand_beside_numbers_of_partitions(tmp_path: Path) -> None:
    for folder in ("a-0", "a-1", "b-0"):
        write_segment(tmp_path / folder, 0, batch_bytes(0, [Row()] * 4))
    logs = EndOffsets([str(tmp_path)], lambda _: True)
    b0 = TopicPartition("b", 0)
    assert started(logs, startingOffsets='{"a":"latest","b":{"0":3}}') == {
        TopicPartition("a", 0): 4,
        TopicPartition("a", 1): 4,
        b0: 3,
    }
    for text in ('{"a":"latest"}', '{"a":"latest","b":{"0":3},"c":"latest"}', '{"a":"first"}'):
        with pytest.raises(OptionError, match=r"START_OFFSET_DOES_NOT_MATCH|accepts JSON such as"):
            started(logs, startingOffsets=text)
    ends = resolve_end(
        batch_bounds(options(endingOffsets='{"a":"latest","b":{"0":3}}'))[1], *looked(logs)
    )
    assert ends[b0] == 3


def looked(logs: EndOffsets) -> tuple[dict[TopicPartition, int], EndOffsets]:
    return logs.look().offsets, logs


def test_words_of_topics_are_held_to_the_rules_of_batches() -> None:
    with pytest.raises(OptionError, match="'startingOffsets' is latest"):
        batch_bounds(options(startingOffsets='{"t":"latest"}'))
    with pytest.raises(OptionError, match="'endingOffsets' is earliest"):
        batch_bounds(options(endingOffsets='{"t":"earliest"}'))
    batch_bounds(options(startingOffsets='{"t":"earliest"}', endingOffsets='{"t":{"0":1}}'))


@pytest.mark.parametrize(
    "text", ['{"t":{"0":1}}', '{"t":{"0":1,"1":1,"2":1}}', '{"u":{"0":1,"1":1}}']
)
def test_offsets_name_exactly_the_partitions_that_are_read(logs: EndOffsets, text: str) -> None:
    with pytest.raises(OptionError, match="KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"):
        started(logs, startingOffsets=text)
    with pytest.raises(OptionError, match="KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED"):
        started(logs, startingOffsetsByTimestamp=text)
    with pytest.raises(OptionError, match=r"KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED.*ending"):
        ended(logs, endingOffsets=text)
    with pytest.raises(OptionError, match="KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED"):
        ended(logs, endingOffsetsByTimestamp=text)


def test_no_number_is_advised_that_the_option_refuses(logs: EndOffsets) -> None:
    text = '{"t":{"0":1}}'
    with pytest.raises(OptionError, match="use -2 for earliest, -1 for latest"):
        started(logs, startingOffsets=text)
    with pytest.raises(OptionError, match=r"are read \(use -1 for latest\):"):
        ended(logs, endingOffsets=text)
    for bound, option in ((started, "startingOffsets"), (ended, "endingOffsets")):
        with pytest.raises(OptionError, match="partitions that are read: missing t-1"):
            bound(logs, **{f"{option}ByTimestamp": text})


def test_a_timestamp_is_the_first_record_at_or_after_it(logs: EndOffsets) -> None:
    by_partition = '{"t":{"0":1055,"1":0}}'
    assert started(logs, startingOffsetsByTimestamp=by_partition) == {T0: 6, T1: 0}
    with pytest.raises(OptionError, match=r"t-1 has no record with timestamp 1000 ms"):
        started(logs, startingTimestamp="1000")
    latest = {"startingTimestamp": "1000", "startingOffsetsByTimestampStrategy": "LATEST"}
    assert started(logs, **latest) == {T0: 2, T1: 3}


def test_the_more_precise_option_counts_and_the_others_are_not_looked_at(
    logs: EndOffsets,
) -> None:
    given = {"startingTimestamp": "5", "startingOffsetsByTimestamp": "x", "startingOffsets": "x"}
    assert started(logs, **given) == {T0: 2, T1: 0}
    del given["startingTimestamp"]
    with pytest.raises(OptionError, match="startingOffsetsByTimestamp"):
        started(logs, **given)


def test_an_end_falls_back_to_the_latest(logs: EndOffsets) -> None:
    _, end = batch_bounds(options(endingTimestamp="1070"))
    assert resolve_end(end, logs.look().offsets, logs) == {T0: 7, T1: 3}
    _, end = batch_bounds(options(endingOffsets='{"t":{"0":4,"1":-1}}'))
    assert resolve_end(end, logs.look().offsets, logs) == {T0: 4, T1: 3}


def test_what_may_mean_other_offsets_later_is_known() -> None:
    def moves(**given: str) -> bool:
        return starting_bound(options(**given), default=LATEST).moves

    assert moves()
    assert moves(startingOffsets='{"t":{"0":5,"1":-1}}')
    assert moves(startingTimestamp="5")
    assert not moves(startingOffsets="earliest")
    assert not moves(startingOffsets='{"t":{"0":5,"1":-2}}')


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"startingOffsets": "latest"}, "'startingOffsets' is latest"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "'startingOffsets' is latest"),
        ({"endingOffsets": "earliest"}, "'endingOffsets' is earliest"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "'endingOffsets' is earliest"),
        (
            {"startingOffsets": '{"t":{"0":1}}', "endingOffsets": '{"t":{"0":1,"1":1}}'},
            "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET.* t-1",
        ),
        (
            {"startingOffsets": '{"t":{"0":1}}', "endingOffsets": '{"t":{"0":0}}'},
            "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET.* t-0",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"t":{"0":8}}',
                "endingOffsetsByTimestamp": '{"t":{"0":7}}',
            },
            "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET.* t-0",
        ),
        (
            {"startingTimestamp": "8", "endingOffsetsByTimestamp": '{"t":{"0":9,"1":7}}'},
            "t-1: option 'startingTimestamp' .8. lies after option 'endingOffsetsByTimestamp' .7.",
        ),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":8}}', "endingTimestamp": "7"},
            "t-0: option 'startingOffsetsByTimestamp' .8. lies after option 'endingTimestamp' .7.",
        ),
    ],
)
def test_bounds_of_a_batch_that_contradict_are_refused(given: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        batch_bounds(options(**given))


def test_a_time_to_start_at_is_not_after_the_time_to_end_at() -> None:
    options(startingTimestamp="7", endingTimestamp="7")
    with pytest.raises(OptionError, match=r"'startingTimestamp' .*008Z.*'endingTimestamp'"):
        options(startingTimestamp="8", endingTimestamp="7")


def test_times_are_not_compared_with_offsets() -> None:
    times = {"startingOffsetsByTimestamp": '{"t": {"0": 1700000000000}}'}
    given = {"path": "/log", "subscribe": "t", "endingOffsets": '{"t": {"0": 4}}', **times}
    start, end = batch_bounds(ReadOptions.parse(given))
    assert (start.timestamps, end.timestamps) == (True, False)


def test_a_record_that_is_not_committed_has_no_timestamp_yet(
    logs: EndOffsets, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, "replication-offset-checkpoint", {"t-0": 5, "t-1": 3})
    ending = batch_bounds(options(endingTimestamp="1070"))[1]
    assert resolve_end(ending, logs.look().offsets, logs) == {T0: 5, T1: 3}
    later = started(logs, startingTimestamp="1070", startingOffsetsByTimestampStrategy="latest")
    assert later == {T0: 5, T1: 3}
