"""Folders of partitions that lie in a log directory and are not its own.

Such folders are read, as a broker reads them, and never written:

- A folder that is a link may lead into another set. Nobody here holds the locks of that set, and
  its commit state would not know of an append.
- Two topics with one topic id, as after ``cp -r a-0 b-0``, are one topic to the commit state. What
  is committed of one would be taken for the other's, and one would be forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.checkpoints.broker import PARTITION_METADATA, read_topic_id
from kafkalog.checkpoints.commit_state import topic_key
from kafkalog.errors import LogDirectoryError

if TYPE_CHECKING:
    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.streaming.log.log_dir import PartitionDirectory

__all__ = ["TopicOwners", "check_no_link"]


def check_no_link(where: PartitionDirectory) -> None:
    """Refuse to write to a partition whose folder is a link.

    Raises:
        LogDirectoryError: it is one.
    """
    if where.is_link:
        raise LogDirectoryError(
            f"{where.path} is a link to {where.path.resolve()}, which may belong to other log "
            "directories, with locks and a commit state of their own. It can be read "
            "(readUpTo=logEnd) and not written: move the folder itself here, or name the log "
            "directory around it"
        )


class TopicOwners:
    """Which topic each topic id belongs to: the one in the state, else the first that has it."""

    def __init__(self, state: CommitState | None) -> None:
        topics = state.topics if state else {}
        self._names = {key: topic.name for key, topic in topics.items()}

    def check(self, topic: str, topic_id: str | None) -> None:
        """Refuse a topic that carries the id of another one.

        Raises:
            LogDirectoryError: it does.
        """
        owner = self._names.setdefault(topic_key(topic, topic_id), topic)
        if owner != topic:
            raise LogDirectoryError(
                f"topic {topic!r} carries the topic id of topic {owner!r}, {topic_id}: its folders "
                "are copies. It can be read (readUpTo=logEnd) and not written. To make it a topic "
                f"of its own, remove {PARTITION_METADATA} from its folders and run `kafkalog "
                "takeover`"
            )

    def check_folder(self, where: PartitionDirectory) -> None:
        """Refuse to write to a partition's folder that is a link, or carries another topic's id.

        Raises:
            LogDirectoryError: it is, or does.
            CheckpointError: its topic id cannot be read.
        """
        check_no_link(where)
        self.check(where.topic_partition.topic, read_topic_id(where.path))
