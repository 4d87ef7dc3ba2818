"""Comparisons of ids and ends that are no guards: why not, and which, by file and code.

Without such a comparison nothing is lost, doubled or hidden: something is done twice, told in
other words, or found at the next step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NO_GUARDS"]

_NODES: Final = (
    "it guards several nodes, which tests/crash/test_replicas_*.py look at, and no mutation"
)

NO_GUARDS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "the same is found without it, and later: it spares a look at what is known": (
        ("streaming/commit/copied_ends.py", "now != each.topic_id"),
        ("streaming/commit/foreign_log.py", "end != self.committed_end"),
        ("streaming/commit/foreign_log.py", "end == self.committed_end"),
        ("streaming/commit/states.py", "each.plan.end_offset > each.plan.start_offset"),
        ("streaming/operate/folder_copy.py", "known.size <= end"),
        ("streaming/source/key_hashes.py", "now[:, _BASE] < piece.end_offset"),
        ("streaming/store/unsynced.py", "start >= end"),
        ("streaming/store/unsynced.py", "state.boot in {None, system.boot_id()}"),
        ("streaming/store/unsynced.py", "reached >= end"),
        ("streaming/store/ends/watch.py", "confirmed != committed_end(said)"),
        (
            "streaming/store/ends/watch.py",
            "(log := self._logs.by_partition[key]).seen.end < reached[key]",
        ),
    ),
    "what is left is empty then: the next step does nothing": (
        ("streaming/groups/group_log.py", "start >= end"),
        ("streaming/operate/folder_copy.py", "found < end"),
        ("streaming/source/new_splits.py", "end != position"),
        ("streaming/source/reading.py", "log_start < end"),
        ("streaming/source/reading.py", "end < rest.end_offset"),
        ("streaming/source/plan/planner.py", "entry.start < entry.end"),
        ("streaming/source/plan/pruning.py", "end > hull.first"),
        ("streaming/source/plan/pruning.py", "start < end"),
    ),
    "what is there already is done again, to the same end": (
        (
            "streaming/groups/membership.py",
            "self.member_id in self._commits.look().record.members",
        ),
        ("streaming/operate/handover.py", "read_topic_id(each.where.path) != topic_id"),
        (
            "streaming/operate/node_takeover.py",
            "each.key != topic_key(each.topic_partition.topic, read_topic_id(folder))",
        ),
        ("streaming/source/stream_reader.py", "end == begin"),
    ),
    "it chooses the words of a message, or a number in them": (
        ("streaming/operate/damage.py", "start <= at < end_position"),
        ("streaming/operate/damage.py", "position == end"),
        ("streaming/operate/node_handover.py", "cluster.topic_ids[topic.name] != key"),
        ("streaming/operate/node_handover.py", "where.leader_epoch > most"),
        ("streaming/operate/node_takeover.py", "other.end != each.end"),
        ("streaming/source/latest.py", "segments[0].base_offset <= piece.start_offset < end"),
        ("streaming/store/identity.py", "identity.batch_id > last.batch_id"),
        ("streaming/store/identity.py", "is_of_rows != last.startswith(DIGEST_OF_ROWS)"),
    ),
    "it chooses between a warning and a loss, and both name the offsets": (
        ("streaming/store/ends/tiered.py", "_first_epoch(where.path, line) < first"),
    ),
    "it says how work is shared out, or when memory is given back": (
        ("streaming/commit/staging/staged_source.py", "position + size == self._end"),
        ("streaming/source/plan/byte_splits.py", "begin < end < begin + entry.size"),
    ),
    "whoever reads there compares the id again, and refuses": (
        ("streaming/store/ends/seen_log.py", "read_topic_id(other) == self.topic_id"),
    ),
    _NODES: (
        ("checkpoints/replica_state.py", "len({node.node_id for node in nodes}) < len(nodes)"),
        ("checkpoints/replica_state.py", "rewritten.start > rewritten.end"),
        ("checkpoints/replica_state.py", "self.end > self.start"),
        ("checkpoints/intent.py", "prepared.controller_epoch < max(epochs)"),
        ("checkpoints/voters.py", "state.set_id == newest.set_id"),
        ("streaming/commit/replication.py", "appender.log_end_offset != append.plan.start_offset"),
        ("streaming/operate/elect.py", "each.start_offset < end"),
        ("streaming/operate/elect.py", "end < start"),
        ("streaming/operate/elect.py", "offset > end"),
        (
            "streaming/operate/elect.py",
            "topic_key(key.topic, topic_id) == _key_of(log_set.state, key)",
        ),
        ("streaming/operate/replica_check.py", "each.start_offset < end"),
        ("streaming/operate/replica_check.py", "end > start"),
        (
            "streaming/operate/replica_upkeep.py",
            "voters.sequence_of(node) < newest.sequence",
        ),
        ("streaming/store/log_set.py", "(intent.sequence, intent.commit_id) == state.stamp"),
        ("streaming/store/log_set.py", "intended.end_offset > intended.start_offset"),
        ("streaming/store/log_set.py", "known.log_end != intended.start_offset"),
        ("streaming/store/nodes.py", "{*state.member_ids} <= self.members.keys()"),
        ("streaming/store/replicas/catching_up.py", "own != topic_id"),
        ("streaming/store/replicas/copying.py", "end == size"),
        (
            "streaming/store/replicas/deciding.py",
            "(intent.sequence, intent.commit_id) == state.stamp",
        ),
        (
            "streaming/store/replicas/deciding.py",
            "_own_end(own.get(node), key, number) != _end(topic, number)",
        ),
        ("streaming/store/replicas/deciding.py", "each.sequence > state.sequence"),
        ("streaming/store/replicas/deciding.py", "each.set_id == state.set_id"),
        ("streaming/store/replicas/deciding.py", "load_stamp(folder) == state.stamp"),
        ("streaming/store/replicas/equal_segments.py", "max(leading, default=0) >= end"),
        ("streaming/store/replicas/equal_segments.py", "max(own, default=0) >= end"),
        ("streaming/store/replicas/equal_segments.py", "start <= base < end"),
        ("checkpoints/voters.py", "s.member_id not in self.newest.member_ids"),
        ("streaming/operate/voters.py", "each.node_id == told.node"),
        ("streaming/operate/voters.py", "n.node_id == int(old)"),
        ("streaming/operate/voters.py", "n.node_id == there"),
        ("streaming/operate/voters.py", "state.member_id in nodes"),
        (
            "streaming/store/replicas/moved_away.py",
            "state.key_of(topic, read_topic_id(folder)) == key",
        ),
        ("streaming/store/replicas/voter_changes.py", "known.keys() >= {*node.member_ids}"),
        ("streaming/store/replicas/voter_changes.py", "n.member_ids[0] in new"),
        ("streaming/store/replicas/voter_changes.py", "node.node_id == instead_of"),
        ("streaming/store/replicas/voter_changes.py", "node.node_id not in present"),
        ("streaming/store/replicas/voter_changes.py", "prepared.sequence > newest.sequence"),
        ("streaming/store/replicas/voter_changes.py", "prepared.set_id == newest.set_id"),
        ("streaming/store/replicas/several_nodes.py", "each.member_id in members"),
        ("streaming/store/replicas/several_nodes.py", "stamp != state.stamp"),
        ("streaming/store/replicas/several_nodes.py", "state.stamp in set(self.stamps())"),
        ("streaming/store/replicas/starting.py", "given > len(state.member_ids)"),
        ("streaming/store/replicas/starting.py", "prepared.stamp == voters.newest.stamp"),
        ("streaming/store/replicas/starting.py", "states[0].sequence == 0"),
        ("streaming/store/replicas/starting.py", "voters.newest.sequence > 0"),
        (
            "streaming/store/replicas/strays.py",
            "own.key_of(name, read_topic_id(found.path)) in gone",
        ),
        ("streaming/store/take_back.py", "each.epoch < epoch"),
    ),
}
