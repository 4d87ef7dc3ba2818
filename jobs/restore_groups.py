"""The positions of consumer groups in topics that are restored, from an archived offsets topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from kafkalog.model import OFFSETS_TOPIC
from kafkalog.streaming.coordinator.group_positions import ReplayRecord, group_positions
from kafkalog.streaming.coordinator.group_replay import read_group_positions
from kafkalog.streaming.groups.position_topics import is_of_earlier_topic
from kafkalog.streaming.sink.group_writer import GroupWriter
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pyspark.sql import DataFrame

    from kafkalog.jobs.restore_plan import TopicPlan
    from kafkalog.model import TopicPartition

__all__ = ["restore_groups"]

_MOST_NAMED: Final = 10

Positions = dict[str, dict["TopicPartition", int]]


def restore_groups(
    rows: DataFrame | None, paths: Sequence[str], plans: Iterable[TopicPlan]
) -> list[str]:
    """Write where groups stood, at most where restored logs end and at least where they start.

    Args:
        rows: the table's records, the offsets topic's among them; None if it has none of those.
        paths: the log directories. A position that is there already stays, unless it is of an
            earlier topic of that name: there it counts for nothing.
        plans: the topics that were restored.

    Returns:
        what is to be said of it.
    """
    archived = None if rows is None else _archived(rows)
    if archived is None:
        return [f"no positions of groups are restored: the table has no records of {OFFSETS_TOPIC}"]
    by_topic = {plan.topic: plan.bounds for plan in plans}
    there = _there(paths, {OFFSETS_TOPIC, *by_topic})
    written, moved = 0, []
    for group, positions in sorted(archived.items()):
        restored = {}
        for key, offset in positions.items():
            bounds = by_topic.get(key.topic, ())
            if key.partition >= len(bounds) or key in there.get(group, ()):
                continue
            start, end = bounds[key.partition]
            restored[key] = min(max(offset, start), end)
            if restored[key] != offset:
                moved.append(f"{group} in {key} from {offset} to {restored[key]}")
        if restored:
            GroupWriter(paths, group).commit(restored)
            written += len(restored)
    said = [f"{written} positions of groups are restored"]
    if moved:
        more = f", and {len(moved) - _MOST_NAMED} more" if len(moved) > _MOST_NAMED else ""
        named = "; ".join(moved[:_MOST_NAMED])
        said.append(f"positions were moved to offsets that are restored: {named}{more}")
    return said


def _archived(rows: DataFrame) -> Positions | None:
    """Replay the newest record of each key; None where there are none."""
    commits = rows.where((sf.col("topic") == OFFSETS_TOPIC) & sf.col("key").isNotNull())
    newest = commits.groupBy("partition", "key").agg(
        sf.max("offset").alias("offset"), sf.max_by("value", "offset").alias("value")
    )
    by_partition: dict[int, list[ReplayRecord]] = {}
    for row in newest.collect():
        key, value = bytes(row["key"]), row["value"]
        record = ReplayRecord(row["offset"], key, None if value is None else bytes(value))
        by_partition.setdefault(row["partition"], []).append(record)
    if not by_partition:
        return None
    found: Positions = {}
    for number, records in by_partition.items():
        replayed = group_positions(sorted(records), log_name=f"{OFFSETS_TOPIC}-{number}")
        for group, positions in replayed.items():
            offsets = {key: position.offset for key, position in positions.items()}
            found.setdefault(group, {}).update(offsets)
    return found


def _there(paths: Sequence[str], topics: Collection[str]) -> Positions:
    """Read the positions in topics that log directories have, but for those of earlier topics."""
    watch = LogEndTracker(paths, lambda key: key.topic in topics)
    ends = watch.look().offsets
    ids, is_changed = watch.topic_ids(), watch.is_changed_id
    found: Positions = {}
    for key in (key for key in ends if key.topic == OFFSETS_TOPIC):
        with watch.open(key) as log:
            for group, positions in read_group_positions(log, ends[key]).items():
                offsets = {
                    each: position.offset
                    for each, position in positions.items()
                    if not is_of_earlier_topic(each, position.metadata, ids, is_changed)
                }
                found.setdefault(group, {}).update(offsets)
    return found
